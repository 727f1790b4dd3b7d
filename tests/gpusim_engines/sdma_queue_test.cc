// Queues: pointers, doorbells, stalls, stops, resets, order.

#include <gtest/gtest.h>

#include <cstring>

#include "base/bytes.h"
#include "tests/gpusim_engines/bench.h"

namespace gpusim::test {
namespace {

constexpr std::uint8_t kGfx = 0x0A;
constexpr unsigned kVmid = 5;
constexpr std::uint32_t kRetry = 1 << 8;
constexpr std::uint32_t kResetReq = Bench::kGc0 + 0x06C, kMcuCntl = Bench::kGc1 + 0x588E;
constexpr std::uint64_t mc(std::uint64_t offset) { return Bench::kFbBase + offset; }

TEST(Queue, D33_HaltedAtReset) {
  Bench bench;
  EXPECT_EQ(bench.read(kMcuCntl), 1u);
  Ring ring(bench);
  bench.write(kMcuCntl, 1);
  ring.fence(mc(0x5000), 1).submit().run();
  EXPECT_EQ(bench.get_word(0x5000), 0u);
  bench.write(kMcuCntl, 2);
  EXPECT_FALSE(ring.step());
  bench.write(kMcuCntl, 0);
  EXPECT_FALSE(ring.step()) << "bit 1 was a reset: the ring is gone";
}

TEST(Queue, D32_PointersRunFreeAndPacketsWrap) {
  Bench bench;
  Ring ring(bench, {.log2_dwords = 6});  // 256 bytes
  for (unsigned i = 1; i <= 100; ++i) {
    ring.fence(mc(0x5000), i).push({2, lo(mc(0x5008)), hi(mc(0x5008)), 0, i});
    ring.submit().run();
    ASSERT_EQ(bench.get_word(0x5000), i);
    ASSERT_EQ(bench.get_word(0x5008), i);
  }
  EXPECT_EQ(ring.rptr(), 100u * 36) << "not reduced by the ring's size";
}

TEST(Queue, D32_RptrIsWrittenBack) {
  Bench bench;
  Ring ring(bench);
  bench.write_pair(ring.reg(0x207), mc(0x6000));
  bench.write(ring.reg(0x200), bench.read(ring.reg(0x200)) | 1 << 12);
  ring.fence(mc(0x5000), 1).fence(mc(0x5000), 2).submit().run();
  EXPECT_EQ(bench.get_word(0x6000), 32u);
}

TEST(Queue, D32_PollWordOnlyWithItsBit) {
  Bench bench;
  Ring ring(bench);
  ring.fence(mc(0x5000), 1);
  bench.write_pair(ring.reg(0x218), mc(0x7000));
  bench.set_word(0x7000, ring.wptr());
  ring.run();
  EXPECT_EQ(bench.get_word(0x5000), 0u);
  bench.write(ring.reg(0x200), bench.read(ring.reg(0x200)) | 1 << 8);
  ring.run();
  EXPECT_EQ(bench.get_word(0x5000), 1u);
}

TEST(Queue, D32_WptrBehindRptrStops) {
  Bench bench;
  Ring ring(bench);
  ring.fence(mc(0x5000), 1).submit().run();
  bench.sdma0->doorbell(0x200, 4, 8);
  ring.run();
  EXPECT_EQ(bench.interrupts.of(kGfx, 0x43).size(), 1u);
  bench.sdma0->doorbell(0x200, 16, 8);
  ring.run();
  EXPECT_EQ(bench.interrupts.of(kGfx, 0x43).size(), 1u) << "it stands";
}

TEST(Queue, D29_NarrowDoorbellChangesTheLowHalf) {
  Bench bench;
  Ring ring(bench);
  bench.write_pair(ring.reg(0x203), 0x1'0000'0000);
  bench.write_pair(ring.reg(0x205), 0x1'0000'0000);
  ring.enable();
  EXPECT_TRUE(bench.sdma0->doorbell(0x200, 4, 4));
  EXPECT_EQ(bench.read(ring.reg(0x206)), 1u);
  ring.run();
  EXPECT_EQ(ring.rptr(), 0x1'0000'0004u);
}

TEST(Queue, D29_DoorbellNeedsItsEnableAndPlace) {
  Bench bench;
  Ring ring(bench);
  EXPECT_FALSE(bench.sdma0->doorbell(0x202, 4, 8));
  bench.write(ring.reg(0x20F), 0);
  EXPECT_FALSE(bench.sdma0->doorbell(0x200, 4, 8));
}

TEST(Queue, MinorPtrUpdateHoldsTheQueue) {
  Bench bench;
  Ring ring(bench);
  bench.write(ring.reg(0x21B), 1);
  ring.fence(mc(0x5000), 1).submit().run();
  EXPECT_EQ(bench.get_word(0x5000), 0u);
  bench.write(ring.reg(0x21B), 0);
  ring.run();
  EXPECT_EQ(bench.get_word(0x5000), 1u);
}

TEST(Queue, TenQueuesOfTwoInstances) {
  Bench bench;
  for (const unsigned instance : {0u, 1u}) {
    for (unsigned q = 0; q < SdmaEngine::kQueues; ++q) {
      Ring ring(bench, {.instance = instance, .queue = q});
      const std::uint64_t at = 0x5000 + instance * 0x100 + q * 8;
      ring.fence(mc(at), 1).trap(q).submit().run();
      EXPECT_EQ(bench.get_word(at), 1u);
      EXPECT_EQ(bench.interrupts.ivs.back().ring_id, q | instance << 4);
    }
  }
}

// --- faults ---

class Faulting : public ::testing::TestWithParam<SdmaStall> {
 protected:
  static constexpr std::uint64_t kIb = 0x10'0000, kFrom = 0x20'0000, kTo = 0x30'0000;
  Faulting() {
    bench.enable_context(false, kVmid, Bench::kInterruptBits | kRetry);
    ib = bench.allocate_page();
    bench.set(false, kVmid, kIb, Bench::vram_page(ib));
    bench.set(false, kVmid, kFrom, Bench::vram_page(0x1000));
    bench.set_word(0x1000, 123);
    const std::uint32_t words[] = {1, 4095, 0, lo(kFrom), 0, lo(kTo), 0, 0};
    for (unsigned i = 0; i < 8; ++i) base::store(bench.vram->cpu_view(), ib + i * 4, words[i]);
  }
  void submit_copy() { ring.indirect(kVmid, kIb, 8).fence(mc(0x5000), 1).submit().run(); }
  void again() {
    bench.clock.advance(11us);
    ring.run();
  }
  bool done() { return bench.get_word(0x5000) == 1; }
  Bench bench{BenchOptions{.stall = GetParam()}};
  Ring ring{bench};
  std::uint64_t ib = 0;
};
INSTANTIATE_TEST_SUITE_P(Stalls, Faulting,
                         ::testing::Values(SdmaStall::kQueue, SdmaStall::kInstance));

TEST_P(Faulting, D15_RetriesEveryTenMicrosecondsUntilThePageIsThere) {
  submit_copy();
  EXPECT_EQ(bench.interrupts.retries.size(), 1u);
  EXPECT_TRUE(bench.sdma0->waiting());
  ring.run();
  EXPECT_EQ(bench.interrupts.retries.size(), 1u) << "no time has passed";
  again();
  EXPECT_EQ(bench.interrupts.retries.size(), 2u);
  EXPECT_EQ(bench.interrupts.retries[0].page, kTo >> 12);
  bench.set(false, kVmid, kTo, Bench::vram_page(0x2000));
  again();
  EXPECT_TRUE(done());
  EXPECT_EQ(bench.get_word(0x2000), 123u);
}

TEST_P(Faulting, StallHoldsItsQueueOrTheInstance) {
  submit_copy();
  Ring other(bench, {.queue = 1});
  other.fence(mc(0x6000), 1).submit().run();
  EXPECT_EQ(bench.get_word(0x6000), GetParam() == SdmaStall::kQueue ? 1u : 0u);
  Ring second(bench, {.instance = 1});
  second.fence(mc(0x6008), 1).submit().run();
  EXPECT_EQ(bench.get_word(0x6008), 1u) << "the other instance goes on";
  bench.set(false, kVmid, kTo, Bench::vram_page(0x2000));
  again();
  EXPECT_EQ(bench.get_word(0x6000), 1u);
}

TEST_P(Faulting, D14_FinalFaultStopsTheQueueUntilRbEnableIsCycled) {
  bench.set(false, kVmid, kTo, kFinal);
  submit_copy();
  EXPECT_FALSE(done());
  const auto ivs = bench.interrupts.of(kGfx, 0x3C);
  ASSERT_EQ(ivs.size(), 1u);
  EXPECT_EQ(ivs[0].vmid, kVmid);
  EXPECT_EQ(bench.interrupts.of(0x1B, 0).size(), 1u) << "and the hub's own";
  again();
  EXPECT_FALSE(done());
  bench.set(false, kVmid, kTo, Bench::vram_page(0x2000));
  ring.enable();
  ring.run();
  EXPECT_TRUE(done()) << "the packet is done again from its start";
}

TEST_P(Faulting, D5_PageFaultInterruptNeedsItsEnable) {
  bench.write(Bench::kGc0 + 0x00D, 1);
  bench.set(false, kVmid, kTo, kFinal);
  submit_copy();
  EXPECT_TRUE(bench.interrupts.of(kGfx, 0x3C).empty());
  EXPECT_EQ(bench.sdma0->counters().errors, 1u);
}

TEST_P(Faulting, D21_BusErrorStopsWithPageNull) {
  bench.set(false, kVmid, kTo, Bench::system_page(0x12'3456'7000));
  submit_copy();
  const auto ivs = bench.interrupts.of(kGfx, 0x3B);
  ASSERT_EQ(ivs.size(), 1u);
  EXPECT_EQ(ivs[0].src_data[1], 0x1234567u);
  EXPECT_FALSE(done());
}

TEST_P(Faulting, QueueResetDropsAStalledPacket) {
  submit_copy();
  bench.write(kResetReq, 1);
  EXPECT_EQ(bench.read(kResetReq), 0u);
  EXPECT_EQ(bench.read(ring.reg(0x200)) & 1, 0u);
  EXPECT_EQ(ring.rptr(), 0u);
  EXPECT_FALSE(bench.sdma0->waiting());
  Ring fresh(bench);
  fresh.fence(mc(0x6000), 1).submit().run();
  EXPECT_EQ(bench.get_word(0x6000), 1u);
  EXPECT_FALSE(done());
}

// --- remote outcomes ---

class Remote : public Faulting {
 protected:
  Remote() { bench.set(false, kVmid, kTo, kNpa | kRw | 7ull << 41 | 0x4000); }
  void expect_remote(std::uint32_t lost) {
    const auto ivs = bench.interrupts.of(kGfx, 0xE7);
    ASSERT_EQ(ivs.size(), 1u);
    EXPECT_EQ(ivs[0].src_data[0], 1u);
    EXPECT_EQ(ivs[0].src_data[1], 0xE000'0004u) << "NPA page";
    EXPECT_EQ(ivs[0].src_data[2], 0u);
    EXPECT_EQ(ivs[0].src_data[3], lost);
    EXPECT_FALSE(done());
  }
};
INSTANTIATE_TEST_SUITE_P(Stalls, Remote, ::testing::Values(SdmaStall::kQueue));

TEST_P(Remote, BytesGoOverTheFabric) {
  submit_copy();
  EXPECT_TRUE(done());
  EXPECT_EQ(base::load<std::uint64_t>(bench.fabric.memory, 0x4000), 123u);
  const auto logged = bench.log.find(0, "sdma0.0 q0");
  std::uint64_t bytes = 0;
  for (const Access& access : logged)
    if (access.kind == AccessKind::kRemote) bytes += access.bytes;
  EXPECT_EQ(bytes, 4096u);
}

TEST_P(Remote, D46_RefusedStopsTheQueue) {
  bench.fabric.answer = Outcome::kRefused;
  submit_copy();
  expect_remote(0);
}

TEST_P(Remote, PeerLost) {
  bench.fabric.answer = Outcome::kPeerLost;
  submit_copy();
  expect_remote(1);
}

TEST_P(Remote, D47_RetryIsRepeatedUntilTheEntryChanges) {
  bench.fabric.retries_first = 3;
  submit_copy();
  for (unsigned i = 0; i < 3; ++i) {
    EXPECT_FALSE(done());
    again();
  }
  EXPECT_TRUE(done());
  EXPECT_EQ(base::load<std::uint64_t>(bench.fabric.memory, 0x4000), 123u);
}

TEST_P(Remote, D47_RetryEndsAsRefusedAfterAHundredMilliseconds) {
  bench.fabric.answer = Outcome::kRetry;
  submit_copy();
  bench.clock.advance(99ms);
  ring.run();
  EXPECT_TRUE(bench.interrupts.of(kGfx, 0xE7).empty());
  bench.clock.advance(2ms);
  ring.run();
  expect_remote(0);
}

TEST_P(Remote, D25_RetryingRemoteAccessDoesNotHoldAHeavyFlushUp) {
  bench.fabric.answer = Outcome::kRetry;
  submit_copy();
  bench.flush(false, kVmid, 2);
  EXPECT_TRUE(bench.acknowledged(false, kVmid));
}

// --- order ---

TEST(Order, AccessesInFlightFinishOutOfOrder) {
  Bench bench{BenchOptions{.step_bytes = 4096}};
  Ring ring(bench);
  constexpr std::uint64_t kPages = 64;
  std::memset(bench.vram->cpu_view().data(), 0xAA, kPages * 4096);
  ring.copy(mc(0), mc(0x10'0000), kPages * 4096).fence(mc(0x5F'0000), 1).submit();
  bool out_of_order = false;
  std::uint64_t before = 0;
  while (bench.get_word(0x5F'0000) == 0) {
    ASSERT_TRUE(ring.step());
    std::uint64_t arrived = 0;
    bool gap = false;
    for (std::uint64_t page = 0; page < kPages; ++page) {
      const bool here = bench.get_word(0x10'0000 + page * 4096) != 0;
      arrived += here;
      out_of_order |= here && gap;
      gap |= !here;
    }
    ASSERT_GE(arrived, before);
    ASSERT_TRUE(bench.get_word(0x5F'0000) == 0 || arrived == kPages) << "the fence came early";
    before = arrived;
  }
  EXPECT_TRUE(out_of_order);
}

TEST(Order, SameSeedSameOrder) {
  const auto trace = [] {
    Bench bench{BenchOptions{.step_bytes = 4096}};
    Ring ring(bench);
    std::memset(bench.vram->cpu_view().data(), 0xAA, 64 * 4096);
    ring.copy(mc(0), mc(0x10'0000), 64 * 4096).submit();
    std::vector<std::uint64_t> seen;
    for (unsigned i = 0; i < 20; ++i) {
      ring.step();
      for (std::uint64_t page = 0; page < 64; ++page)
        if (bench.get_word(0x10'0000 + page * 4096) != 0) seen.push_back(page);
    }
    return seen;
  };
  EXPECT_EQ(trace(), trace());
}

TEST(Order, D25_CopyInFlightHoldsAHeavyFlushUp) {
  Bench bench;
  bench.enable_context(false, kVmid);
  Ring ring(bench, {.queue = 0});
  const std::uint64_t ib = bench.allocate_page();
  bench.set(false, kVmid, 0x10'0000, Bench::vram_page(ib));
  bench.set(false, kVmid, 0x20'0000, Bench::vram_page(0x1000));
  bench.set(false, kVmid, 0x30'0000, Bench::vram_page(0x2000));
  bench.set_word(0x1000, 5);
  const std::uint32_t words[] = {1, 4095, 0, 0x20'0000, 0, 0x30'0000, 0, 0};
  for (unsigned i = 0; i < 8; ++i) base::store(bench.vram->cpu_view(), ib + i * 4, words[i]);
  ASSERT_TRUE(bench.hooks.run("sdma0.0.slow", {{"us", "100"}}));
  ring.indirect(kVmid, 0x10'0000, 8).submit().run();
  EXPECT_EQ(bench.get_word(0x2000), 0u);
  // Unmapped and flushed lightly: the access still lands. Only a heavy flush tells when it is over.
  bench.set(false, kVmid, 0x30'0000, kFinal);
  bench.flush(false, kVmid, 1);
  EXPECT_TRUE(bench.acknowledged(false, kVmid));
  bench.flush(false, kVmid, 2);
  EXPECT_FALSE(bench.acknowledged(false, kVmid));
  bench.clock.advance(101us);
  ring.run();
  EXPECT_EQ(bench.get_word(0x2000), 5u);
  EXPECT_TRUE(bench.acknowledged(false, kVmid));
}

TEST(Order, StepsAreBounded) {
  Bench bench{BenchOptions{.step_bytes = 64 * 1024}};
  Ring ring(bench);
  ring.copy(mc(0), mc(16 << 20), 8 << 20).submit();
  unsigned steps = 0;
  while (!ring.empty()) {
    ASSERT_TRUE(ring.step());
    ASSERT_LT(++steps, 1000u);
  }
  EXPECT_GE(steps, 60u);
}

// One packet may write a whole page table, or as much as a buffer holds.
TEST(Order, StepsOfLongWritesAreBounded) {
  constexpr std::uint32_t kEntries = 64 * 1024, kDwords = 4096;
  Bench bench{BenchOptions{.step_bytes = 4096}};
  Ring ring(bench, {.log2_dwords = 13});
  ring.push({0x0043'000C, lo(mc(0)), hi(mc(0)), 1, 0, 0, 0, 0x1000, 0, kEntries - 1});
  ring.push({2, lo(mc(1 << 20)), hi(mc(1 << 20)), kDwords - 1});
  for (std::uint32_t i = 0; i < kDwords; ++i) ring.push({i + 1});
  ring.submit();
  unsigned steps = 0;
  while (!ring.empty()) {
    ASSERT_TRUE(ring.step());
    ASSERT_LT(++steps, 1000u);
  }
  EXPECT_GE(steps, (kEntries * 8 + kDwords * 4) / 4096);
  for (std::uint64_t i = 0; i < kEntries; ++i) ASSERT_EQ(bench.get_word(i * 8), i * 4096 + 1);
  for (std::uint64_t i = 0; i < kDwords; i += 2)
    ASSERT_EQ(bench.get_word((1 << 20) + i * 4), (i + 2) << 32 | (i + 1));
}

TEST(Order, EnginesTakeFromOneBudget) {
  Bench bench;
  Ring first(bench), second(bench, {.instance = 1});
  first.fill(mc(0), 0x1111'1111, 8 << 20).submit();
  second.fill(mc(16 << 20), 0x2222'2222, 8 << 20).submit();
  std::size_t budget = 1536 * 1024;
  EXPECT_TRUE(bench.sdma0->step(budget));
  EXPECT_EQ(budget, 512u * 1024) << "its own share and no more";
  EXPECT_TRUE(bench.sdma1->step(budget));
  EXPECT_EQ(budget, 0u);
  EXPECT_FALSE(bench.sdma0->step(budget)) << "nothing is left";
}

// --- scenarios ---

TEST(Hang, QueueResetHelps) {
  Bench bench;
  Ring ring(bench);
  ASSERT_TRUE(bench.hooks.run("sdma0.0.hang", {{"queue", "0"}}));
  ring.fence(mc(0x5000), 1).submit().run();
  EXPECT_EQ(bench.get_word(0x5000), 0u);
  bench.write(kResetReq, 1);
  EXPECT_EQ(bench.read(kResetReq), 0u);
  Ring fresh(bench);
  fresh.fence(mc(0x5000), 2).submit().run();
  EXPECT_EQ(bench.get_word(0x5000), 2u);
}

TEST(Hang, OnlyTheEngineResetHelps) {
  Bench bench;
  Ring ring(bench);
  ASSERT_TRUE(bench.hooks.run("sdma0.0.hang", {{"queue", "0"}, {"hard", "true"}}));
  ring.fence(mc(0x5000), 1).submit().run();
  bench.write(kResetReq, 1);
  EXPECT_EQ(bench.read(kResetReq), 1u) << "not done";
  bench.write(kMcuCntl, 3);
  EXPECT_EQ(bench.read(kResetReq), 0u);
  Ring fresh(bench);
  fresh.fence(mc(0x5000), 2).submit().run();
  EXPECT_EQ(bench.get_word(0x5000), 2u);
}

}  // namespace
}  // namespace gpusim::test
