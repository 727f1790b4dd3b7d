// LSDMA, driven by its registers.

#include <gtest/gtest.h>

#include <cstring>

#include "base/bytes.h"
#include "tests/gpusim_engines/bench.h"

namespace gpusim::test {
namespace {

constexpr std::uint32_t kIdle = 0x9000'0000;
constexpr std::uint32_t kFill = 1u << 31;
constexpr std::uint64_t mc(std::uint64_t offset) { return Bench::kFbBase + offset; }

class LsdmaTest : public ::testing::Test {
 protected:
  static std::uint32_t reg(std::uint32_t offset) { return Bench::kLsdma + offset; }
  void command(std::uint64_t from, std::uint64_t to, std::uint32_t word,
               std::uint32_t control = 0) {
    bench.write_pair(reg(0x80), from);
    bench.write_pair(reg(0x82), to);
    bench.write(reg(0x86), control);
    bench.write(reg(0x84), word);
  }
  void run() {
    for (unsigned i = 0; i < 1000 && bench.lsdma->step(); ++i) {
    }
  }
  std::uint32_t status() { return bench.read(reg(0x8A)); }
  void clear() { bench.write(reg(0x8A), 0xFFFF'FFFF); }
  Bench bench;
};

TEST_F(LsdmaTest, D35_IdleAtReset) { EXPECT_EQ(status(), kIdle); }

TEST_F(LsdmaTest, Copy) {
  bench.set_word(0x1000, 77);
  command(mc(0x1000), mc(0x2000), 8);
  EXPECT_EQ(status() & kIdle, 0u);
  run();
  EXPECT_EQ(status(), kIdle);
  EXPECT_EQ(bench.get_word(0x2000), 77u);
}

TEST_F(LsdmaTest, Fill) {
  bench.write(reg(0x85), 0x0102'0304);
  command(0, mc(0x2000), kFill | 12);
  run();
  EXPECT_EQ(bench.get_word(0x2000), 0x0102'0304'0102'0304u);
  EXPECT_EQ(bench.get_word(0x2008), 0x0102'0304u);
}

TEST_F(LsdmaTest, D35_FifoOfFourThenDropped) {
  for (unsigned i = 0; i < 5; ++i) command(mc(0x1000), mc(0x2000), 8);
  EXPECT_EQ(status() & 7, 4u);
  EXPECT_NE(status() & 1u << 29, 0u);
  EXPECT_NE(status() & 1u << 19, 0u);
  run();
  EXPECT_EQ(bench.lsdma->counters().commands, 5u);
  EXPECT_EQ(status(), kIdle | 1u << 19);
  bench.write(reg(0x8A), 1u << 19);
  EXPECT_EQ(status(), kIdle);
}

TEST_F(LsdmaTest, ZeroCount) {
  command(mc(0x1000), mc(0x2000), 0);
  run();
  EXPECT_EQ(status(), kIdle | 1u << 12);
}

TEST_F(LsdmaTest, D14_NacksSayReadOrWrite) {
  command(0x1000, mc(0x2000), 8);
  run();
  EXPECT_EQ(status(), kIdle | 1u << 16);
  clear();
  command(mc(0x1000), 0x2000, 8);
  run();
  EXPECT_EQ(status(), kIdle | 1u << 15);
  EXPECT_EQ(bench.status(true) >> 11 & 0x1FF, 15u) << "the hub knows LSDMA by its id";
}

TEST_F(LsdmaTest, D35_ErrorsDoNotStopTheNextCommand) {
  bench.set_word(0x1000, 5);
  command(0x1000, mc(0x2000), 8);
  command(mc(0x1000), mc(0x2000), 8);
  run();
  EXPECT_EQ(status(), kIdle | 1u << 16);
  EXPECT_EQ(bench.get_word(0x2000), 5u);
}

TEST_F(LsdmaTest, D46_RemoteOutcomesUseThePrtBits) {
  bench.enable_context(true, 1);
  bench.set(true, 1, 0x1'0000, kNpa | kRw | 4ull << 41 | 0x3000);
  bench.set(true, 1, 0x2'0000, Bench::vram_page(0x2000));
  bench.set_word(0x2000, 99);
  command(0x2'0000, 0x1'0000, 8, 1);
  run();
  EXPECT_EQ(status(), kIdle);
  EXPECT_EQ(base::load<std::uint64_t>(bench.fabric.memory, 0x3000), 99u);
  bench.fabric.answer = Outcome::kRefused;
  command(0x2'0000, 0x1'0000, 8, 1);
  run();
  EXPECT_EQ(status(), kIdle | 1u << 17) << "write";
  clear();
  bench.fabric.answer = Outcome::kPeerLost;
  command(0x1'0000, 0x2'0000, 8, 1);
  run();
  EXPECT_EQ(status(), kIdle | 1u << 18) << "read";
  EXPECT_EQ(bench.get_word(0x2000), 99u) << "a refused read delivers nothing";
}

TEST_F(LsdmaTest, D47_RemoteRetryEndsAfterAHundredMilliseconds) {
  bench.enable_context(true, 1);
  bench.set(true, 1, 0x1'0000, kNpa | kRw | 4ull << 41 | 0x3000);
  bench.fabric.answer = Outcome::kRetry;
  bench.write(reg(0x85), 1);
  command(0, 0x1'0000, kFill | 8, 1);
  run();
  EXPECT_EQ(status() & kIdle, 1u << 28) << "busy, FIFO empty";
  EXPECT_TRUE(bench.lsdma->waiting());
  bench.clock.advance(101ms);
  run();
  EXPECT_EQ(status(), kIdle | 1u << 17);
}

TEST_F(LsdmaTest, D35_RetryFaultStaysInProcess) {
  bench.enable_context(true, 1, Bench::kInterruptBits | 1 << 8);
  command(mc(0), 0, 8);  // something else first
  run();
  clear();
  command(0x5000, 0x6000, 8, 1);
  run();
  EXPECT_EQ(status() >> 3 & 0x7F, 1u);
  EXPECT_EQ(status() >> 31, 0u);
  ASSERT_FALSE(bench.interrupts.retries.empty());
  EXPECT_EQ(bench.interrupts.retries[0].hub, 8u);
  bench.set(true, 1, 0x5000, Bench::vram_page(0x1000));
  bench.set(true, 1, 0x6000, Bench::vram_page(0x2000));
  bench.set_word(0x1000, 3);
  bench.clock.advance(11us);
  run();
  EXPECT_EQ(status(), kIdle);
  EXPECT_EQ(bench.get_word(0x2000), 3u);
}

TEST_F(LsdmaTest, D35_PhysicalAndBusAddresses) {
  std::byte* memory = bench.bus.map(0x7000, 4096);
  bench.set_word(0x1000, 0x4242);
  command(Bench::kPhysical + 0x1000, 0x7000, 8, 1u << 20 | 1u << 5);
  run();
  EXPECT_EQ(status(), kIdle);
  EXPECT_EQ(memory[0], std::byte{0x42});
  command(0x1000, 0x7000, 8, 1u << 20 | 1u << 5);
  run();
  EXPECT_EQ(status(), kIdle | 1u << 11) << "no VRAM there";
  clear();
  command(Bench::kPhysical, 0x9'0000, 8, 1u << 20 | 1u << 5);
  run();
  EXPECT_EQ(status(), kIdle | 1u << 15) << "no mapping there (D21)";
}

TEST_F(LsdmaTest, HungByScenario) {
  ASSERT_TRUE(bench.hooks.run("lsdma.hang", {}));
  command(mc(0x1000), mc(0x2000), 8);
  run();
  EXPECT_EQ(status() & 1u << 31, 0u);
  ASSERT_TRUE(bench.hooks.run("lsdma.hang", {{"on", "false"}}));
  run();
  EXPECT_EQ(status(), kIdle);
}

TEST_F(LsdmaTest, ResetForgetsEverything) {
  command(0x1000, mc(0x2000), 8);
  command(0x1000, mc(0x2000), 8);
  bench.lsdma->reset();
  EXPECT_EQ(status(), kIdle);
}

}  // namespace
}  // namespace gpusim::test
