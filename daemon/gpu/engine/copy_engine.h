// The daemon's own SDMA queue: page tables, clears, staging, in VMID 0 on pinned memory, so that it
// never faults (LR-11). Jobs complete in order, each by a fence in memory that no client maps.
// Device thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "daemon/gpu/engine/sdma_packets.h"
#include "daemon/gpu/engine/sdma_queue.h"
#include "daemon/reactor/reactor.h"

namespace gpuumd {

class CopyEngine {
 public:
  using Done = std::move_only_function<void(base::Result<void>)>;
  // Time that one job may take once it is the oldest; then the engine counts as hung.
  static constexpr Duration kJobDeadline = std::chrono::seconds(2);
  static constexpr std::size_t kMaxJobDwords = 4096;

  // `fence` is an 8-byte word in VMID 0 that only this engine writes. `on_hung` is called by
  // poll(), once for each start(), when a job misses its deadline and before the jobs are told: the
  // device is to be treated as lost. May be empty.
  CopyEngine(Reactor& reactor, SdmaQueue queue, EngineMemory fence,
             std::move_only_function<void(const base::Error&)> on_hung = {});

  // Empty ring, nothing in flight: after the instance has started.
  void start();

  // Queues packets (at most kMaxJobDwords) and calls `done` on a later turn: ok when the engine has
  // finished them, kDeviceError when the engine stopped or hung, kDeviceLost after fail(). Jobs
  // wait in order when the ring is full.
  void submit(std::span<const std::uint32_t> packets, Done done);

  // One copy of any size up to kMaxJobDwords / 7 GiB, one fill likewise.
  void copy(base::McAddress from, base::McAddress to, std::uint64_t bytes, Done done);
  void fill(base::McAddress to, std::uint32_t value, std::uint64_t bytes, Done done);

  // From the reactor's poller: completes what is done, sends what waits. True when there was work.
  bool poll();
  // Before the reactor sleeps: asks for one interrupt behind the work in flight.
  void request_wake();

  // Everything in flight and waiting ends with `error`, and so does every later job until start().
  void fail(base::Error error);
  // The queue stopped on an interrupt of its own (fault, bus error): fails with that text.
  bool owns_queue(unsigned queue) const { return queue_.index() == queue; }

  std::size_t outstanding() const { return in_flight_.size() + waiting_.size(); }
  SdmaQueue& queue() { return queue_; }

 private:
  struct Flight {
    std::uint64_t point;
    std::uint64_t end;  // of its packets in the ring, bytes
    Done done;
  };
  struct Waiting {
    std::vector<std::uint32_t> packets;
    Done done;
  };

  bool send(std::span<const std::uint32_t> packets, Done& done);
  bool complete();
  void watch();
  void later(Done done, base::Result<void> result);

  Reactor& reactor_;
  SdmaQueue queue_;
  EngineMemory fence_;
  std::move_only_function<void(const base::Error&)> on_hung_;
  std::uint64_t next_point_ = 0;
  std::uint64_t trap_after_ = 0;  // the last point that a TRAP follows
  TimePoint oldest_since_{};
  Registration watchdog_;  // a hung engine raises no interrupt that would wake the reactor
  std::optional<base::Error> failed_;
  std::deque<Flight> in_flight_;
  std::deque<Waiting> waiting_;
  std::vector<std::pair<Done, base::Result<void>>> finished_;
  std::vector<std::uint32_t> scratch_;
};

}  // namespace gpuumd
