// TLB invalidation by the CPU's engine (17) of every hub concerned, without ever waiting: requests
// gather while a flush is under way and become one flush when it ends (INV-4).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/address.h"
#include "base/interval_set.h"
#include "base/result.h"
#include "daemon/gpu/memory/table_writer.h"
#include "daemon/gpu/registers/vm_hub.h"
#include "daemon/reactor/reactor.h"

namespace gpuumd {

using vm_hub::FlushType;

// Whose translations: a client's VMID lives on every GFXHUB, the NPA VMID on every MMHUB, VMID 0 on
// all (docs/hardware/vmhub.md).
class FlushTarget {
 public:
  static FlushTarget client(base::Vmid vmid) { return {vmid, true, false}; }
  static FlushTarget npa() { return {base::Vmid(vm_hub::kNpaContext), false, true}; }
  static FlushTarget vmid0() { return {base::Vmid(0), true, true}; }

  base::Vmid vmid() const { return vmid_; }
  bool on(HubKind kind) const { return kind == HubKind::kGfxhub ? gfx_ : mm_; }

 private:
  FlushTarget(base::Vmid vmid, bool gfx, bool mm) : vmid_(vmid), gfx_(gfx), mm_(mm) {}
  base::Vmid vmid_;
  bool gfx_;
  bool mm_;
};

// Device thread.
class FlushQueue {
 public:
  struct Options {
    // A hub that has not acknowledged by then is broken: the device with it.
    Duration deadline = std::chrono::seconds(1);
    // How long to look at every turn before looking once a `pause` only.
    Duration eager = std::chrono::microseconds(200);
    Duration pause = std::chrono::microseconds(100);
    // Names the page in ADDR_RANGE when a flush is of one 4 KiB page; else the whole space, always.
    // Off: that the register takes a single page is our reading (docs/hardware/choices.md D23).
    bool single_page_ranges = false;
  };

  // `on_error` once, when a hub does not answer: the device is to be treated as lost. May be empty.
  FlushQueue(Reactor& reactor, const std::vector<VmHub>& hubs, Options options,
             std::move_only_function<void(const base::Error&)> on_error);
  ~FlushQueue();  // drops what waits: its callbacks get kDeviceLost

  // Flushes the translations of `target` that meet `ranges`; an empty set means all. kHeavy also
  // waits until accesses that used the old entries have ended: for memory that changes hands
  // (errata A21). `done`, never from inside this call, says that every hub acknowledged; with an
  // error nothing may be assumed and the memory must not be used again.
  void submit(FlushTarget target, FlushType type, const base::IntervalSet<base::GpuVa>& ranges,
              Done done);

  bool idle() const { return waiting_.empty() && flying_.empty(); }

  struct Counters {
    std::uint64_t requests = 0;
    std::uint64_t flushes = 0;  // batches: requests / flushes is what merging saves
    std::uint64_t heavy = 0;    // batches
    std::uint64_t timeouts = 0;
  };
  const Counters& counters() const { return counters_; }

 private:
  enum class Step : std::uint8_t { kIdle, kSemaphore, kAcknowledge };
  struct Hub {
    VmHub hub;
    Step step = Step::kIdle;
    std::uint32_t vmids = 0;            // of the flush under way
    std::uint64_t range = kWholeSpace;  // what ADDR_RANGE holds
  };
  struct Request {
    FlushTarget target;
    FlushType type;
    base::IntervalSet<base::GpuVa> ranges;
    Done done;
  };
  static constexpr std::uint64_t kWholeSpace = ~std::uint64_t{0};

  void start();
  bool poll();
  void look();
  bool advance(Hub& hub);
  void request(Hub& hub);
  void finish(const base::Result<void>& result);
  void fail_all(const base::Error& error);
  std::uint64_t batch_range() const;

  Reactor& reactor_;
  Options options_;
  std::move_only_function<void(const base::Error&)> on_error_;
  std::vector<Hub> hubs_;
  std::vector<Request> waiting_;
  std::vector<Request> flying_;
  FlushType type_ = FlushType::kLight;  // of the flush under way
  std::uint64_t range_ = kWholeSpace;
  TimePoint started_;
  TimePoint eager_until_;
  bool broken_ = false;
  Counters counters_;
  Registration poller_;
  Registration timer_;
};

}  // namespace gpuumd
