// Which VM's work is on which lane. A lane carries one VM at a time, a VM holds at most two lanes,
// and a free lane goes to the VM that has waited longest within its priority. Reactor thread.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/address.h"
#include "base/result.h"
#include "daemon/gpu/engine/sdma_instance.h"
#include "daemon/reactor/reactor.h"
#include "daemon/submit/lane.h"
#include "daemon/submit/slice.h"
#include "daemon/submit/work_queue.h"

namespace gpuumd {

// The IB slots of one VM: daemon memory that the VM maps read-only where no bind of the client can
// reach, and that nobody else maps. The owner of the VM keeps it alive.
struct IbWindow {
  static constexpr unsigned kSlots = 8;
  static constexpr std::size_t kBytes = kSlots * kIbBytes;
  std::byte* cpu = nullptr;
  base::GpuVa at;
};

// A VM as the scheduler knows it.
class VmWork {
 public:
  VmWork(ObjectId id, base::Vmid vmid, IbWindow ibs) : id_(id), vmid_(vmid), ibs_(ibs) {}
  ObjectId id() const { return id_; }
  bool dead() const { return dead_.has_value(); }

 private:
  friend class Scheduler;
  ObjectId id_;
  base::Vmid vmid_;
  IbWindow ibs_;
  std::uint32_t used_slots_ = 0;  // bit mask
  unsigned in_flight_ = 0;        // slices
  std::vector<Lane*> lanes_;      // held, at most two
  std::vector<WorkQueue*> queues_;
  std::optional<TimePoint> waiting_since_;  // for a lane
  std::optional<base::Errc> dead_;
  TimePoint dead_since_{};
  std::vector<std::move_only_function<void()>> on_drained_;
};

struct SchedulerCounters {
  std::uint64_t slices = 0;
  std::uint64_t bytes = 0;
  std::uint64_t queue_resets = 0;     // asked for
  std::uint64_t instance_resets = 0;  // third step: others lose work
  std::uint64_t slices_lost = 0;      // ended with an error
};

class Scheduler {
 public:
  static constexpr unsigned kLanesPerVm = 2;
  // Each step of taking a dead VM's work off a lane.
  static constexpr Duration kStepDeadline = std::chrono::milliseconds(100);

  // One SDMA instance with the lanes on its queues.
  struct Engine {
    SdmaInstance instance;
    std::vector<Lane> lanes;
  };

  Scheduler(Reactor& reactor, std::vector<Engine> engines);
  ~Scheduler();

  // Programs every lane; the instances have been started.
  void start();
  // Handles every interrupt that the device has raised up to now; may kill VMs.
  void on_completion(std::move_only_function<void()> drain_interrupts) {
    drain_interrupts_ = std::move(drain_interrupts);
  }
  // Called for each queue of a healthy VM that lost work to the reset of its engine, and was
  // broken.
  void on_queue_reset(std::move_only_function<void(VmWork&, ObjectId queue)> call) {
    queue_reset_ = std::move(call);
  }

  VmWork& add_vm(ObjectId id, base::Vmid vmid, IbWindow ibs);
  // Ends the VM's work with `why`: commands not launched are dropped, their signals fail; slices in
  // flight get 100 ms to run out (the caller has taken their memory away, so that they cannot do
  // harm), then the queue is reset, then the whole instance. `drained` is called, on a later turn,
  // when no engine can touch the VM any more.
  void kill_vm(VmWork& vm, base::Errc why, std::move_only_function<void()> drained);
  // Without queues and drained.
  void remove_vm(VmWork& vm);

  WorkQueue& add_queue(ObjectId id, VmWork& vm, QueueRing ring, FindFence find_fence,
                       bool high_priority);
  // Commands not launched are dropped, their signals fail with kNotFound. `gone` when none of its
  // slices is in flight any more; then the queue does not exist.
  void remove_queue(WorkQueue& queue, std::move_only_function<void()> gone);

  // Which VM's work is on a hardware queue; null for none. For interrupts that name a queue.
  VmWork* vm_on(unsigned engine, unsigned queue);
  // The hardware queue stopped by itself (fault without default page, bus error, refused by the
  // fabric). The caller kills the VM; the lane is reset without waiting.
  void queue_stopped(unsigned engine, unsigned queue);
  // Everything ends with `why` and stays so: the device is lost.
  void fail_all(base::Errc why);

  // From the reactor's poller: completes, launches, moves resets on. True when there was work.
  bool poll();
  void request_wake();

  const SchedulerCounters& counters() const { return counters_; }
  unsigned lanes() const;
  unsigned in_flight() const { return static_cast<unsigned>(slices_.size()); }

 private:
  struct Flying {
    VmWork* vm;
    WorkQueue* queue;
    unsigned slot;
    std::vector<SliceSignal> signals;
    std::uint64_t bytes;
  };
  enum class LaneState : std::uint8_t { kGood, kWaitReset, kResetting };
  struct LaneEntry {
    Lane* lane;
    unsigned engine;
    VmWork* vm = nullptr;
    LaneState state = LaneState::kGood;
    TimePoint since{};
  };

  bool complete();
  bool launch();
  bool run_vm(VmWork& vm, bool others_wait);
  bool run_queue(VmWork& vm, WorkQueue& queue);
  Lane* lane_for(VmWork& vm, WorkQueue& queue);
  Lane* take_free_lane(VmWork& vm);
  void release_idle_lanes(bool others_wait);
  void finish(SliceId id, std::optional<base::Errc> why);
  void lose(LaneEntry& entry, base::Errc why);
  bool move_resets();
  void begin_reset(LaneEntry& entry);
  void reset_engine(unsigned engine);
  bool call_drained();
  LaneEntry& entry_of(const Lane& lane);

  Reactor& reactor_;
  std::vector<Engine> engines_;
  std::vector<LaneEntry> lanes_;
  std::list<VmWork> vms_;
  std::list<WorkQueue> queues_;
  std::unordered_map<SliceId, Flying> slices_;
  SliceId next_slice_ = 1;
  std::uint64_t turns_ = 0;  // of queues
  struct Leaving {
    WorkQueue* queue;
    std::move_only_function<void()> gone;
  };
  std::vector<Leaving> leaving_;
  std::move_only_function<void()> drain_interrupts_;
  std::move_only_function<void(VmWork&, ObjectId)> queue_reset_;
  std::optional<base::Errc> failed_;
  Slice scratch_;
  SchedulerCounters counters_;
};

}  // namespace gpuumd
