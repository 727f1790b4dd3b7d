#include "daemon/gpu/engine/copy_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "tests/submit/engine_rig.h"

namespace gpuumd {
namespace {

using base::Errc;
using testing::ElementsAre;
using testing::IsEmpty;

struct CopyEngineTest : testing::Test {
  static constexpr unsigned kQueue = 0;
  test::EngineRig rig;
  EngineMemory fence = rig.allocate(64);
  std::vector<std::string> hung;
  CopyEngine engine{rig.reactor, rig.make_queue(kQueue, 4096), fence,
                    [this](const base::Error& error) { hung.push_back(error.step); }};
  Registration poller = rig.reactor.add_poller({"copy", [this] { return engine.poll(); }, {}});
  std::vector<int> done;
  std::vector<Errc> errors;

  CopyEngineTest() { engine.start(); }
  CopyEngine::Done note(int n) {
    return [this, n](base::Result<void> result) {
      done.push_back(n);
      if (!result) errors.push_back(result.error().code);
    };
  }
  void submit(int n, std::size_t dwords = 1) {
    engine.submit(std::vector<std::uint32_t>(dwords), note(n));
  }
};

TEST_F(CopyEngineTest, CopiesAndFillsInOrder) {
  const auto a = rig.allocate(8192), b = rig.allocate(8192);
  for (int i = 0; i < 8192; ++i) a.cpu[i] = std::byte(i * 7);
  engine.copy(a.at, b.at, 8192, note(1));
  engine.fill(b.at + 4096, 0x0A0B'0C0D, 64, note(2));
  rig.reactor.settle();
  EXPECT_THAT(done, IsEmpty());
  EXPECT_EQ(engine.outstanding(), 2u);
  rig.engine.run(kQueue);
  EXPECT_THAT(done, IsEmpty()) << "a callback belongs to a later turn";
  rig.reactor.settle();
  EXPECT_THAT(done, ElementsAre(1, 2));
  EXPECT_THAT(errors, IsEmpty());
  EXPECT_EQ(std::memcmp(a.cpu, b.cpu, 4096), 0);
  EXPECT_EQ(b.cpu[4096], std::byte{0x0D});
  EXPECT_EQ(b.cpu[4096 + 63], std::byte{0x0A});
  EXPECT_EQ(std::memcmp(a.cpu + 4160, b.cpu + 4160, 4000), 0);
}

TEST_F(CopyEngineTest, ACopyOverOneGiBIsCut) {
  engine.copy(base::McAddress(0), base::McAddress(0x1'0000'0000), (2ull << 30) + 5, note(1));
  // COPY, COPY, COPY, NOP, FENCE, FENCE.
  EXPECT_EQ(engine.queue().write_dwords(), 32u);
}

TEST_F(CopyEngineTest, AFullRingKeepsTheRestInOrder) {
  for (int n = 0; n < 20; ++n) submit(n, 200);
  EXPECT_EQ(engine.outstanding(), 20u);
  for (int turn = 0; turn < 40 && done.size() < 20; ++turn) {
    rig.engine.run(kQueue);
    rig.reactor.settle();
  }
  std::vector<int> all(20);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(done, all);
  EXPECT_THAT(errors, IsEmpty());
  EXPECT_EQ(engine.outstanding(), 0u);
}

// A small job must not overtake a large one that waits for room.
TEST_F(CopyEngineTest, NothingOvertakes) {
  submit(1, 500);
  submit(2, 600);
  submit(3, 1);
  rig.engine.run(kQueue);
  rig.reactor.settle();
  EXPECT_THAT(done, ElementsAre(1));
  rig.engine.run(kQueue);
  rig.reactor.settle();
  EXPECT_THAT(done, ElementsAre(1, 2, 3));
}

TEST_F(CopyEngineTest, D32_NeverEmptyNeverFull) {
  submit(0);
  for (int n = 1; n < 300; ++n) {
    submit(n);
    ASSERT_TRUE(rig.engine.pending(kQueue)) << "it went to the ring at once";
    for (int i = 0; i < 100 && done.size() < static_cast<std::size_t>(n); ++i) {
      rig.engine.run(kQueue, 1);
      rig.reactor.settle();
    }
    ASSERT_EQ(done.size(), static_cast<std::size_t>(n));
  }
}

// Whoever sleeps must be woken: room for the TRAP is kept when the ring fills.
TEST_F(CopyEngineTest, TheTrapFitsIntoAFullRing) {
  for (int n = 0; n < 100; ++n) submit(n, 32);
  rig.reactor.settle();
  engine.request_wake();
  engine.request_wake();
  rig.engine.run(kQueue);
  ASSERT_EQ(rig.engine.traps.size(), 1u) << "one, behind everything that is in flight";
  rig.reactor.settle();
  EXPECT_FALSE(done.empty());
}

TEST_F(CopyEngineTest, NoTrapForAnIdleEngine) {
  engine.request_wake();
  submit(1);
  rig.engine.run(kQueue);
  rig.reactor.settle();
  engine.request_wake();
  rig.engine.run(kQueue);
  EXPECT_THAT(rig.engine.traps, IsEmpty());
}

// No interrupt wakes the reactor: a timer of the engine's own does.
TEST_F(CopyEngineTest, AHungEngineFailsItsJobs) {
  rig.engine.hung[kQueue] = true;
  const auto start = rig.reactor.now();
  auto failed_at = start;
  submit(1);
  engine.submit(std::vector<std::uint32_t>(1), [&](base::Result<void> result) {
    failed_at = rig.reactor.now();
    note(2)(std::move(result));
  });
  rig.reactor.advance(CopyEngine::kJobDeadline);
  EXPECT_THAT(done, IsEmpty());
  rig.reactor.advance(
      std::chrono::minutes(1));  // looks at pollers when a timer is due, and at the end
  EXPECT_THAT(done, ElementsAre(1, 2));
  EXPECT_THAT(errors, ElementsAre(Errc::kDeviceError, Errc::kDeviceError));
  EXPECT_LT(failed_at - start, CopyEngine::kJobDeadline + std::chrono::milliseconds(10));
}

// Once, and before the jobs: who asks for a job's reason finds the device lost.
TEST_F(CopyEngineTest, AHungEngineIsItsOwnersBusiness) {
  rig.engine.hung[kQueue] = true;
  std::vector<std::size_t> told_before;
  for (int n = 0; n < 2; ++n)
    engine.submit(std::vector<std::uint32_t>(1),
                  [&](base::Result<void>) { told_before.push_back(hung.size()); });
  rig.reactor.advance(CopyEngine::kJobDeadline);
  EXPECT_THAT(hung, IsEmpty());
  rig.reactor.advance(std::chrono::minutes(1));
  EXPECT_THAT(hung, ElementsAre("the daemon's copy engine: no fence in 2 s"));
  EXPECT_THAT(told_before, ElementsAre(1u, 1u));
  submit(3);
  rig.reactor.advance(std::chrono::minutes(1));
  EXPECT_THAT(errors, ElementsAre(Errc::kDeviceError));
  EXPECT_EQ(hung.size(), 1u);
}

TEST_F(CopyEngineTest, TheDeadlineIsOfOneJobNotOfAll) {
  for (int n = 0; n < 5; ++n) submit(n, 1);
  for (int n = 0; n < 5; ++n) {
    rig.reactor.advance(CopyEngine::kJobDeadline - std::chrono::milliseconds(100));
    for (int i = 0; i < 100 && done.size() < static_cast<std::size_t>(n + 1); ++i) {
      rig.engine.run(kQueue, 1);
      rig.reactor.settle();
    }
  }
  EXPECT_THAT(done, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(errors, IsEmpty());
}

TEST_F(CopyEngineTest, FailEndsAllUntilStart) {
  submit(1);
  for (int n = 2; n < 12; ++n) submit(n, 200);
  engine.fail({Errc::kDeviceLost, 0, "gone"});
  EXPECT_THAT(done, IsEmpty());
  submit(12);
  rig.reactor.settle();
  ASSERT_EQ(done.size(), 12u);
  EXPECT_TRUE(std::ranges::is_sorted(done));
  EXPECT_EQ(errors.size(), 12u);
  EXPECT_THAT(errors, testing::Each(Errc::kDeviceLost));
  EXPECT_THAT(hung, IsEmpty()) << "its owner said so himself";
  engine.start();
  errors.clear();
  submit(13);
  rig.engine.run(kQueue);
  rig.reactor.settle();
  EXPECT_EQ(done.back(), 13);
  EXPECT_THAT(errors, IsEmpty());
}

TEST_F(CopyEngineTest, AFenceAheadOfWhatWasSentIsNotBelieved) {
  submit(1);
  fence.word().store(5);
  rig.reactor.settle();
  EXPECT_THAT(done, IsEmpty());
}

TEST_F(CopyEngineTest, ACallbackMaySubmit) {
  engine.submit(std::vector<std::uint32_t>(1), [this](base::Result<void>) { submit(2); });
  rig.engine.run(kQueue);
  rig.reactor.settle();
  rig.engine.run(kQueue);
  rig.reactor.settle();
  EXPECT_THAT(done, ElementsAre(2));
}

}  // namespace
}  // namespace gpuumd
