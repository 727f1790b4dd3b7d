// The translation cache and invalidation.

#include <gtest/gtest.h>

#include "tests/gpusim_engines/bench.h"

namespace gpusim::test {
namespace {

constexpr unsigned kVmid = 5;
constexpr std::uint64_t kVa = 0x4000'0000;
constexpr unsigned kHeavy = 2, kLight = 1;
constexpr std::uint32_t kL2Ptes = 1u << 19, kPde0 = 1u << 20, kPde1 = 1u << 21, kPde2 = 1u << 22,
                        kL1Ptes = 1u << 23, k4kOnly = 1u << 26, kPde3 = 1u << 27;
constexpr std::uint32_t kPtes = kL1Ptes | kL2Ptes;

class Flush : public ::testing::Test {
 protected:
  Flush() {
    bench.enable_context(false, kVmid);
    bench.enable_context(false, kVmid + 1);
    bench.enable_context(true, kVmid);
    for (const unsigned vmid : {kVmid, kVmid + 1}) bench.set(false, vmid, kVa, Bench::vram_page(0));
    bench.set(true, kVmid, kVa, Bench::vram_page(0));
    bench.set_word(0, 1);
    bench.set_word(0x1000, 2);
  }
  std::uint64_t value(unsigned vmid = kVmid, bool mmhub = false) {
    std::uint64_t got = 0;
    EXPECT_EQ(bench.load(mmhub, vmid, kVa, got), Outcome::kOk);
    return got;
  }
  void remap(unsigned vmid = kVmid, bool mmhub = false) {
    bench.set(mmhub, vmid, kVa, Bench::vram_page(0x1000));
  }
  Bench bench;
};

TEST_F(Flush, D22_StaleUntilExactlyTheRightFlush) {
  EXPECT_EQ(value(), 1u);
  remap();
  EXPECT_EQ(value(), 1u);
  bench.clock.advance(10s);
  EXPECT_EQ(value(), 1u) << "time does not flush";
  bench.flush(false, kVmid + 1);
  EXPECT_EQ(value(), 1u) << "another VMID's flush";
  bench.flush(true, kVmid);
  EXPECT_EQ(value(), 1u) << "another hub's flush";
  bench.write(Bench::row(false, 0x041), 1u << 25);
  EXPECT_EQ(value(), 1u) << "CID2 bit 25";
  bench.write(Bench::row(false, 0x110 + kVmid), bench.read(Bench::row(false, 0x110 + kVmid)));
  EXPECT_EQ(value(), 1u) << "CONTEXT_CNTL";
  bench.flush(false, kVmid);
  EXPECT_EQ(value(), 2u);
}

TEST_F(Flush, D22_UnmappedStaysReachableUntilFlushed) {
  EXPECT_EQ(value(), 1u);
  bench.set(false, kVmid, kVa, kFinal);
  EXPECT_EQ(value(), 1u);
  bench.flush(false, kVmid, kHeavy);
  std::uint64_t got = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa, got), Outcome::kFault);
}

TEST_F(Flush, D22_DirectoriesAreCached) {
  EXPECT_EQ(value(), 1u);
  // A new PDB0 entry with another table: the leaf is flushed, the directory entry is not.
  const std::uint64_t table = bench.allocate_page();
  bench.set_word(table + (kVa >> 12 & 511) * 8, Bench::vram_page(0x1000));
  bench.set(false, kVmid, kVa, (Bench::kPhysical + table) | kV | kC, 1);
  bench.flush(false, kVmid, kLight, kPtes);
  EXPECT_EQ(value(), 1u);
  bench.flush(false, kVmid, kLight, kPtes | kPde1 | kPde2 | kPde3);
  EXPECT_EQ(value(), 1u);
  bench.flush(false, kVmid, kLight, kPtes | kPde0);
  EXPECT_EQ(value(), 2u);
}

TEST_F(Flush, D22_TheRootIsCached) {
  EXPECT_EQ(value(), 1u);
  bench.enable_context(false, kVmid);  // a fresh root
  remap();
  EXPECT_EQ(value(), 1u);
  bench.flush(false, kVmid, kLight, kPtes | kPde0 | kPde1 | kPde2);
  EXPECT_EQ(value(), 1u) << "the walk goes on from the old PDB3 entry";
  bench.flush(false, kVmid);
  EXPECT_EQ(value(), 2u);
}

TEST_F(Flush, D22_InvalidIsNeverCached) {
  std::uint64_t got = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa + 0x1000, got), Outcome::kFault);
  EXPECT_EQ(bench.load(false, kVmid, kVa + 0x4000'0000, got), Outcome::kFault);
  bench.set(false, kVmid, kVa + 0x1000, Bench::vram_page(0x1000));
  bench.set(false, kVmid, kVa + 0x4000'0000, Bench::vram_page(0x1000));
  EXPECT_EQ(bench.load(false, kVmid, kVa + 0x1000, got), Outcome::kOk);
  EXPECT_EQ(bench.load(false, kVmid, kVa + 0x4000'0000, got), Outcome::kOk);
}

TEST_F(Flush, LeafInADirectoryNeedsThatLevelToo) {
  constexpr std::uint64_t kBig = kVa + 0x20'0000;
  bench.set(false, kVmid, kBig, Bench::vram_page(0), 1);
  std::uint64_t got = 0;
  ASSERT_EQ(bench.load(false, kVmid, kBig, got), Outcome::kOk);
  bench.set(false, kVmid, kBig, Bench::vram_page(0x20'0000), 1);
  bench.set_word(0x20'0000, 3);
  bench.flush(false, kVmid, kLight, kPtes);
  ASSERT_EQ(bench.load(false, kVmid, kBig, got), Outcome::kOk);
  EXPECT_EQ(got, 1u);
  bench.flush(false, kVmid, kLight, kPtes | kPde0);
  ASSERT_EQ(bench.load(false, kVmid, kBig, got), Outcome::kOk);
  EXPECT_EQ(got, 3u);
}

TEST_F(Flush, OneCacheLevelAloneIsNotEnough) {
  EXPECT_EQ(value(), 1u);
  remap();
  bench.flush(false, kVmid, kLight, kL1Ptes | kPde0 | kPde1 | kPde2 | kPde3);
  EXPECT_EQ(value(), 1u);
  bench.flush(false, kVmid, kLight, kL2Ptes | kPde0 | kPde1 | kPde2 | kPde3);
  EXPECT_EQ(value(), 1u);
  bench.flush(false, kVmid, kLight, kPtes);
  EXPECT_EQ(value(), 2u);
}

TEST_F(Flush, Only4kPagesLeavesFragments) {
  bench.set(false, kVmid, kVa, Bench::vram_page(0) | fragment(2));
  EXPECT_EQ(value(), 1u);
  remap();
  bench.flush(false, kVmid, kLight, 0x08F8'0000 | k4kOnly);
  EXPECT_EQ(value(), 1u);
  bench.flush(false, kVmid, kLight);
  EXPECT_EQ(value(), 2u);
}

TEST_F(Flush, D23_NoLevelsFlushesNothingButAcknowledges) {
  EXPECT_EQ(value(), 1u);
  remap();
  bench.flush(false, kVmid, 0, 0);
  EXPECT_TRUE(bench.acknowledged(false, kVmid));
  EXPECT_EQ(value(), 1u);
}

TEST_F(Flush, D23_OneRequestNamesSeveralVmids) {
  EXPECT_EQ(value(kVmid), 1u);
  EXPECT_EQ(value(kVmid + 1), 1u);
  remap(kVmid);
  remap(kVmid + 1);
  bench.write(Bench::row(false, 0x133), 0x08F8'0000 | 3u << kVmid);
  EXPECT_EQ(bench.read(Bench::row(false, 0x145)), 3u << kVmid);
  EXPECT_EQ(value(kVmid), 2u);
  EXPECT_EQ(value(kVmid + 1), 2u);
}

TEST_F(Flush, D24_SemaphoreIsTakenByAReadAndFreedByAWrite) {
  const std::uint32_t sem = Bench::row(true, 0x121 + 4);
  EXPECT_EQ(bench.read(sem), 1u);
  EXPECT_EQ(bench.read(sem), 0u);
  EXPECT_EQ(bench.read(Bench::row(true, 0x121 + 5)), 1u) << "one an engine";
  bench.write(sem, 0);
  EXPECT_EQ(bench.read(sem), 1u);
  EXPECT_EQ(bench.read(Bench::row(false, 0x121 + 4)), 1u);
  EXPECT_EQ(bench.read(Bench::row(false, 0x121 + 4)), 1u) << "GFXHUB: always 1";
}

TEST_F(Flush, D24_RequestWithoutSemaphoreIsCounted) {
  bench.write(Bench::row(true, 0x133 + 4), 0x08F8'0001);
  EXPECT_NE(bench.read(Bench::row(true, 0x145 + 4)) & 1, 0u);
  EXPECT_EQ(bench.mm->counters().flushes_without_semaphore, 1u);
  bench.write(Bench::row(false, 0x133 + 4), 0x08F8'0001);
  EXPECT_EQ(bench.gfx->counters().flushes_without_semaphore, 0u);
}

TEST_F(Flush, D25_AcksStayUntilTheNextRequest) {
  bench.flush(false, kVmid);
  EXPECT_TRUE(bench.acknowledged(false, kVmid));
  EXPECT_TRUE(bench.acknowledged(false, kVmid));
  bench.flush(false, kVmid + 1);
  EXPECT_TRUE(bench.acknowledged(false, kVmid)) << "only the bits named are cleared";
  EXPECT_TRUE(bench.acknowledged(false, kVmid + 1));
}

TEST_F(Flush, D25_HeavyWaitsForAccessesInFlight) {
  gpusim::Run run;
  ASSERT_EQ(bench.gfx->translate(Bench::who(kVmid), kVa, 4096, AccessType::kWrite, run),
            Outcome::kOk);
  const VmHub::Ticket before = bench.gfx->begin(kVmid, run);
  bench.flush(false, kVmid, kLight);
  EXPECT_TRUE(bench.acknowledged(false, kVmid)) << "light: at once";
  bench.flush(false, kVmid, kHeavy);
  EXPECT_FALSE(bench.acknowledged(false, kVmid));
  const VmHub::Ticket after = bench.gfx->begin(kVmid, run);
  bench.gfx->end(before);
  EXPECT_TRUE(bench.acknowledged(false, kVmid)) << "what came after does not hold it up";
  bench.gfx->end(after);
}

TEST_F(Flush, D25_HeavyDoesNotWaitForOtherVmids) {
  const VmHub::Ticket other = bench.gfx->begin(kVmid + 1, gpusim::Run{});
  bench.flush(false, kVmid, kHeavy);
  EXPECT_TRUE(bench.acknowledged(false, kVmid));
  bench.gfx->end(other);
}

TEST_F(Flush, D25_RetryingAccessDoesNotHoldAHeavyFlushUp) {
  bench.enable_context(false, 7, Bench::kInterruptBits | 1 << 8);
  Ring ring(bench, {.queue = 1, .vmid = 0});
  // An IB in VMID 7 that copies from a page that is not there.
  const std::uint64_t ib = bench.allocate_page();
  bench.set(false, 7, 0x10'0000, Bench::vram_page(ib));
  bench.set(false, 7, 0x20'0000, Bench::vram_page(0x5000));
  const std::uint32_t words[] = {1, 4095, 0, 0x30'0000, 0, 0x20'0000, 0, 0};
  for (unsigned i = 0; i < 8; i += 2)
    bench.set_word(ib + i * 4, words[i] | std::uint64_t{words[i + 1]} << 32);
  ring.indirect(7, 0x10'0000, 8).submit().run();
  ASSERT_FALSE(ring.empty());
  ASSERT_FALSE(bench.interrupts.retries.empty());
  bench.flush(false, 7, kHeavy);
  EXPECT_TRUE(bench.acknowledged(false, 7));
}

TEST_F(Flush, LateAcknowledgeByScenario) {
  ASSERT_TRUE(bench.hooks.run("gfxhub0.late_ack", {{"us", "500"}, {"count", "1"}}));
  bench.flush(false, kVmid);
  EXPECT_FALSE(bench.acknowledged(false, kVmid));
  bench.clock.advance(501us);
  EXPECT_TRUE(bench.acknowledged(false, kVmid));
  bench.flush(false, kVmid);
  EXPECT_TRUE(bench.acknowledged(false, kVmid));
}

TEST_F(Flush, D45_RemoteShootdownDropsWhatEndsInNpaOfOneAccelerator) {
  bench.set(false, kVmid, kVa + 0x1000, kNpa | kRw | 3ull << 41);
  bench.set(false, kVmid, kVa + 0x2000, kNpa | kRw | 4ull << 41);
  bench.set(false, kVmid + 1, kVa + 0x1000, kNpa | kRw | 3ull << 41);
  std::uint64_t got = 0;
  for (const std::uint64_t at : {0x0u, 0x1000u, 0x2000u})
    ASSERT_EQ(bench.load(false, kVmid, kVa + at, got), Outcome::kOk);
  ASSERT_EQ(bench.load(false, kVmid + 1, kVa + 0x1000, got), Outcome::kOk);
  gpusim::Run run;
  ASSERT_EQ(bench.gfx->translate(Bench::who(kVmid), kVa + 0x1000, 8, AccessType::kRead, run),
            Outcome::kOk);
  const VmHub::Ticket ticket = bench.gfx->begin(kVmid, run);
  const std::uint64_t mark = bench.gfx->flush_npa(3);
  EXPECT_EQ(bench.gfx->cached(kVmid), 2u);
  EXPECT_EQ(bench.gfx->cached(kVmid + 1), 0u);
  EXPECT_FALSE(bench.gfx->remote_done(3, mark));
  bench.gfx->end(ticket);
  EXPECT_TRUE(bench.gfx->remote_done(3, mark));
}

TEST_F(Flush, RightsAreCachedToo) {
  bench.set(false, kVmid, kVa, Bench::vram_page(0) & ~kW);
  EXPECT_EQ(value(), 1u);
  bench.set(false, kVmid, kVa, Bench::vram_page(0));
  EXPECT_EQ(bench.store(false, kVmid, kVa, 9), Outcome::kFault);
  bench.flush(false, kVmid);
  EXPECT_EQ(bench.store(false, kVmid, kVa, 9), Outcome::kOk);
}

}  // namespace
}  // namespace gpusim::test
