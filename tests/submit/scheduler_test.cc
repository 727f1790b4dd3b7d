#include "daemon/submit/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/submit/scheduler_rig.h"

namespace gpuumd {
namespace {

using base::Errc;
using test::SchedulerRig;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

TEST(SchedulerRuns, ACopyAndItsFence) {
  SchedulerRig rig(4);
  auto& vm = rig.add_vm(3);
  auto& fence = rig.add_fence(vm, 1);
  auto& queue = rig.add_queue(vm);
  std::memset(vm.data.cpu, 0x5A, 5000);
  queue->copy(vm.data.at, vm.data.at + 8192, 5000);
  queue->signal(1, 0x1'0000'0001);
  rig.settle();
  EXPECT_EQ(fence.reached(), 0u);
  EXPECT_EQ(rig.scheduler->in_flight(), 1u);
  rig.run();
  EXPECT_EQ(fence.reached(), 0x1'0000'0001u);
  EXPECT_EQ(vm.fences.word(64), 0x1'0000'0001u) << "the client's copy, by its own commands";
  EXPECT_EQ(std::memcmp(vm.data.cpu, vm.data.cpu + 8192, 5000), 0);
  EXPECT_EQ(rig.scheduler->in_flight(), 0u);
  EXPECT_EQ(rig.scheduler->counters().slices, 1u);
  EXPECT_EQ(rig.scheduler->counters().bytes, 5000u);
  EXPECT_THAT(rig.lanes_of(vm), IsEmpty()) << "an idle VM holds no lane";
  ASSERT_THAT(rig.engine.indirects, SizeIs(1));
  EXPECT_EQ(rig.engine.indirects[0].vmid, 3u);
}

// The client's fence page is its own to forge; the daemon believes its own fence alone.
TEST(SchedulerRuns, AForgedFenceDecidesNothing) {
  SchedulerRig rig(2);
  auto& vm = rig.add_vm(3);
  auto& fence = rig.add_fence(vm, 1);
  auto& queue = rig.add_queue(vm);
  queue->fill(vm.data.at, 64, 1);
  queue->signal(1, 5);
  rig.settle();
  vm.fences.word(64) = 5;
  rig.settle();
  EXPECT_EQ(fence.reached(), 0u);
  EXPECT_EQ(rig.scheduler->in_flight(), 1u);
}

TEST(SchedulerRuns, ALargeCopyGoesInSlices) {
  SchedulerRig rig(2);
  auto& vm = rig.add_vm(3);
  auto& fence = rig.add_fence(vm, 1);
  auto& queue = rig.add_queue(vm);
  queue->fill(vm.data.at, SchedulerRig::kDataBytes, 0x11223344);
  queue->fill(vm.data.at, SchedulerRig::kDataBytes - 4, 0x55667788);
  queue->signal(1, 1);
  rig.settle();
  EXPECT_EQ(rig.scheduler->in_flight(), Lane::kMaxInFlight) << "in order, so on one lane";
  EXPECT_THAT(rig.lanes_of(vm), SizeIs(1));
  rig.run();
  EXPECT_EQ(fence.reached(), 1u);
  EXPECT_EQ(vm.data.half(0), 0x55667788u);
  EXPECT_EQ(vm.data.half(SchedulerRig::kDataBytes - 4), 0x11223344u);
  EXPECT_GE(rig.scheduler->counters().slices, 4u);
}

TEST(SchedulerRuns, WaitsOccupyNoHardware) {
  SchedulerRig rig(4);
  auto& a = rig.add_vm(3);
  auto& b = rig.add_vm(4);
  auto& fence = rig.add_fence(a, 1);
  rig.add_fence(b, 2);
  auto& producer = rig.add_queue(a);
  auto& consumer = rig.add_queue(b);
  consumer->wait(1, 1);
  consumer->fill(b.data.at, 64, 9);
  consumer->signal(2, 1);
  rig.settle();
  EXPECT_EQ(rig.scheduler->in_flight(), 0u);
  EXPECT_THAT(rig.lanes_of(b), IsEmpty());
  EXPECT_FALSE(rig.poll()) << "a wait that is not satisfied is no work";
  producer->signal(1, 1);
  rig.run();
  EXPECT_EQ(fence.reached(), 1u);
  EXPECT_EQ(rig.fences[2]->reached(), 1u);
  EXPECT_EQ(b.data.half(), 9u);
}

TEST(SchedulerRuns, AWrongCommandBreaksItsQueueAlone) {
  SchedulerRig rig(4);
  auto& vm = rig.add_vm(3);
  auto& early = rig.add_fence(vm, 1);
  auto& late = rig.add_fence(vm, 2);
  auto& other = rig.add_fence(vm, 3);
  auto& queue = rig.add_queue(vm);
  auto& good = rig.add_queue(vm);
  queue->fill(vm.data.at, 64, 1);
  queue->signal(1, 1);
  queue->bit_or(vm.data.at);  // the engine has no such atomic
  queue->fill(vm.data.at, 64, 2);
  queue->signal(2, 1);
  good->signal(3, 1);
  rig.run();
  EXPECT_EQ(early.reached(), 1u);
  EXPECT_FALSE(early.failure(1)) << "what came before it still ends well";
  EXPECT_EQ(late.failure(1), Errc::kUnsupported);
  EXPECT_EQ(vm.data.half(), 1u);
  EXPECT_FALSE(other.failure(1));
  EXPECT_EQ(other.reached(), 1u);
  queue->signal(2, 2);
  rig.run();
  EXPECT_EQ(late.failure(2), Errc::kUnsupported) << "and so does all that follows";
}

TEST(SchedulerRuns, AScribbledRingIsAProtocolError) {
  SchedulerRig rig(1);
  auto& vm = rig.add_vm(3);
  auto& queue = rig.add_queue(vm);
  queue->publish_tail(1000);
  EXPECT_EQ(queue.work->read_ring().error().code, Errc::kProtocol);
}

// A client that submits too fast is slowed down by its own ring.
TEST(SchedulerRuns, LR_7_ReadAheadIsBounded) {
  SchedulerRig rig(1);
  auto& vm = rig.add_vm(3);
  rig.add_fence(vm, 1);
  auto& queue = rig.add_queue(vm);
  queue->wait(1, 1);
  for (int i = 0; i < 200; ++i) queue->fill(vm.data.at, 4, 1);
  rig.settle();
  EXPECT_EQ(queue->taken(), WorkQueue::kReadAhead);
}

// ---- lanes ----

TEST(SchedulerLanes, AVmHoldsTwoAtMost) {
  SchedulerRig rig(10);
  auto& vm = rig.add_vm(3);
  for (int i = 0; i < 5; ++i) {
    auto& queue = rig.add_queue(vm);
    for (int n = 0; n < 4; ++n) queue->fill(vm.data.at, 4 * base::kMiB, 1);
  }
  rig.settle();
  EXPECT_THAT(rig.lanes_of(vm), SizeIs(Scheduler::kLanesPerVm));
  EXPECT_EQ(rig.scheduler->in_flight(), Scheduler::kLanesPerVm * Lane::kMaxInFlight);
  rig.run();
  EXPECT_EQ(rig.scheduler->counters().slices, 20u);
}

TEST(SchedulerLanes, AFreeLaneGoesToTheLongestWaiting) {
  SchedulerRig rig(1);
  auto& a = rig.add_vm(3);
  auto& b = rig.add_vm(4);
  auto& c = rig.add_vm(5);
  auto& qa = rig.add_queue(a);
  auto& qb = rig.add_queue(b);
  auto& qc = rig.add_queue(c);
  for (int i = 0; i < 6; ++i) qa->fill(a.data.at, 4 * base::kMiB, 1);
  rig.settle();
  ASSERT_THAT(rig.lanes_of(a), SizeIs(1));
  rig.advance(SchedulerRig::kTick);
  qc->fill(c.data.at, 64, 1);  // first to wait, though it is the last in the list
  rig.settle();
  rig.advance(SchedulerRig::kTick);
  qb->fill(b.data.at, 64, 1);
  rig.settle();
  EXPECT_EQ(rig.scheduler->in_flight(), 2u) << "with others waiting a gets nothing new";
  rig.advance(SchedulerRig::kTick);
  rig.engine.run_all();
  rig.settle();
  EXPECT_THAT(rig.lanes_of(c), SizeIs(1));
  rig.engine.run_all();
  rig.settle();
  EXPECT_THAT(rig.lanes_of(b), SizeIs(1));
  rig.engine.run_all();
  rig.settle();
  EXPECT_THAT(rig.lanes_of(a), SizeIs(1)) << "it has waited in its turn";
  rig.run();
  EXPECT_EQ(rig.scheduler->in_flight(), 0u);
  EXPECT_EQ(rig.scheduler->counters().slices, 8u);
}

TEST(SchedulerLanes, HighPriorityGoesFirst) {
  SchedulerRig rig(1);
  auto& a = rig.add_vm(3);
  auto& low = rig.add_vm(4);
  auto& high = rig.add_vm(5);
  auto& qa = rig.add_queue(a);
  auto& ql = rig.add_queue(low);
  auto& qh = rig.add_queue(high, true);
  qa->fill(a.data.at, 64, 1);
  rig.settle();
  ql->fill(low.data.at, 64, 1);
  rig.settle();
  rig.advance(SchedulerRig::kTick);
  qh->fill(high.data.at, 64, 1);
  rig.settle();
  rig.engine.run_all();
  rig.settle();
  EXPECT_THAT(rig.lanes_of(high), SizeIs(1)) << "it came last and has the higher priority";
  rig.run();
  std::vector<unsigned> order;
  for (const auto& ib : rig.engine.indirects) order.push_back(ib.vmid);
  EXPECT_THAT(order, ElementsAre(3, 5, 4));
}

TEST(SchedulerLanes, QueuesOfAVmTakeTurns) {
  SchedulerRig rig(1);
  auto& vm = rig.add_vm(3);
  std::vector<Fence*> fences;
  for (std::uint64_t q = 1; q <= 3; ++q) {
    fences.push_back(&rig.add_fence(vm, q));
    auto& queue = rig.add_queue(vm);
    for (std::uint64_t i = 1; i <= 6; ++i) {
      queue->fill(vm.data.at, 4 * base::kMiB, 1);
      queue->signal(q, i);
    }
  }
  for (int i = 0; i < 100 && fences[0]->reached() < 6; ++i) {
    rig.settle();
    rig.engine.run(0, 3);  // about a slice
    rig.settle();
    const auto [least, most] =
        std::ranges::minmax({fences[0]->reached(), fences[1]->reached(), fences[2]->reached()});
    ASSERT_LE(most - least, 2u) << "one queue runs away";
  }
  rig.run();
  for (auto* fence : fences) EXPECT_EQ(fence->reached(), 6u);
}

TEST(SchedulerLanes, IbSlotsInFlightAreDistinctAndComeBack) {
  SchedulerRig rig(10);
  auto& vm = rig.add_vm(3);
  for (int i = 0; i < 3; ++i) {
    auto& queue = rig.add_queue(vm);
    for (int n = 0; n < 30; ++n) queue->fill(vm.data.at, 4 * base::kMiB, n);
  }
  std::size_t checked = 0;
  for (int i = 0; i < 200; ++i) {
    rig.settle();
    const auto before = rig.engine.indirects.size();
    const auto flying = rig.scheduler->in_flight();
    rig.engine.run_all();
    std::set<std::uint64_t> slots;
    for (auto n = before; n < rig.engine.indirects.size(); ++n) {
      const auto at = rig.engine.indirects[n].at;
      EXPECT_TRUE(at >= vm.ibs.at && at < vm.ibs.at + IbWindow::kBytes);
      slots.insert(at);
    }
    ASSERT_EQ(slots.size(), flying);
    checked += flying;
    if (flying == 0) break;
  }
  EXPECT_EQ(checked, 90u);
}

// Many VMs on one lane: nobody starves.
TEST(SchedulerLanes, EveryVmGetsItsTurn) {
  SchedulerRig rig(2);
  for (std::uint8_t v = 3; v < 16; ++v) {
    auto& vm = rig.add_vm(v);
    rig.add_fence(vm, v);
    auto& queue = rig.add_queue(vm, v % 5 == 0);
    for (std::uint64_t i = 1; i <= 4; ++i) {
      queue->fill(vm.data.at, 4 * base::kMiB, 1);
      queue->signal(v, i);
    }
  }
  rig.run();
  for (const auto& [id, fence] : rig.fences) EXPECT_EQ(fence->reached(), 4u) << id;
}

TEST(SchedulerLanes, SleepingAsksEachBusyLaneForATrap) {
  SchedulerRig rig(4);
  auto& a = rig.add_vm(3);
  auto& b = rig.add_vm(4);
  rig.add_queue(a)->fill(a.data.at, 64, 1);
  rig.add_queue(b)->fill(b.data.at, 64, 1);
  rig.settle();
  rig.scheduler->request_wake();
  rig.scheduler->request_wake();
  rig.engine.run_all();
  EXPECT_THAT(rig.engine.traps, SizeIs(2));
}

}  // namespace
}  // namespace gpuumd
