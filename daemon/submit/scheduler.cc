#include "daemon/submit/scheduler.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <tuple>
#include <utility>

#include "daemon/submit/fence.h"

namespace gpuumd {

Scheduler::Scheduler(Reactor& reactor, std::vector<Engine> engines)
    : reactor_(reactor), engines_(std::move(engines)) {
  for (unsigned e = 0; e < engines_.size(); ++e)
    for (auto& lane : engines_[e].lanes) lanes_.push_back({&lane, e});
}

Scheduler::~Scheduler() = default;

void Scheduler::start() {
  for (auto& entry : lanes_) entry.lane->program();
}

unsigned Scheduler::lanes() const { return static_cast<unsigned>(lanes_.size()); }

Scheduler::LaneEntry& Scheduler::entry_of(const Lane& lane) {
  return *std::ranges::find(lanes_, &lane, &LaneEntry::lane);
}

VmWork& Scheduler::add_vm(ObjectId id, base::Vmid vmid, IbWindow ibs) {
  auto& vm = vms_.emplace_back(id, vmid, ibs);
  if (failed_) vm.dead_ = failed_;
  return vm;
}

void Scheduler::remove_vm(VmWork& vm) {
  assert(vm.queues_.empty() && vm.in_flight_ == 0);
  for (auto& entry : lanes_)
    if (entry.vm == &vm) entry.vm = nullptr;
  vms_.remove_if([&](const VmWork& other) { return &other == &vm; });
}

void Scheduler::kill_vm(VmWork& vm, base::Errc why, std::move_only_function<void()> drained) {
  if (!vm.dead_) {
    vm.dead_ = why;
    vm.dead_since_ = reactor_.now();
    for (auto* queue : vm.queues_) queue->break_queue(why);
  }
  vm.on_drained_.push_back(std::move(drained));
}

WorkQueue& Scheduler::add_queue(ObjectId id, VmWork& vm, QueueRing ring, FindFence find_fence,
                                bool high_priority) {
  auto& queue = queues_.emplace_back(id, vm, std::move(ring), std::move(find_fence), high_priority);
  vm.queues_.push_back(&queue);
  if (vm.dead_) queue.break_queue(*vm.dead_);
  return queue;
}

void Scheduler::remove_queue(WorkQueue& queue, std::move_only_function<void()> gone) {
  queue.break_queue(base::Errc::kNotFound);
  leaving_.push_back({&queue, std::move(gone)});
}

VmWork* Scheduler::vm_on(unsigned engine, unsigned queue) {
  for (const auto& entry : lanes_)
    if (entry.engine == engine && entry.lane->queue_index() == queue) return entry.vm;
  return nullptr;
}

void Scheduler::queue_stopped(unsigned engine, unsigned queue) {
  for (auto& entry : lanes_)
    if (entry.engine == engine && entry.lane->queue_index() == queue &&
        entry.state == LaneState::kGood)
      begin_reset(entry);
}

void Scheduler::fail_all(base::Errc why) {
  failed_ = why;
  for (auto& vm : vms_)
    if (!vm.dead_) {
      vm.dead_ = why;
      for (auto* queue : vm.queues_) queue->break_queue(why);
    }
  for (auto& entry : lanes_) {
    lose(entry, why);
    entry.state = LaneState::kGood;  // nothing to wait for: the device is gone
    entry.vm = nullptr;
  }
}

// A slice has ended: its fences are told, its IB slot is free.
void Scheduler::finish(SliceId id, std::optional<base::Errc> why) {
  auto node = slices_.extract(id);
  assert(!node.empty());
  auto& flying = node.mapped();
  auto& vm = *flying.vm;
  vm.used_slots_ &= ~(1u << flying.slot);
  --vm.in_flight_;
  if (--flying.queue->in_flight == 0) flying.queue->lane = nullptr;
  if (why) ++counters_.slices_lost;
  for (const auto& signal : flying.signals) {
    if (why)
      signal.fence->fail(signal.point, *why);
    else
      signal.fence->reach(signal.point);
  }
}

bool Scheduler::complete() {
  bool any = false;
  for (auto& entry : lanes_) any |= entry.lane->look();
  if (!any) return false;
  // A fault that a finished slice has raised is in the interrupt ring by now, for vectors are
  // written before the fence behind them. It is handled first, so that the slice counts as failed.
  if (drain_interrupts_) drain_interrupts_();
  for (auto& entry : lanes_)
    any |= entry.lane->take_done([&](SliceId id) {
      // A dead VM's slice ran against dummy pages: what it signals has not happened.
      finish(id, slices_.at(id).vm->dead_);
    });
  return any;
}

// What was in flight on the lane has not been done, or not all of it.
void Scheduler::lose(LaneEntry& entry, base::Errc why) {
  for (const auto id : entry.lane->stop()) {
    auto& flying = slices_.at(id);
    auto* queue = flying.queue;
    const bool healthy = !flying.vm->dead_;
    if (healthy && !queue->broken()) {
      queue->break_queue(why);
      if (queue_reset_) queue_reset_(*flying.vm, queue->id());
    }
    finish(id, healthy ? why : flying.vm->dead_);
  }
}

void Scheduler::begin_reset(LaneEntry& entry) {
  lose(entry, base::Errc::kReset);
  entry.state = LaneState::kWaitReset;
  entry.since = reactor_.now();
}

// Third step: other VMs on this instance lose what they have in flight. Never replayed: an atomic
// is not idempotent.
void Scheduler::reset_engine(unsigned engine) {
  ++counters_.instance_resets;
  auto& instance = engines_[engine].instance;
  instance.halt();
  for (auto& entry : lanes_)
    if (entry.engine == engine) lose(entry, base::Errc::kReset);
  instance.start();
  for (auto& entry : lanes_) {
    if (entry.engine != engine) continue;
    entry.lane->program();
    entry.state = LaneState::kGood;
    entry.vm = nullptr;
  }
  for (auto& vm : vms_)
    std::erase_if(vm.lanes_, [&](Lane* lane) { return entry_of(*lane).vm != &vm; });
}

bool Scheduler::move_resets() {
  bool any = false;
  const auto now = reactor_.now();
  for (auto& entry : lanes_) {
    // First step: the dead VM's slices have 100 ms to run out.
    if (entry.state == LaneState::kGood && entry.vm != nullptr && entry.vm->dead_ &&
        !entry.lane->idle() && now - entry.vm->dead_since_ > kStepDeadline)
      begin_reset(entry);
    const bool instance_free = std::ranges::none_of(lanes_, [&](const LaneEntry& other) {
      return other.engine == entry.engine && other.state == LaneState::kResetting;
    });
    if (entry.state == LaneState::kWaitReset && instance_free) {
      ++counters_.queue_resets;
      engines_[entry.engine].instance.request_queue_reset(entry.lane->queue_index(),
                                                          now + kStepDeadline);
      entry.state = LaneState::kResetting;
    }
    if (entry.state != LaneState::kResetting) continue;
    any = true;  // the answer is a register: stay awake for it
    const auto answer = engines_[entry.engine].instance.poll_queue_reset(now);
    if (!answer) continue;
    if (!*answer) {
      reset_engine(entry.engine);
      continue;
    }
    entry.lane->program();
    entry.state = LaneState::kGood;
  }
  return any;
}

Lane* Scheduler::take_free_lane(VmWork& vm) {
  if (vm.lanes_.size() >= kLanesPerVm) return nullptr;
  for (auto& entry : lanes_) {
    if (entry.vm != nullptr || entry.state != LaneState::kGood || !entry.lane->idle()) continue;
    entry.vm = &vm;
    vm.lanes_.push_back(entry.lane);
    vm.waiting_since_.reset();
    return entry.lane;
  }
  if (vm.lanes_.empty() && !vm.waiting_since_) vm.waiting_since_ = reactor_.now();
  return nullptr;
}

// A queue's slices stay on one lane while any is in flight, so that they run in order.
Lane* Scheduler::lane_for(VmWork& vm, WorkQueue& queue) {
  if (queue.lane != nullptr) return queue.lane->has_room() ? queue.lane : nullptr;
  for (auto* lane : vm.lanes_)
    if (lane->idle() && lane->has_room()) return lane;
  if (auto* lane = take_free_lane(vm)) return lane;
  for (auto* lane : vm.lanes_)
    if (lane->has_room()) return lane;
  return nullptr;
}

bool Scheduler::run_queue(VmWork& vm, WorkQueue& queue) {
  if (std::popcount(vm.used_slots_) == IbWindow::kSlots) return false;
  auto* lane = lane_for(vm, queue);
  if (lane == nullptr) return false;
  scratch_.clear();
  queue.build(scratch_);
  if (scratch_.empty()) return true;                     // waits or an error were taken
  if (const auto good = check_ib(scratch_.ib); !good) {  // a mistake of ours, kept off the engine
    for (const auto& signal : scratch_.signals) signal.fence->fail(signal.point, good.error().code);
    queue.break_queue(good.error().code);
    return true;
  }

  const auto slot = static_cast<unsigned>(std::countr_one(vm.used_slots_));
  vm.used_slots_ |= 1u << slot;
  std::memcpy(vm.ibs_.cpu + slot * kIbBytes, scratch_.ib.data(), scratch_.ib.size() * 4);
  const auto id = next_slice_++;
  slices_.emplace(id, Flying{&vm, &queue, slot, std::move(scratch_.signals), scratch_.bytes});
  ++vm.in_flight_;
  ++queue.in_flight;
  queue.lane = lane;
  ++counters_.slices;
  counters_.bytes += scratch_.bytes;
  lane->launch(id, vm.vmid_, vm.ibs_.at + slot * kIbBytes,
               static_cast<std::uint32_t>(scratch_.ib.size()));
  return true;
}

// One slice of each queue that can run, high priority first. With others waiting for a lane a VM
// that holds one gets no new slice on it: the lane empties and is given away.
bool Scheduler::run_vm(VmWork& vm, bool others_wait) {
  if (vm.dead_ || (others_wait && !vm.lanes_.empty() && vm.in_flight_ > 0)) return false;
  bool any = false;
  // Whoever had its turn longest ago comes first.
  std::ranges::sort(vm.queues_, {}, &WorkQueue::last_turn);
  for (const bool high : {true, false})
    for (auto* queue : vm.queues_)
      if (queue->high_priority() == high && queue->ready() && run_queue(vm, *queue)) {
        queue->last_turn = ++turns_;
        any = true;
      }
  return any;
}

void Scheduler::release_idle_lanes(bool others_wait) {
  for (auto& entry : lanes_) {
    if (entry.vm == nullptr || !entry.lane->idle() || entry.state != LaneState::kGood) continue;
    const bool more = std::ranges::any_of(entry.vm->queues_,
                                          [](const WorkQueue* queue) { return queue->ready(); });
    if (more && !others_wait && !entry.vm->dead_) continue;
    std::erase(entry.vm->lanes_, entry.lane);
    entry.vm = nullptr;
  }
}

bool Scheduler::launch() {
  const auto has_work = [](const VmWork& vm) {
    return !vm.dead_ &&
           std::ranges::any_of(vm.queues_, [](const WorkQueue* queue) { return queue->ready(); });
  };
  const auto waits = [](const VmWork& vm) { return vm.waiting_since_.has_value(); };
  const bool others_wait = std::ranges::any_of(vms_, waits);
  release_idle_lanes(others_wait);

  std::vector<VmWork*> order;
  for (auto& vm : vms_) {
    if (has_work(vm))
      order.push_back(&vm);
    else
      vm.waiting_since_.reset();
  }
  const auto high = [](const VmWork* vm) {
    return std::ranges::any_of(vm->queues_, [](const WorkQueue* queue) {
      return queue->high_priority() && queue->ready();
    });
  };
  // Ids tell whose VM is older: a total order, whatever the sort keeps.
  std::ranges::sort(order, [&](const VmWork* a, const VmWork* b) {
    const auto key = [&](const VmWork* vm) {
      return std::tuple(!high(vm), vm->waiting_since_.value_or(TimePoint::max()), vm->id().value());
    };
    return key(a) < key(b);
  });
  bool any = false;
  for (auto* vm : order) any |= run_vm(*vm, others_wait && !waits(*vm));
  return any;
}

bool Scheduler::call_drained() {
  std::vector<std::move_only_function<void()>> calls;
  for (auto& vm : vms_) {
    if (vm.on_drained_.empty() || vm.in_flight_ > 0) continue;
    const bool resetting = std::ranges::any_of(lanes_, [&](const LaneEntry& entry) {
      return entry.vm == &vm && entry.state != LaneState::kGood;
    });
    if (resetting) continue;
    for (auto& call : std::exchange(vm.on_drained_, {})) calls.push_back(std::move(call));
  }
  std::erase_if(leaving_, [&](Leaving& leaving) {
    if (leaving.queue->in_flight > 0) return false;
    auto& vm = leaving.queue->vm();
    std::erase(vm.queues_, leaving.queue);
    queues_.remove_if([&](const WorkQueue& queue) { return &queue == leaving.queue; });
    calls.push_back(std::move(leaving.gone));
    return true;
  });
  for (auto& call : calls) call();  // last: a call may add or remove anything
  return !calls.empty();
}

bool Scheduler::poll() {
  bool any = complete();
  any |= move_resets();
  if (!failed_) any |= launch();
  any |= call_drained();
  return any;
}

void Scheduler::request_wake() {
  for (auto& entry : lanes_) entry.lane->request_wake();
}

}  // namespace gpuumd
