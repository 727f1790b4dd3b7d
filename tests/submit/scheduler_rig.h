// A scheduler with one engine and as many lanes as a test wants, VMs with memory of their own, and
// clients that write commands into their rings.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <list>
#include <map>
#include <memory>

#include "daemon/submit/fence.h"
#include "daemon/submit/scheduler.h"
#include "gpuumd/ring.h"
#include "tests/submit/engine_rig.h"

namespace gpuumd::test {

// The client's end of a queue.
class ClientQueue {
 public:
  ClientQueue(base::UniqueFd memory, std::uint32_t slots)
      : mapping_(*base::Mapping::map(memory.get(), 0,
                                     wire::kQueueSlotsOffset + slots * sizeof(wire::CommandSlot),
                                     PROT_READ | PROT_WRITE)),
        slots_(slots) {}

  void copy(std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
    put(wire::CopyCommand{{wire::Operation::kCopy, 1, 0}, to, from, bytes, {}});
  }
  void fill(std::uint64_t to, std::uint64_t bytes, std::uint32_t pattern) {
    put(wire::FillCommand{{wire::Operation::kFill, 1, 0}, to, bytes, pattern, 0, {}});
  }
  void add(std::uint64_t to, std::uint64_t operand) {
    put(wire::AtomicCommand{{wire::Operation::kAtomic, 1, 0}, to, 1, 8, operand, 0, {}});
  }
  void bit_or(std::uint64_t to) {
    put(wire::AtomicCommand{{wire::Operation::kAtomic, 1, 0}, to, 3, 8, 1, 0, {}});
  }
  void wait(std::uint64_t fence, std::uint64_t point) {
    put(wire::FenceCommand{{wire::Operation::kWait, 1, 0}, fence, point, {}});
  }
  void signal(std::uint64_t fence, std::uint64_t point) {
    put(wire::FenceCommand{{wire::Operation::kSignal, 1, 0}, fence, point, {}});
  }
  void publish_tail(std::uint32_t tail) { store_release(page()->ring.tail, tail); }
  std::uint32_t taken() const { return load_acquire(mapping_.at<wire::QueuePage>()->ring.head); }

 private:
  wire::QueuePage* page() { return mapping_.at<wire::QueuePage>(); }
  template <class T>
  void put(const T& command) {
    auto* slots = mapping_.at<wire::CommandSlot>(wire::kQueueSlotsOffset);
    std::memcpy(&slots[tail_ & (slots_ - 1)], &command, sizeof(command));
    publish_tail(++tail_);
  }
  base::Mapping mapping_;
  std::uint32_t slots_;
  std::uint32_t tail_ = 0;
};

struct SchedulerRig : EngineRig {
  static constexpr std::size_t kDataBytes = 8 * base::kMiB;
  static constexpr auto kStep = Scheduler::kStepDeadline;
  static constexpr Duration kTick = std::chrono::milliseconds(1);

  explicit SchedulerRig(unsigned lanes) {
    Scheduler::Engine set{SdmaInstance(registers(), "SDMA 0.0"), {}};
    for (unsigned q = 0; q < lanes; ++q) set.lanes.emplace_back(make_queue(q), allocate(64));
    std::vector<Scheduler::Engine> engines;
    engines.push_back(std::move(set));
    scheduler = std::make_unique<Scheduler>(reactor, std::move(engines));
    scheduler->on_queue_reset(
        [this](VmWork& vm, ObjectId queue) { resets.emplace_back(vm.id(), queue); });
    scheduler->start();
  }

  struct TestVm {
    VmWork* work;
    base::Vmid vmid;
    fake::GpuMemory::Piece ibs, data, fences;
    bool drained = false;
  };
  TestVm& add_vm(std::uint8_t vmid) {
    auto& vm = vms.emplace_back();
    vm.vmid = base::Vmid(vmid);
    vm.ibs = memory.allocate(vmid, IbWindow::kBytes);
    vm.data = memory.allocate(vmid, kDataBytes);
    vm.fences = memory.allocate(vmid, 4096);
    vm.work =
        &scheduler->add_vm(ObjectId(1000u + vmid), vm.vmid, {vm.ibs.cpu, base::GpuVa(vm.ibs.at)});
    return vm;
  }
  void kill(TestVm& vm, base::Errc why = base::Errc::kFault) {
    scheduler->kill_vm(*vm.work, why, [&vm] { vm.drained = true; });
  }

  struct TestQueue {
    std::uint64_t id;
    WorkQueue* work;
    std::unique_ptr<ClientQueue> client;
    bool gone = false;
    ClientQueue* operator->() { return client.get(); }
  };
  TestQueue& add_queue(TestVm& vm, bool high = false, std::uint32_t slots = 256) {
    auto ring = QueueRing::create(slots);
    EXPECT_TRUE(ring);
    auto& queue = queues.emplace_back();
    queue.id = ++last_id;
    queue.client = std::make_unique<ClientQueue>(ring->take_descriptor(), slots);
    queue.work = &scheduler->add_queue(
        ObjectId(queue.id), *vm.work, std::move(*ring),
        [this, &vm](ObjectId id) -> FencePlace {
          const auto it = fences.find(id.value());
          if (it == fences.end()) return {};
          return {it->second, base::GpuVa(vm.fences.at + 64 * it->second->index())};
        },
        high);
    return queue;
  }
  void remove(TestQueue& queue) {
    scheduler->remove_queue(*queue.work, [&queue] { queue.gone = true; });
  }

  // In the fence page of `vm`; its index is its id.
  Fence& add_fence(TestVm& vm, std::uint64_t id) {
    auto& slot = reinterpret_cast<wire::FenceSlot*>(vm.fences.cpu)[id];
    auto fence = std::make_shared<Fence>(ObjectId(id), slot, static_cast<std::uint32_t>(id));
    fences[id] = fence;
    return *fence;
  }

  // What the device's poller does.
  bool poll() {
    bool any = false;
    for (auto& queue : queues)
      if (!queue.gone) any |= queue.work->read_ring().value_or(false);
    any |= scheduler->poll();
    return any;
  }
  // Polls while there is work; a reset that waits for its answer counts as work, so a limit.
  void settle() {
    for (int i = 0; i < 50; ++i)
      if (!poll()) return;
  }
  void run() {
    for (int i = 0; i < 200; ++i) {
      settle();
      if (engine.run_all() == 0) break;
    }
    settle();
  }
  void advance(Duration by) {
    reactor.advance(by);
    settle();
  }
  std::vector<unsigned> lanes_of(TestVm& vm) {
    std::vector<unsigned> held;
    for (unsigned q = 0; q < scheduler->lanes(); ++q)
      if (scheduler->vm_on(0, q) == vm.work) held.push_back(q);
    return held;
  }

  std::list<TestVm> vms;
  std::list<TestQueue> queues;
  std::map<std::uint64_t, std::shared_ptr<Fence>> fences;
  std::uint64_t last_id = 0;
  std::vector<std::pair<ObjectId, ObjectId>> resets;
  std::unique_ptr<Scheduler> scheduler;
};

}  // namespace gpuumd::test
