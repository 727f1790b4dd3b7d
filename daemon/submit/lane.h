// A lane: one hardware queue that carries the work of one VM at a time. It launches slices, learns
// by the daemon's own fence (VMID 0, a page that no client maps) that they are done, and brings its
// queue back when that stopped. Reactor thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/address.h"
#include "base/result.h"
#include "daemon/gpu/engine/engine_memory.h"
#include "daemon/gpu/engine/sdma_queue.h"
#include "daemon/reactor/reactor.h"

namespace gpuumd {

// Names a slice in flight for its owner.
using SliceId = std::uint64_t;

class Lane {
 public:
  // Two: the next one is there when the engine ends the first, and a VM that waits for a lane waits
  // for two slices at most.
  static constexpr std::size_t kMaxInFlight = 2;

  // `fence`: an 8-byte word in VMID 0.
  Lane(SdmaQueue queue, EngineMemory fence) : queue_(queue), fence_(fence) {}

  void program();

  bool has_room() const { return in_flight_.size() < kMaxInFlight && !stopped_; }
  bool idle() const { return in_flight_.empty(); }
  bool stopped() const { return stopped_; }
  unsigned queue_index() const { return queue_.index(); }

  // INDIRECT to the IB in the VM, then the daemon's fence. Only with has_room().
  void launch(SliceId id, base::Vmid vmid, base::GpuVa ib, std::uint32_t ib_dwords);

  // Looks how far the engine got; true when slices are done that take_done() has not given yet.
  bool look() {
    const auto reached = fence_.word().load(std::memory_order_acquire);
    if (reached <= next_point_) seen_ = reached;  // else nonsense from the device
    return !in_flight_.empty() && in_flight_.front().point <= seen_;
  }
  // Slices that were done at the last look(), in order.
  template <class Call>
  bool take_done(Call call) {
    bool any = false;
    while (!in_flight_.empty() && in_flight_.front().point <= seen_) {
      const auto id = in_flight_.front().id;
      queue_.passed(in_flight_.front().end);
      in_flight_.pop_front();
      any = true;
      call(id);
    }
    return any;
  }

  // Asks for an interrupt behind what is in flight, once.
  void request_wake();

  // The queue takes nothing any more (it stopped on an error, or is to be reset). What is in flight
  // is lost: its ids, in order.
  std::vector<SliceId> stop();

 private:
  struct Flight {
    std::uint64_t point;
    SliceId id;
    std::uint64_t end;  // of its packets in the ring, bytes
  };
  SdmaQueue queue_;
  EngineMemory fence_;
  std::uint64_t next_point_ = 0;
  std::uint64_t seen_ = 0;
  std::uint64_t trap_after_ = 0;
  bool stopped_ = true;  // until program()
  std::deque<Flight> in_flight_;
  std::vector<std::uint32_t> scratch_;
};

}  // namespace gpuumd
