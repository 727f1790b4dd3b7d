// The library's end of a submission ring. One thread at a time, or any thread through its lock.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <span>

#include "base/shared_memory.h"
#include "gpuumd/ring.h"
#include "gpuumd/wire.h"
#include "libgpuumd/session.h"

namespace gpuumd::client {

class Queue {
 public:
  static Outcome<std::unique_ptr<Queue>> create(std::shared_ptr<Session> session, std::uint64_t vm,
                                                const gpuumd_queue_options* options,
                                                const Wait& wait);

  Session& session() { return *session_; }
  const std::shared_ptr<Session>& session_ref() const { return session_; }
  std::uint64_t id() const { return id_; }
  std::uint64_t vm() const { return vm_; }
  bool single_thread() const { return single_thread_; }

  // Puts a command behind those not submitted yet; waits for room when the ring is full, which
  // submits.
  Outcome<void> put(std::span<const wire::CommandSlot> command, const Wait& wait);
  // Lets the daemon see what was put.
  Outcome<void> submit();

 private:
  Queue(std::shared_ptr<Session> session, std::uint64_t id, std::uint64_t vm, bool single_thread,
        base::Mapping mapping, std::uint32_t slots);

  std::unique_lock<std::mutex> lock() {
    return single_thread_ ? std::unique_lock<std::mutex>() : std::unique_lock(mutex_);
  }
  void publish();
  Outcome<void> wait_room(std::uint32_t slots, const Wait& wait);
  void sleep_for_room(std::uint32_t slots, const Wait& wait);

  std::shared_ptr<Session> session_;
  std::uint64_t id_;
  std::uint64_t vm_;
  bool single_thread_;
  base::Mapping mapping_;
  wire::QueuePage* page_;
  wire::CommandSlot* commands_;
  std::mutex mutex_;
  RingProducer ring_;
};

}  // namespace gpuumd::client
