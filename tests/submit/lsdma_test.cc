#include "daemon/gpu/engine/lsdma.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/fake/fake_register_io.h"
#include "tests/fake/manual_reactor.h"

namespace gpuumd {
namespace {

using base::Errc;
using base::McAddress;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::uint32_t kBase = 0x11400;
constexpr std::uint32_t kCommand = kBase + 0x84, kStatus = kBase + 0x8A;
constexpr std::uint32_t kAtRest = 0x9000'0000;

struct LsdmaTest : testing::Test {
  fake::ManualReactor reactor;
  fake::FakeRegisterIo io;
  std::uint32_t status = kAtRest;
  Lsdma lsdma{reactor, [this] {
                RegisterBlock::Bases bases;
                bases.fill(RegisterBlock::kAbsent);
                bases[0] = kBase;
                return RegisterBlock(io, bases);
              }()};
  std::vector<int> done;
  std::vector<Errc> errors;

  LsdmaTest() {
    io.on_read[kStatus] = [this] { return status; };
    io.on_write[kStatus] = [this](std::uint32_t written) { status &= ~(written & 0x000F'F800); };
    io.on_write[kCommand] = [this](std::uint32_t) { status &= ~0x8000'0000; };
  }
  void copy(int n, std::uint32_t bytes = 64) {
    lsdma.copy(McAddress(0x12'3456'7000 + n), McAddress(0x9A'BCDE'F000), bytes,
               [this, n](base::Result<void> result) {
                 done.push_back(n);
                 if (!result) errors.push_back(result.error().code);
               });
  }
  void finish(std::uint32_t error_bits = 0) { status |= 0x8000'0000 | error_bits; }
};

TEST_F(LsdmaTest, ProgramsOneCommandAndReportsItsEnd) {
  ASSERT_TRUE(lsdma.start());
  copy(1, 64);
  EXPECT_EQ(io.values[kBase + 0x80], 0x3456'7001u);
  EXPECT_EQ(io.values[kBase + 0x81], 0x12u);
  EXPECT_EQ(io.values[kBase + 0x82], 0xBCDE'F000u);
  EXPECT_EQ(io.values[kBase + 0x83], 0x9Au);
  EXPECT_EQ(io.values[kBase + 0x86], 0u) << "VMID 0, virtual on both sides";
  EXPECT_EQ(io.writes().back().dword, kCommand) << "the command starts the job";
  EXPECT_EQ(io.values[kCommand], 64u) << "the count itself, neither fill nor RAW_WAIT";
  EXPECT_TRUE(lsdma.poll()) << "no interrupt comes: stay awake";
  EXPECT_THAT(done, IsEmpty());
  finish();
  lsdma.poll();
  EXPECT_THAT(done, ElementsAre(1));
  EXPECT_THAT(errors, IsEmpty());
  EXPECT_FALSE(lsdma.poll());
  EXPECT_FALSE(lsdma.busy());
}

TEST_F(LsdmaTest, CommandsRunOneAtATimeInOrder) {
  copy(1);
  copy(2);
  copy(3);
  const auto started = [&] {
    return std::ranges::count(io.writes(), kCommand, &fake::FakeRegisterIo::Access::dword);
  };
  EXPECT_EQ(started(), 1);
  finish();
  lsdma.poll();
  EXPECT_EQ(started(), 2);
  finish();
  lsdma.poll();
  finish();
  lsdma.poll();
  EXPECT_THAT(done, ElementsAre(1, 2, 3));
}

// All error bits, the four that amdgpu leaves out among them.
TEST_F(LsdmaTest, A25_EveryErrorBitIsTested) {
  for (unsigned bit = 11; bit <= 19; ++bit) {
    done.clear();
    errors.clear();
    copy(1);
    finish(1u << bit);
    lsdma.poll();
    const bool nack = bit >= 15 && bit <= 18;
    EXPECT_THAT(errors, ElementsAre(nack ? Errc::kRefused : Errc::kDeviceError)) << bit;
    EXPECT_EQ(status & 0x000F'F800, 0u) << "bit " << bit << " is written back";
    copy(2);
    finish();
    lsdma.poll();
    EXPECT_THAT(done, ElementsAre(1, 2));
    EXPECT_EQ(errors.size(), 1u) << "it does not stick to the next command, bit " << bit;
  }
}

TEST_F(LsdmaTest, StartClearsOldErrorsAndWantsAnIdleEngine) {
  status = kAtRest | 1u << 17;
  EXPECT_TRUE(lsdma.start());
  EXPECT_EQ(status, kAtRest);
  status = 0x1000'0000;
  EXPECT_EQ(lsdma.start().error().code, Errc::kDeviceError);
  status = 0x8000'0000;
  EXPECT_EQ(lsdma.start().error().code, Errc::kDeviceError);
}

TEST_F(LsdmaTest, ACommandThatNeverEndsTimesOut) {
  copy(1);
  copy(2);
  reactor.advance(Lsdma::kCommandDeadline);
  EXPECT_TRUE(lsdma.poll());
  EXPECT_THAT(done, IsEmpty());
  reactor.advance(std::chrono::milliseconds(1));
  lsdma.poll();
  EXPECT_THAT(done, ElementsAre(1, 2));
  EXPECT_THAT(errors, ElementsAre(Errc::kTimeout, Errc::kTimeout));
}

// Neither the registers nor the error bits of a command that timed out are the next one's.
TEST_F(LsdmaTest, AfterATimeOutTheNextCommandWaitsAndStartsClean) {
  const auto started = [&] {
    return std::ranges::count(io.writes(), kCommand, &fake::FakeRegisterIo::Access::dword);
  };
  copy(1);
  reactor.advance(Lsdma::kCommandDeadline + std::chrono::milliseconds(1));
  lsdma.poll();
  ASSERT_THAT(errors, ElementsAre(Errc::kTimeout));
  copy(2);
  lsdma.poll();
  EXPECT_EQ(started(), 1) << "the engine is still at the old command";
  finish(1u << 17);  // that one is refused at last
  lsdma.poll();
  EXPECT_EQ(started(), 2);
  EXPECT_EQ(status & 0x000F'F800, 0u);
  EXPECT_THAT(done, ElementsAre(1));
  finish();
  lsdma.poll();
  EXPECT_THAT(done, ElementsAre(1, 2));
  EXPECT_EQ(errors.size(), 1u) << "charged with an old error";
}

TEST_F(LsdmaTest, AnEngineThatStaysBusyTimesTheNextOneOutToo) {
  copy(1);
  reactor.advance(Lsdma::kCommandDeadline + std::chrono::milliseconds(1));
  lsdma.poll();
  copy(2);
  reactor.advance(Lsdma::kCommandDeadline + std::chrono::milliseconds(1));
  lsdma.poll();
  EXPECT_THAT(errors, ElementsAre(Errc::kTimeout, Errc::kTimeout));
  EXPECT_FALSE(lsdma.busy());
}

TEST_F(LsdmaTest, ALostDeviceIsNoSuccess) {
  copy(1);
  io.lose();  // reads give all ones: idle, empty, and every error
  lsdma.poll();
  EXPECT_THAT(errors, ElementsAre(Errc::kDeviceLost));
}

TEST_F(LsdmaTest, FailEndsAll) {
  copy(1);
  copy(2);
  lsdma.fail({Errc::kDeviceLost, 0, "gone"});
  EXPECT_THAT(done, IsEmpty()) << "on a later turn";
  lsdma.poll();
  EXPECT_THAT(done, ElementsAre(1, 2));
  EXPECT_THAT(errors, ElementsAre(Errc::kDeviceLost, Errc::kDeviceLost));
}

TEST_F(LsdmaTest, ACallbackMayStartTheNext) {
  lsdma.copy(McAddress(0), McAddress(0), 4, [this](base::Result<void>) { copy(2); });
  finish();
  lsdma.poll();
  EXPECT_TRUE(lsdma.busy());
  finish();
  lsdma.poll();
  EXPECT_THAT(done, ElementsAre(2));
}

}  // namespace
}  // namespace gpuumd
