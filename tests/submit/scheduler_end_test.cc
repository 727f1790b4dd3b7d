// How work ends before its time: dead VMs, stopped queues, resets, queues that are removed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/submit/scheduler.h"
#include "tests/submit/scheduler_rig.h"

namespace gpuumd {
namespace {

using base::Errc;
using test::SchedulerRig;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;

struct DeadVm : testing::Test {
  SchedulerRig rig{4};
  SchedulerRig::TestVm& vm = rig.add_vm(3);
  SchedulerRig::TestVm& other = rig.add_vm(4);
  SchedulerRig::TestQueue& queue = rig.add_queue(vm);
  SchedulerRig::TestQueue& neighbour = rig.add_queue(other);
  Fence& fence = rig.add_fence(vm, 1);
  Fence& fence_of_other = rig.add_fence(other, 2);

  // Two slices in flight and more behind them.
  void load(SchedulerRig::TestVm& of, SchedulerRig::TestQueue& on, std::uint64_t id) {
    for (std::uint64_t i = 1; i <= 4; ++i) {
      on->fill(of.data.at, 4 * base::kMiB, static_cast<std::uint32_t>(i));
      on->signal(id, i);
    }
    rig.settle();
  }
  unsigned lane() { return rig.lanes_of(vm).at(0); }
  unsigned lane_of_other() { return rig.lanes_of(other).at(0); }
};

TEST_F(DeadVm, FirstStepWhatIsInFlightRunsOut) {
  load(vm, queue, 1);
  rig.kill(vm);
  EXPECT_EQ(fence.failure(1), Errc::kFault) << "nobody waits for a dead VM";
  EXPECT_EQ(fence.reached(), 4u);
  EXPECT_FALSE(vm.drained) << "never from inside the call";
  rig.settle();
  EXPECT_FALSE(vm.drained) << "the engine still runs";
  rig.advance(SchedulerRig::kStep);
  EXPECT_FALSE(vm.drained);
  rig.engine.run_all();
  rig.settle();
  EXPECT_TRUE(vm.drained);
  EXPECT_EQ(rig.engine.queue_resets, 0u);
  EXPECT_EQ(rig.scheduler->counters().slices, 2u) << "what was not launched never is";
  EXPECT_EQ(rig.scheduler->counters().slices_lost, 2u) << "they ran against dummy pages";
  EXPECT_THAT(rig.lanes_of(vm), IsEmpty());
}

TEST_F(DeadVm, SecondStepResetsItsQueueAndTouchesNobodyElse) {
  load(vm, queue, 1);
  load(other, neighbour, 2);
  rig.engine.hung[lane()] = true;
  const auto stuck = lane();
  rig.kill(vm);
  rig.advance(SchedulerRig::kStep + SchedulerRig::kTick);
  EXPECT_EQ(rig.engine.queue_resets, 1u);
  rig.settle();
  EXPECT_TRUE(vm.drained);
  EXPECT_EQ(rig.scheduler->counters().queue_resets, 1u);
  EXPECT_EQ(rig.scheduler->counters().instance_resets, 0u);
  rig.run();
  EXPECT_EQ(fence_of_other.reached(), 4u);
  EXPECT_FALSE(fence_of_other.failure(4));
  EXPECT_THAT(rig.resets, IsEmpty());
  // The lane is good again: a third VM may get it.
  rig.engine.hung[stuck] = false;
  EXPECT_TRUE(rig.engine.enabled(stuck));
  EXPECT_EQ(rig.scheduler->vm_on(0, stuck), nullptr);
}

TEST_F(DeadVm, ThirdStepResetsTheInstanceAndNothingIsReplayed) {
  load(vm, queue, 1);
  neighbour->add(other.data.at, 1);
  neighbour->signal(2, 1);
  neighbour->wait(2, 1);
  neighbour->add(other.data.at, 1);  // behind it, not launched
  neighbour->signal(2, 2);
  rig.settle();
  rig.engine.deaf[lane()] = rig.engine.hung[lane()] = true;
  // The neighbour's slice has run, its fence has not been written: done or not, nobody knows.
  while (rig.engine.indirects.empty()) rig.engine.run(lane_of_other(), 1);
  rig.engine.hung[lane_of_other()] = true;
  ASSERT_EQ(other.data.word(), 1u);

  rig.kill(vm);
  rig.advance(SchedulerRig::kStep + SchedulerRig::kTick);
  EXPECT_EQ(rig.engine.queue_resets, 1u);
  EXPECT_EQ(rig.engine.instance_resets, 0u);
  EXPECT_FALSE(vm.drained) << "the engine may still touch its memory";
  EXPECT_FALSE(fence_of_other.failure(1));
  rig.advance(SchedulerRig::kStep);
  EXPECT_EQ(rig.engine.instance_resets, 1u);
  EXPECT_TRUE(vm.drained);
  EXPECT_EQ(rig.scheduler->counters().instance_resets, 1u);
  EXPECT_EQ(fence_of_other.failure(1), Errc::kReset);
  EXPECT_EQ(fence_of_other.failure(2), Errc::kReset);
  EXPECT_THAT(rig.resets, ElementsAre(Pair(other.work->id(), ObjectId(neighbour.id))));
  EXPECT_EQ(neighbour.work->broken_by(), Errc::kReset);
  EXPECT_FALSE(other.work->dead()) << "the VM itself lives";
  rig.run();
  EXPECT_EQ(other.data.word(), 1u) << "an atomic is not done twice";

  auto& fresh = rig.add_queue(other);
  auto& again = rig.add_fence(other, 3);
  fresh->add(other.data.at, 1);
  fresh->signal(3, 1);
  rig.run();
  EXPECT_EQ(again.reached(), 1u);
  EXPECT_FALSE(again.failure(1));
  EXPECT_EQ(other.data.word(), 2u);
}

TEST_F(DeadVm, TwoDeadVmsResetOneAfterTheOther) {
  load(vm, queue, 1);
  load(other, neighbour, 2);
  rig.engine.hung[lane()] = rig.engine.hung[lane_of_other()] = true;
  rig.kill(vm);
  rig.kill(other, Errc::kNotFound);
  rig.advance(SchedulerRig::kStep + SchedulerRig::kTick);
  rig.settle();
  EXPECT_EQ(rig.engine.queue_resets, 2u);
  EXPECT_TRUE(vm.drained);
  EXPECT_TRUE(other.drained);
  EXPECT_EQ(fence.failure(1), Errc::kFault);
  EXPECT_EQ(fence_of_other.failure(1), Errc::kNotFound);
}

TEST_F(DeadVm, AnIdleOneIsDrainedOnTheNextTurn) {
  rig.kill(vm);
  EXPECT_FALSE(vm.drained);
  rig.settle();
  EXPECT_TRUE(vm.drained);
  bool again = false;
  rig.scheduler->kill_vm(*vm.work, Errc::kNotFound, [&] { again = true; });
  rig.settle();
  EXPECT_TRUE(again) << "every caller is told";
}

TEST_F(DeadVm, ItsQueuesTakeNothingMore) {
  rig.kill(vm);
  auto& late = rig.add_queue(vm);
  queue->fill(vm.data.at, 64, 1);
  queue->signal(1, 1);
  late->signal(1, 2);
  rig.run();
  EXPECT_EQ(fence.failure(1), Errc::kFault);
  EXPECT_EQ(fence.failure(2), Errc::kFault);
  EXPECT_EQ(rig.scheduler->counters().slices, 0u);
}

TEST_F(DeadVm, DrainedMayRemoveItAll) {
  load(vm, queue, 1);
  rig.kill(vm);
  bool removed = false;
  rig.scheduler->kill_vm(*vm.work, Errc::kFault, [&] {
    rig.scheduler->remove_queue(*queue.work, [&] {
      queue.gone = true;
      rig.scheduler->remove_vm(*vm.work);
      removed = true;
    });
  });
  rig.run();
  EXPECT_TRUE(removed);
  load(other, neighbour, 2);
  rig.run();
  EXPECT_EQ(fence_of_other.reached(), 4u);
}

// The vector of a fault is in the ring before the fence behind it: it is handled first.
TEST_F(DeadVm, ASliceThatFaultedIsNotDone) {
  rig.scheduler->on_completion([&, told = false]() mutable {
    if (!std::exchange(told, true)) rig.kill(vm);
  });
  queue->fill(vm.data.at, 64, 1);
  queue->signal(1, 1);
  rig.run();
  EXPECT_EQ(fence.failure(1), Errc::kFault);
  EXPECT_TRUE(vm.drained);
}

TEST_F(DeadVm, AStoppedQueueIsResetWithoutWaiting) {
  load(vm, queue, 1);
  load(other, neighbour, 2);
  const auto stopped = lane();
  rig.engine.hung[stopped] = true;
  EXPECT_EQ(rig.scheduler->vm_on(0, stopped), vm.work);
  EXPECT_EQ(rig.scheduler->vm_on(1, stopped), nullptr);
  rig.kill(vm, Errc::kRefused);
  rig.scheduler->queue_stopped(0, stopped);
  rig.scheduler->queue_stopped(0, stopped);
  rig.settle();
  EXPECT_EQ(rig.engine.queue_resets, 1u);
  EXPECT_TRUE(vm.drained);
  EXPECT_EQ(fence.failure(1), Errc::kRefused);
  rig.run();
  EXPECT_FALSE(fence_of_other.failure(4));
  EXPECT_EQ(fence_of_other.reached(), 4u);
}

// Nobody is to blame: the queue that lost its work breaks, its VM lives.
TEST_F(DeadVm, AStoppedQueueOfALivingVm) {
  load(vm, queue, 1);
  rig.scheduler->queue_stopped(0, lane());
  rig.settle();
  EXPECT_EQ(rig.engine.queue_resets, 1u);
  EXPECT_EQ(fence.failure(1), Errc::kReset);
  EXPECT_THAT(rig.resets, ElementsAre(Pair(vm.work->id(), ObjectId(queue.id))));
  auto& fresh = rig.add_queue(vm);
  auto& again = rig.add_fence(vm, 3);
  fresh->signal(3, 1);
  rig.run();
  EXPECT_EQ(again.reached(), 1u);
}

// ---- queues that go ----

TEST_F(DeadVm, RemovingAQueueWaitsForWhatIsInFlight) {
  load(vm, queue, 1);
  rig.remove(queue);
  EXPECT_FALSE(queue.gone);
  rig.scheduler->poll();
  EXPECT_FALSE(queue.gone);
  EXPECT_EQ(fence.failure(4), Errc::kNotFound) << "what was not launched";
  rig.engine.run_all();
  rig.scheduler->poll();
  EXPECT_TRUE(queue.gone);
  EXPECT_EQ(rig.scheduler->counters().slices, 2u);
  load(other, neighbour, 2);
  rig.run();
  EXPECT_EQ(fence_of_other.reached(), 4u);
  rig.kill(vm);
  rig.settle();
  EXPECT_TRUE(vm.drained);
  rig.scheduler->remove_vm(*vm.work);
}

TEST_F(DeadVm, AFenceOutlivesItsDestructionWhileWorkIsInFlight) {
  queue->signal(1, 1);
  rig.settle();
  std::weak_ptr<Fence> watch = rig.fences[1];
  rig.fences.erase(1);
  EXPECT_FALSE(watch.expired()) << "the engine may still write its slot";
  rig.run();
  EXPECT_TRUE(watch.expired());
}

TEST_F(DeadVm, FailAllEndsEverythingForGood) {
  load(vm, queue, 1);
  load(other, neighbour, 2);
  rig.engine.hung[lane()] = true;
  rig.kill(vm);
  rig.scheduler->fail_all(Errc::kDeviceLost);
  EXPECT_EQ(fence.failure(1), Errc::kFault) << "it was dead before";
  EXPECT_EQ(fence_of_other.failure(1), Errc::kDeviceLost);
  EXPECT_EQ(fence_of_other.reached(), 4u);
  EXPECT_EQ(rig.scheduler->in_flight(), 0u);
  rig.settle();
  EXPECT_TRUE(vm.drained) << "nothing can touch it any more";
  auto& late_vm = rig.add_vm(6);
  EXPECT_TRUE(late_vm.work->dead());
  auto& late = rig.add_queue(late_vm);
  auto& late_fence = rig.add_fence(late_vm, 5);
  late->signal(5, 1);
  rig.run();
  EXPECT_EQ(late_fence.failure(1), Errc::kDeviceLost);
  rig.remove(late);
  rig.scheduler->poll();
  EXPECT_TRUE(late.gone);
  EXPECT_EQ(rig.engine.queue_resets, 0u) << "no register of a lost device is touched";
}

TEST_F(DeadVm, FailAllInTheMiddleOfAReset) {
  load(vm, queue, 1);
  rig.engine.deaf[lane()] = rig.engine.hung[lane()] = true;
  rig.kill(vm);
  rig.advance(SchedulerRig::kStep + SchedulerRig::kTick);
  ASSERT_EQ(rig.engine.queue_resets, 1u);
  rig.scheduler->fail_all(Errc::kDeviceLost);
  rig.settle();
  EXPECT_TRUE(vm.drained);
  rig.advance(2 * SchedulerRig::kStep);
  EXPECT_EQ(rig.engine.instance_resets, 0u);
}

}  // namespace
}  // namespace gpuumd
