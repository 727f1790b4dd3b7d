#include "daemon/submit/fence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "daemon/ipc/status.h"

namespace gpuumd {
namespace {

using base::Errc;

struct FenceTest : testing::Test {
  wire::FenceSlot slot{};
  Fence fence{ObjectId(7), slot, 3};

  // A waiter's answer: the value, or minus the error.
  struct Answer {
    std::uint64_t value = 0;
    Errc error{};
    int calls = 0;
  };
  Fence::WaiterId wait(std::uint64_t point, Answer& answer) {
    return fence.wait(point, [&answer](base::Result<std::uint64_t> value) {
      ++answer.calls;
      if (value)
        answer.value = *value;
      else
        answer.error = value.error().code;
    });
  }
};

TEST_F(FenceTest, VMB_17_PointsRise) {
  EXPECT_EQ(fence.promise(0).error().code, Errc::kInvalidArgument);
  EXPECT_TRUE(fence.promise(5));
  EXPECT_EQ(fence.promise(5).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(fence.promise(4).error().code, Errc::kInvalidArgument);
  EXPECT_TRUE(fence.promise(6));
  EXPECT_EQ(fence.reached(), 0u);
}

TEST_F(FenceTest, WaitersWakeInOrderOfPoints) {
  ASSERT_TRUE(fence.promise(10));
  ASSERT_TRUE(fence.promise(20));
  Answer ten, twenty;
  EXPECT_NE(wait(20, twenty), 0u);
  EXPECT_NE(wait(10, ten), 0u);
  fence.reach(10);
  EXPECT_EQ(ten.value, 10u);
  EXPECT_EQ(twenty.calls, 0);
  fence.reach(20);
  EXPECT_EQ(twenty.value, 20u);
  EXPECT_EQ(ten.calls, 1);
}

TEST_F(FenceTest, AReachedPointAnswersInsideTheCall) {
  ASSERT_TRUE(fence.promise(3));
  fence.reach(3);
  Answer answer;
  EXPECT_EQ(wait(2, answer), 0u);
  EXPECT_EQ(answer.value, 3u);
}

TEST_F(FenceTest, AnEarlierPointThatComesLateTakesNothingBack) {
  ASSERT_TRUE(fence.promise(1));
  ASSERT_TRUE(fence.promise(2));
  fence.reach(2);
  fence.reach(1);
  EXPECT_EQ(fence.reached(), 2u);
}

TEST_F(FenceTest, PointsRoundTwoToThe32) {
  const std::uint64_t before = 0xFFFF'FFFF, after = 0x1'0000'0000, later = 0x1'0000'0001;
  ASSERT_TRUE(fence.promise(before));
  ASSERT_TRUE(fence.promise(after));
  ASSERT_TRUE(fence.promise(later));
  Answer answer;
  wait(after, answer);
  fence.reach(before);
  EXPECT_EQ(answer.calls, 0);
  fence.reach(after);
  EXPECT_EQ(answer.value, after);
  fence.fail(later, Errc::kFault);
  EXPECT_EQ(slot.value, later);
  EXPECT_EQ(slot.first_failed_point, later);
  EXPECT_FALSE(fence.failure(after));
}

TEST_F(FenceTest, FailureIsTheErrorThenAValuePastAllPromises) {
  ASSERT_TRUE(fence.promise(4));
  ASSERT_TRUE(fence.promise(9));
  fence.reach(4);
  Answer nine;
  wait(9, nine);
  fence.fail(9, Errc::kFault);
  EXPECT_EQ(slot.error, to_status(Errc::kFault));
  EXPECT_EQ(slot.first_failed_point, 9u);
  EXPECT_EQ(slot.value, 9u);
  EXPECT_EQ(nine.error, Errc::kFault);
  EXPECT_FALSE(fence.failure(4));
  EXPECT_EQ(fence.failure(9), Errc::kFault);
}

// The value passes 5 as well, so 5 must not look done.
TEST_F(FenceTest, FailureCoversLowerOutstandingPoints) {
  ASSERT_TRUE(fence.promise(3));
  ASSERT_TRUE(fence.promise(5));
  ASSERT_TRUE(fence.promise(8));
  fence.reach(3);
  Answer five, eight;
  wait(5, five);
  wait(8, eight);
  fence.fail(8, Errc::kReset);
  EXPECT_EQ(slot.first_failed_point, 5u);
  EXPECT_EQ(five.error, Errc::kReset);
  EXPECT_EQ(eight.error, Errc::kReset);
  EXPECT_FALSE(fence.failure(3));
  EXPECT_EQ(fence.failure(5), Errc::kReset);
  fence.reach(5);  // its work ended well after all: too late
  EXPECT_EQ(fence.failure(5), Errc::kReset);
}

TEST_F(FenceTest, TheFirstErrorStays) {
  ASSERT_TRUE(fence.promise(1));
  fence.fail(1, Errc::kFault);
  ASSERT_TRUE(fence.promise(2));
  Answer two;
  wait(2, two);
  EXPECT_EQ(two.calls, 0) << "promised after the failure and not ended yet";
  fence.fail(2, Errc::kDeviceLost);
  EXPECT_EQ(two.error, Errc::kFault);
  EXPECT_EQ(slot.error, to_status(Errc::kFault));
  EXPECT_EQ(slot.first_failed_point, 1u);
  EXPECT_EQ(slot.value, 2u);
}

TEST_F(FenceTest, TheGpuWritesTheValueTheDaemonTheErrorAlone) {
  ASSERT_TRUE(fence.promise(1));
  fence.reach(1);
  EXPECT_EQ(slot.value, 0u) << "the engine has written it, not the daemon";
  EXPECT_EQ(slot.error, 0);
}

TEST_F(FenceTest, ACancelledWaiterIsNotCalled) {
  ASSERT_TRUE(fence.promise(1));
  Answer answer;
  const auto id = wait(1, answer);
  fence.cancel(id);
  fence.reach(1);
  EXPECT_EQ(answer.calls, 0);
}

TEST_F(FenceTest, AWaiterMayWaitAgainAndCancelOthers) {
  ASSERT_TRUE(fence.promise(1));
  ASSERT_TRUE(fence.promise(2));
  Answer other, again;
  Fence::WaiterId victim = 0;
  fence.wait(1, [&](base::Result<std::uint64_t>) {
    fence.cancel(victim);
    wait(2, again);
  });
  victim = wait(1, other);
  fence.reach(1);
  EXPECT_EQ(other.calls, 0);
  EXPECT_EQ(again.calls, 0);
  fence.reach(2);
  EXPECT_EQ(again.value, 2u);
}

TEST_F(FenceTest, AbandonEndsAllWaits) {
  ASSERT_TRUE(fence.promise(1));
  Answer one, cancelled, after;
  Fence::WaiterId victim = 0;
  fence.wait(1, [&](base::Result<std::uint64_t> value) {
    EXPECT_EQ(value.error().code, Errc::kNotFound);
    ++one.calls;
    fence.cancel(victim);
  });
  victim = wait(2, cancelled);
  fence.abandon();
  EXPECT_EQ(one.calls, 1);
  EXPECT_EQ(cancelled.calls, 0) << "it was cancelled by the waiter before it";
  EXPECT_EQ(wait(5, after), 0u);
  EXPECT_EQ(after.error, Errc::kNotFound) << "nobody will ever reach it";
}

TEST(Fences, AFenceThatGoesEndsItsWaits) {
  wire::FenceSlot slot{};
  Errc error{};
  {
    Fence fence(ObjectId(1), slot, 0);
    fence.wait(1, [&](base::Result<std::uint64_t> value) { error = value.error().code; });
  }
  EXPECT_EQ(error, Errc::kNotFound);
}

}  // namespace
}  // namespace gpuumd
