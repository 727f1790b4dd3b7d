// Tasks for the control thread, posted from any thread. Outlives both ends by shared ownership:
// what is posted after the control thread's end is dropped.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <utility>

#include "base/fd.h"
#include "base/result.h"
#include "daemon/reactor/task_queue.h"

namespace gpuumd {

class Mailbox {
 public:
  static base::Result<std::shared_ptr<Mailbox>> create() {
    base::UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!wake) return base::fail(base::Errc::kSystem, "control thread's eventfd", errno);
    return std::shared_ptr<Mailbox>(new Mailbox(std::move(wake)));
  }

  // Any thread.
  void post(Task task) {
    if (closed_.load(std::memory_order_acquire)) return;
    tasks_.push(std::move(task));
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
  }

  // Readable while there may be tasks. The control thread only, as the rest.
  int wake_fd() const { return wake_.get(); }
  void run() {
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof(count));
    tasks_.drain([](Task& task) { task(); });
  }
  // Drops what is posted from now on, and what was posted and not run.
  void close() {
    closed_.store(true, std::memory_order_release);
    tasks_.drain([](Task&) {});
  }

 private:
  explicit Mailbox(base::UniqueFd wake) : wake_(std::move(wake)) {}

  base::UniqueFd wake_;
  TaskQueue tasks_;
  std::atomic<bool> closed_{false};
};

}  // namespace gpuumd
