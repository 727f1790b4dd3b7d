// Tasks posted from any thread, taken by one. Lock-free: posting is one compare-exchange, so a
// reactor that is descheduled never holds up who posts to it.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "daemon/reactor/reactor.h"

namespace gpuumd {

class TaskQueue {
 public:
  TaskQueue() = default;
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;
  ~TaskQueue() { free_list(head_.exchange(nullptr, std::memory_order_acquire)); }

  // Any thread.
  void push(Task task) {
    auto* node = new Node{std::move(task), head_.load(std::memory_order_relaxed)};
    // seq_cst pairs with the sleeper's flag: either we see that it sleeps, or it sees the task.
    while (!head_.compare_exchange_weak(node->next, node, std::memory_order_seq_cst,
                                        std::memory_order_relaxed)) {
    }
  }

  bool empty() const { return head_.load(std::memory_order_seq_cst) == nullptr; }

  // Runs all that was posted before the call, oldest first. The taking thread only.
  template <class Run>
  bool drain(Run run) {
    Node* node = reversed(head_.exchange(nullptr, std::memory_order_acquire));
    const bool any = node != nullptr;
    while (node != nullptr) {
      std::unique_ptr<Node> current(node);
      node = current->next;
      run(current->task);
    }
    return any;
  }

 private:
  struct Node {
    Task task;
    Node* next;
  };

  static Node* reversed(Node* node) {
    Node* result = nullptr;
    while (node != nullptr) {
      Node* next = node->next;
      node->next = result;
      result = node;
      node = next;
    }
    return result;
  }
  static void free_list(Node* node) {
    while (node != nullptr) delete std::exchange(node, node->next);
  }

  std::atomic<Node*> head_{nullptr};
};

}  // namespace gpuumd
