// VRAM: what a missing HDP flush does, and poison.

#include <gtest/gtest.h>

#include <sys/mman.h>

#include <cstring>

#include "base/bytes.h"
#include "tests/gpusim_engines/bench.h"

namespace gpusim::test {
namespace {

constexpr unsigned kVmid = 5;
constexpr std::uint64_t kVa = 0x10'0000;

TEST(Vram, IsSealedAndBiggerThanItsBar) {
  ManualClock clock;
  VramOptions options;
  options.bytes = 32 << 20;
  options.visible_bytes = 16 << 20;
  auto vram = Vram::create(options, clock);
  ASSERT_TRUE(vram);
  const auto size = base::sealed_size((*vram)->fd());
  ASSERT_TRUE(size);
  EXPECT_EQ(*size, options.bytes);
  options.visible_bytes = 64 << 20;
  EXPECT_FALSE(Vram::create(options, clock));
}

class Hdp : public ::testing::Test {
 protected:
  Hdp() {
    bench.enable_context(false, kVmid);
    bench.set(false, kVmid, kVa, Bench::vram_page(0x1000));
    bench.set_word(0x1000, 1);
    bench.vram->hdp_flush();
    std::uint64_t value = 0;
    EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kOk);
  }
  Bench bench{BenchOptions{.hdp_strict = true}};
};

TEST_F(Hdp, PageTableStoresNeedAFlush) {
  bench.set(false, kVmid, kVa + 0x1000, Bench::vram_page(0x2000));
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa + 0x1000, value), Outcome::kFault);
  EXPECT_GT(bench.vram->counters().held_stores, 0u);
  bench.vram->hdp_flush();
  EXPECT_EQ(bench.load(false, kVmid, kVa + 0x1000, value), Outcome::kOk);
}

TEST_F(Hdp, AlsoAfterAnEarlierFlush) {
  bench.vram->hdp_flush();
  bench.clock.advance(5s);
  bench.set(false, kVmid, kVa + 0x1000, Bench::vram_page(0x2000));
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa + 0x1000, value), Outcome::kFault);
}

TEST_F(Hdp, StoresArriveByThemselvesAfterAMillisecond) {
  bench.set(false, kVmid, kVa + 0x1000, Bench::vram_page(0x2000));
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa + 0x1000, value), Outcome::kFault);
  bench.clock.advance(1ms);
  bench.load(false, kVmid, kVa + 0x1000, value);
  EXPECT_EQ(bench.load(false, kVmid, kVa + 0x1000, value), Outcome::kOk);
}

TEST_F(Hdp, EngineStoresAreSeenAtOnce) {
  const std::uint64_t entry = bench.entry_at(false, kVmid, kVa + 0x1000);
  EXPECT_EQ(bench.store(false, 0, Bench::kFbBase + entry, Bench::vram_page(0x2000)), Outcome::kOk);
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa + 0x1000, value), Outcome::kOk);
  EXPECT_EQ(bench.get_word(entry), Bench::vram_page(0x2000)) << "and by the CPU";
}

TEST_F(Hdp, BulkReadsHonourWhatIsHeld) {
  bench.set_word(0x1000, 2);
  std::vector<std::byte> big(16 * 1024);
  EXPECT_EQ(bench.gfx->read(Bench::who(0), Bench::kFbBase, big), Outcome::kOk);
  EXPECT_EQ(base::load<std::uint64_t>(big, 0x1000), 1u);
  bench.vram->hdp_flush();
  EXPECT_EQ(bench.gfx->read(Bench::who(0), Bench::kFbBase, big), Outcome::kOk);
  EXPECT_EQ(base::load<std::uint64_t>(big, 0x1000), 2u);
}

TEST_F(Hdp, ManyHeldPages) {
  for (unsigned i = 0; i < 64; ++i) {
    std::uint64_t value = 0;
    EXPECT_EQ(bench.load(false, 0, Bench::kFbBase + 0x10'0000 + i * 4096, value), Outcome::kOk);
    bench.set_word(0x10'0000 + i * 4096, i + 1);
  }
  bench.vram->hdp_flush();
  for (unsigned i = 0; i < 64; ++i) {
    std::uint64_t value = 0;
    EXPECT_EQ(bench.load(false, 0, Bench::kFbBase + 0x10'0000 + i * 4096, value), Outcome::kOk);
    EXPECT_EQ(value, i + 1);
  }
}

// --- poison ---

class Poison : public ::testing::TestWithParam<PoisonMode> {
 protected:
  Poison() {
    for (const unsigned vmid : {kVmid, kVmid + 1}) bench.enable_context(false, vmid);
    bench.set(false, kVmid, kVa, Bench::vram_page(0x1000));
    bench.set_word(0x1008, 42);
    std::uint64_t value = 0;
    EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kOk);
  }
  void unmap() {
    bench.set(false, kVmid, kVa, kFinal);
    bench.flush(false, kVmid, 2);
  }
  std::uint64_t poison_reads() { return bench.vram->counters().poison_reads; }
  Bench bench{BenchOptions{.poison = GetParam()}};
};
INSTANTIATE_TEST_SUITE_P(Modes, Poison, ::testing::Values(PoisonMode::kCount, PoisonMode::kFill));

TEST_P(Poison, AnotherOwnerReadsWhatNobodyWrote) {
  unmap();
  EXPECT_EQ(bench.vram->counters().poisoned_pages, 1u);
  bench.set(false, kVmid + 1, kVa, Bench::vram_page(0x1000));
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid + 1, kVa + 8, value), Outcome::kOk);
  EXPECT_EQ(poison_reads(), 1u);
  EXPECT_EQ(bench.vram->counters().last_poison_read, 0x1008u);
  EXPECT_EQ(value, GetParam() == PoisonMode::kFill ? Vram::kPoisonPattern : 42u);
}

// A driver that empties a table takes the table away and leaves the entry in it alone.
TEST_P(Poison, ADirectoryTakenAwayFreesWhatIsBelowIt) {
  for (const unsigned level : {1, 2, 3, 4}) {
    Bench fresh{BenchOptions{.poison = GetParam()}};
    fresh.enable_context(false, kVmid);
    fresh.set(false, kVmid, kVa, Bench::vram_page(0x1000));
    std::uint64_t value = 0;
    ASSERT_EQ(fresh.load(false, kVmid, kVa, value), Outcome::kOk);
    fresh.set(false, kVmid, kVa, kFinal, level);
    fresh.flush(false, kVmid, 2);
    EXPECT_EQ(fresh.vram->counters().poisoned_pages, 1u) << level;
  }
}

// A driver that ends an address space leaves its tables as they are and takes the root.
TEST_P(Poison, ARootTakenAwayFreesWhatIsBelowIt) {
  bench.write_pair(Bench::row(false, 0x17B + 2 * kVmid), 0);
  bench.flush(false, kVmid, 2);
  EXPECT_EQ(bench.vram->counters().poisoned_pages, 1u);
  // The owner may come back under another VMID.
  bench.interrupts.pasids[kVmid + 1] = bench.interrupts.pasid(false, kVmid);
  bench.set(false, kVmid + 1, kVa, Bench::vram_page(0x1000));
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid + 1, kVa + 8, value), Outcome::kOk);
  EXPECT_EQ(poison_reads(), 0u);
  // Nobody else may.
  bench.enable_context(false, kVmid + 2);
  bench.set(false, kVmid + 2, kVa, Bench::vram_page(0x1000));
  EXPECT_EQ(bench.load(false, kVmid + 2, kVa + 8, value), Outcome::kOk);
  EXPECT_EQ(poison_reads(), 1u);
}

// Whatever PASID the tables of the interrupt handler give for them.
TEST_P(Poison, TheDriversOwnSpacesMayReadAndOwnNothing) {
  bench.enable_context(true, 15);
  bench.set(true, 15, kVa, Bench::vram_page(0x1000));
  std::uint64_t value = 0;
  unmap();
  EXPECT_EQ(bench.vram->counters().poisoned_pages, 1u);
  EXPECT_EQ(bench.load(true, 15, kVa + 8, value), Outcome::kOk);
  EXPECT_EQ(poison_reads(), 0u);
  bench.set(true, 15, kVa, kFinal);
  bench.flush(true, 15, 2);
  EXPECT_EQ(bench.vram->counters().poisoned_pages, 1u) << "of the VM alone";
}

TEST_P(Poison, ATableInThePlaceOfAnotherFreesWhatWasInThat) {
  const std::uint64_t place = bench.entry_at(false, kVmid, kVa, 1);
  bench.set_word(place,
                 (bench.get_word(place) & 0xFFF) | (Bench::kPhysical + bench.allocate_page()));
  bench.flush(false, kVmid, 2);
  EXPECT_EQ(bench.vram->counters().poisoned_pages, 1u);
}

TEST_P(Poison, AClearedPageIsClean) {
  unmap();
  EXPECT_EQ(bench.store(false, 0, Bench::kFbBase + 0x1000, 0), Outcome::kOk);
  bench.set(false, kVmid + 1, kVa, Bench::vram_page(0x1000));
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid + 1, kVa, value), Outcome::kOk);
  EXPECT_EQ(poison_reads(), 0u);
}

TEST_P(Poison, TheSameOwnerMayMapItAgain) {
  unmap();
  bench.set(false, kVmid, kVa, Bench::vram_page(0x1000));
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa + 8, value), Outcome::kOk);
  EXPECT_EQ(poison_reads(), 0u);
}

TEST_P(Poison, AFlushOfALiveEntryPoisonsNothing) {
  bench.flush(false, kVmid, 2);
  EXPECT_EQ(bench.vram->counters().poisoned_pages, 0u);
  EXPECT_EQ(bench.get_word(0x1008), 42u);
}

TEST_P(Poison, AnotherCachedTranslationKeepsThePage) {
  bench.set(false, kVmid + 1, kVa, Bench::vram_page(0x1000));
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid + 1, kVa, value), Outcome::kOk);
  unmap();
  EXPECT_EQ(bench.vram->counters().poisoned_pages, 0u);
  EXPECT_EQ(bench.get_word(0x1008), 42u);
}

TEST(PoisonOff, CountsNothing) {
  Bench bench{BenchOptions{.poison = PoisonMode::kOff}};
  bench.enable_context(false, kVmid);
  bench.set(false, kVmid, kVa, Bench::vram_page(0x1000));
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kOk);
  bench.set(false, kVmid, kVa, kFinal);
  bench.flush(false, kVmid);
  EXPECT_EQ(bench.vram->counters().poisoned_pages, 0u);
}

}  // namespace
}  // namespace gpusim::test
