#include "daemon/gpu/bringup/bring_up.h"

#include <gtest/gtest.h>

#include "tests/fake/manual_reactor.h"

namespace {

using base::Errc;
using gpuumd::BringUp;
using gpuumd::Step;
using std::chrono::milliseconds;
using Words = std::vector<std::string>;

// A vector of steps, which cannot be copied out of a list.
template <class... Steps>
std::vector<Step> list(Steps&&... steps) {
  std::vector<Step> all;
  (all.push_back(std::move(steps)), ...);
  return all;
}

class BringUpTest : public testing::Test {
 protected:
  // A step that writes down what is asked of it.
  Step step(const std::string& name) {
    Step step{.name = name, .deadline = milliseconds(50), .up = {}, .down = {}};
    step.up.start = [this, name]() -> base::Result<void> {
      log_.push_back("+" + name);
      return {};
    };
    step.down.start = [this, name]() -> base::Result<void> {
      log_.push_back("-" + name);
      return {};
    };
    return step;
  }
  BringUp& make(std::vector<Step> steps) {
    bring_up_.emplace(reactor_, [this] { return lost_; }, std::move(steps));
    return *bring_up_;
  }
  void start(BringUp& bring_up) {
    bring_up.start([this](base::Result<void> result) {
      ++ups_;
      up_ = std::move(result);
    });
  }
  void shut_down(BringUp& bring_up) {
    bring_up.shut_down([this](base::Result<void> result) {
      ++downs_;
      down_ = std::move(result);
    });
  }

  fake::ManualReactor reactor_;
  bool lost_ = false;
  Words log_;
  int ups_ = 0, downs_ = 0;
  base::Result<void> up_, down_;
  std::optional<BringUp> bring_up_;
};

TEST_F(BringUpTest, StepsRunInOrderAndComeDownInReverse) {
  std::vector<Step> steps;
  for (const char* name : {"a", "b", "c"}) steps.push_back(step(name));
  auto& bring_up = make(std::move(steps));
  start(bring_up);
  EXPECT_EQ(ups_, 0) << "from a later turn";
  EXPECT_EQ(bring_up.current_step(), "a");
  reactor_.advance(milliseconds(1));
  EXPECT_EQ(ups_, 1);
  EXPECT_TRUE(up_);
  EXPECT_EQ(bring_up.state(), BringUp::State::kReady);
  shut_down(bring_up);
  reactor_.advance(milliseconds(1));
  EXPECT_EQ(downs_, 1);
  EXPECT_TRUE(down_);
  EXPECT_EQ(log_, (Words{"+a", "+b", "+c", "-c", "-b", "-a"}));
}

TEST_F(BringUpTest, PollsUntilTheStepIsThrough) {
  int polls = 0;
  auto slow = step("slow");
  slow.up.poll = [&]() -> base::Result<bool> { return ++polls == 5; };
  auto& bring_up = make(list(slow));
  start(bring_up);
  reactor_.advance(milliseconds(3));
  EXPECT_EQ(ups_, 0);
  reactor_.advance(milliseconds(3));
  EXPECT_EQ(polls, 5);
  EXPECT_TRUE(up_);
  EXPECT_EQ(log_, Words{"+slow"}) << "started once";
}

TEST_F(BringUpTest, DeadlineNamesStepAndWhatWasRead) {
  auto stuck = step("Stuck");
  stuck.up.poll = []() -> base::Result<bool> { return false; };
  stuck.up.waiting_for = [] { return std::string("C2PMSG_64 reads 0x00000000"); };
  auto& bring_up = make(list(step("a"), stuck, step("never")));
  start(bring_up);
  reactor_.advance(milliseconds(49));
  EXPECT_EQ(ups_, 0);
  reactor_.advance(milliseconds(10));
  ASSERT_EQ(ups_, 1);
  ASSERT_FALSE(up_);
  EXPECT_EQ(up_.error().message(), "Stuck: C2PMSG_64 reads 0x00000000: timed out");
  EXPECT_EQ(log_, (Words{"+a", "+Stuck", "-Stuck", "-a"}));
  EXPECT_EQ(bring_up.state(), BringUp::State::kDown);
}

TEST_F(BringUpTest, FailedStepIsTakenDownToo) {
  auto bad = step("bad");
  bad.up.start = []() -> base::Result<void> { return base::fail(Errc::kDeviceError, "BIF_FB_EN"); };
  auto& bring_up = make(list(step("a"), bad));
  start(bring_up);
  reactor_.advance(milliseconds(1));
  ASSERT_FALSE(up_);
  EXPECT_EQ(up_.error().step, "bad: BIF_FB_EN");
  EXPECT_EQ(log_, (Words{"+a", "-bad", "-a"}));
}

TEST_F(BringUpTest, LostDeviceInAnyStepEndsIt) {
  for (const std::size_t at : {0u, 1u, 2u}) {
    log_.clear();
    lost_ = false;
    std::vector<Step> steps;
    for (const char* name : {"a", "b", "c"}) steps.push_back(step(name));
    steps[at].up.start = [this]() -> base::Result<void> {
      lost_ = true;
      return {};
    };
    int polled = 0;
    steps[at].up.poll = [&]() -> base::Result<bool> {
      ++polled;
      return true;
    };
    auto& bring_up = make(std::move(steps));
    start(bring_up);
    reactor_.advance(milliseconds(1));
    ASSERT_FALSE(up_);
    EXPECT_EQ(up_.error().code, Errc::kDeviceLost);
    EXPECT_TRUE(up_.error().step.starts_with(std::string(1, static_cast<char>('a' + at))))
        << up_.error().step;
    EXPECT_EQ(polled, 0) << "nothing is asked of a device that is gone";
    EXPECT_EQ(log_.back(), "-a") << "what we hold is still let go";
  }
}

TEST_F(BringUpTest, ShutdownDuringBringUp) {
  auto slow = step("slow");
  slow.up.poll = []() -> base::Result<bool> { return false; };
  auto& bring_up = make(list(step("a"), slow));
  start(bring_up);
  reactor_.advance(milliseconds(5));
  shut_down(bring_up);
  reactor_.advance(milliseconds(5));
  EXPECT_EQ(ups_, 1);
  ASSERT_FALSE(up_);
  EXPECT_EQ(up_.error().code, Errc::kDisconnected);
  EXPECT_EQ(downs_, 1);
  EXPECT_EQ(log_, (Words{"+a", "+slow", "-slow", "-a"}));
}

TEST_F(BringUpTest, FailingShutdownGoesOnAndTells) {
  auto b = step("b");
  b.down.poll = []() -> base::Result<bool> { return false; };
  auto& bring_up = make(list(step("a"), b));
  start(bring_up);
  reactor_.advance(milliseconds(1));
  shut_down(bring_up);
  reactor_.advance(milliseconds(100));
  ASSERT_EQ(downs_, 1);
  ASSERT_FALSE(down_);
  EXPECT_EQ(down_.error().code, Errc::kTimeout);
  EXPECT_EQ(bring_up.shutdown_errors().size(), 1u);
  EXPECT_EQ(log_.back(), "-a");
}

TEST_F(BringUpTest, ShutdownWithoutBringUp) {
  auto& bring_up = make(list(step("a")));
  shut_down(bring_up);
  reactor_.advance(milliseconds(1));
  EXPECT_EQ(downs_, 1);
  EXPECT_TRUE(log_.empty());
}

TEST_F(BringUpTest, DoneMayDestroyIt) {
  auto& bring_up = make(list(step("a")));
  start(bring_up);
  reactor_.advance(milliseconds(1));
  bring_up.shut_down([this](base::Result<void>) { bring_up_.reset(); });
  reactor_.advance(milliseconds(1));
  EXPECT_FALSE(bring_up_);
}

}  // namespace
