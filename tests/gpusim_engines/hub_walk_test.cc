// Translation: apertures, levels, entries (docs/hardware/gpuvm.md).

#include <gtest/gtest.h>

#include <cstring>

#include "tests/gpusim_engines/bench.h"
#include "tools/gpusim/model/pte.h"

namespace gpusim::test {
namespace {

constexpr unsigned kVmid = 5;
constexpr std::uint64_t kVa = 0x0123'4567'8000'0000;  // beyond 48 bits, aligned to 1 GiB

// --- the four worked examples of NPA and exporter entries ---

TEST(Entries, NpaUncached) {
  const base::Value<PTE> entry(0x89C0'0000'0000'0064);
  EXPECT_EQ(classify(entry, 0), EntryKind::kRemote);
  EXPECT_TRUE(entry.get<PTE::R>() && entry.get<PTE::W>() && entry.get<PTE::B>());
  EXPECT_FALSE(entry.get<PTE::X>());
}

TEST(Entries, NpaNonCoherent) {
  const base::Value<PTE> entry(0x8900'0000'0000'0064);
  EXPECT_EQ(classify(entry, 0), EntryKind::kRemote);
}

TEST(Entries, ExporterNonCoherent) {
  const base::Value<PTE> entry(0x8800'0000'0000'0065);
  EXPECT_EQ(classify(entry, 0), EntryKind::kLeaf);
  EXPECT_FALSE(entry.get<PTE::S>());
  EXPECT_TRUE(entry.get<PTE::B>());
}

TEST(Entries, ExporterReadWrite) {
  const base::Value<PTE> entry(0x8880'0000'0000'0065);
  EXPECT_EQ(classify(entry, 0), EntryKind::kLeaf);
  EXPECT_EQ(classify(entry, 1), EntryKind::kLeaf);
}

TEST(Entries, D12_InvalidEntriesDecideByTheirOwnBits) {
  for (unsigned level = 0; level <= 4; ++level) {
    EXPECT_EQ(classify(base::Value<PTE>(0), level), EntryKind::kRetryable);
    EXPECT_EQ(classify(base::Value<PTE>(0x6), level), EntryKind::kFinal);
    EXPECT_EQ(classify(base::Value<PTE>(0x6 | kT | kP), level), EntryKind::kSparse);
    EXPECT_EQ(classify(base::Value<PTE>(kC | kT | kP), level), EntryKind::kRemote);
    EXPECT_EQ(classify(base::Value<PTE>(kC | kT), level), EntryKind::kRetryable);
  }
  EXPECT_EQ(classify(base::Value<PTE>(kV), 0), EntryKind::kMalformed);
  EXPECT_EQ(classify(base::Value<PTE>(kV), 1), EntryKind::kDirectory);
}

// --- VMID 0 ---

TEST(Vmid0, D9_FrameBufferApertureIsMcNotPhysical) {
  Bench bench;
  bench.set_word(0x1238, 77);
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, 0, Bench::kFbBase + 0x1238, value), Outcome::kOk);
  EXPECT_EQ(value, 77u);
  // The physical address of the same byte means nothing in VMID 0.
  EXPECT_EQ(bench.load(false, 0, Bench::kPhysical + 0x1238, value), Outcome::kFault);
  EXPECT_EQ(bench.load(false, 0, 0x1238, value), Outcome::kFault);
}

TEST(Vmid0, D10_ApertureNeedsTheSystemAperture) {
  Bench bench;
  std::uint64_t value = 0;
  bench.write_pair(Bench::row(false, 0x10A), (Bench::kFbBase >> 18) + 1);
  EXPECT_EQ(bench.load(false, 0, Bench::kFbBase, value), Outcome::kFault);
  EXPECT_EQ(bench.load(false, 0, Bench::kFbBase + 0x4'0000, value), Outcome::kOk);
}

TEST(Vmid0, D10_AgpWindowComesAfterTheTable) {
  Bench bench;
  std::byte* memory = bench.bus.map(0x7700'0000, 4096);
  memory[8] = std::byte{42};
  bench.write_pair(Bench::row(false, 0x104), 5);     // TOP
  bench.write_pair(Bench::row(false, 0x106), 5);     // BOT
  bench.write_pair(Bench::row(false, 0x108), 0x77);  // BASE
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, 0, 0x0500'0008, value), Outcome::kOk);
  EXPECT_EQ(value, 42u);
  // A GART over the same addresses wins.
  bench.write_pair(Bench::row(false, 0x17B), Bench::kPhysical | kV | kC);
  bench.write_pair(Bench::row(false, 0x19B), 0);
  bench.write_pair(Bench::row(false, 0x1BB), 0x5FFF);
  bench.write(Bench::row(false, 0x110), 1);
  EXPECT_EQ(bench.load(false, 0, 0x0500'0008, value), Outcome::kFault);
}

TEST(Vmid0, D11_FlatTableIsIndexedFromStart) {
  Bench bench;
  const std::uint64_t table = bench.allocate_page();
  std::byte* memory = bench.bus.map(0x9'0000'0000, 4096);
  memory[0] = std::byte{9};
  bench.set_word(table + 3 * 8, Bench::system_page(0x9'0000'0000));
  bench.write_pair(Bench::row(true, 0x17B), (Bench::kPhysical + table) | kV | kC);
  bench.write_pair(Bench::row(true, 0x19B), 0x4'0000);
  bench.write_pair(Bench::row(true, 0x1BB), 0x4'00FF);
  bench.write(Bench::row(true, 0x110), 1);
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(true, 0, 0x4'0003'000, value), Outcome::kOk);
  EXPECT_EQ(value, 9u);
  EXPECT_EQ(bench.load(true, 0, 0x4'0100'000, value), Outcome::kFault) << "past END";
}

TEST(Contexts, D10_ClientsHaveNoApertures) {
  Bench bench;
  bench.enable_context(false, kVmid);
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, Bench::kFbBase, value), Outcome::kFault);
}

TEST(Contexts, D11_RootWithoutValidFaultsEveryAccess) {
  Bench bench;
  bench.enable_context(false, kVmid, Bench::kInterruptBits | 1 << 8);
  bench.write_pair(Bench::row(false, 0x17B + 2 * kVmid), 0);
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kFault) << "final, even with retry on";
}

// --- the five levels ---

class Levels : public ::testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(All, Levels, ::testing::Values(0u, 1u));

TEST_P(Levels, D12_LeafCoversTheLevelsSpan) {
  Bench bench;
  bench.enable_context(false, kVmid);
  const std::uint64_t span = 4096ull << (9 * GetParam());
  bench.set(false, kVmid, kVa, Bench::vram_page(0), GetParam());
  bench.set_word(span - 8, 4711);
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa + span - 8, value), Outcome::kOk);
  EXPECT_EQ(value, 4711u);
  EXPECT_EQ(bench.load(false, kVmid, kVa + span, value), Outcome::kFault);
}

class HighLevels : public ::testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(All, HighLevels, ::testing::Values(2u, 3u, 4u));

// VRAM is too small for these: the far end is found on the fabric.
TEST_P(HighLevels, D12_NpaLeafAtEveryLevel) {
  Bench bench;
  bench.enable_context(false, kVmid);
  const std::uint64_t span = 4096ull << (9 * GetParam());
  const std::uint64_t va = base::align_down(kVa, span);
  bench.set(false, kVmid, va, kNpa | kRw, GetParam());
  bench.fabric.answer = Outcome::kRefused;
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, va + span - 8, value), Outcome::kRefused);
  ASSERT_EQ(bench.fabric.seen.size(), 1u);
  EXPECT_EQ(bench.fabric.seen[0].npa, span - 8);
}

TEST_P(HighLevels, D12_UnalignedLeafIsAMappingError) {
  Bench bench;
  bench.enable_context(false, kVmid);
  const std::uint64_t va = base::align_down(kVa, 4096ull << (9 * GetParam()));
  bench.set(false, kVmid, va, kNpa | kRw | 0x1000, GetParam());
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, va, value), Outcome::kFault);
  EXPECT_NE(bench.status(false) & 1 << 10, 0u);
}

TEST(Contexts, D9_PhysicalAddressOutsideVramIsAMappingError) {
  Bench bench;
  bench.enable_context(false, kVmid);
  bench.set(false, kVmid, kVa, (Bench::kPhysical + Bench::kVram) | kV | kP | kRw);
  bench.set(false, kVmid, kVa + 4096, 0x1000 | kV | kP | kRw);
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kFault);
  EXPECT_NE(bench.status(false) & 1 << 10, 0u);
  EXPECT_EQ(bench.load(false, kVmid, kVa + 4096, value), Outcome::kFault);
}

TEST(Contexts, D12_LevelZeroLeafNeedsP) {
  Bench bench;
  bench.enable_context(false, kVmid);
  bench.set(false, kVmid, kVa, Bench::vram_page(0) & ~kP);
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kFault);
  EXPECT_NE(bench.status(false) >> 1 & 0xF, 0u) << "WALKER_ERROR";
}

TEST(Contexts, D12_SparseReadsZeroAndDropsWrites) {
  Bench bench;
  bench.enable_context(false, kVmid);
  bench.set(false, kVmid, kVa, kFinal | kT | kP);
  std::uint64_t value = 1;
  EXPECT_EQ(bench.store(false, kVmid, kVa, 5), Outcome::kOk);
  EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kOk);
  EXPECT_EQ(value, 0u);
  EXPECT_TRUE(bench.interrupts.ivs.empty());
  EXPECT_EQ(bench.gfx->cached(kVmid), 0u) << "it is no valid entry";
}

TEST(Contexts, TablesInSystemMemory) {
  Bench bench;
  bench.enable_context(false, kVmid);
  std::byte* table = bench.bus.map(0x5000'0000, 4096);
  bench.set(false, kVmid, kVa, 0x5000'0000 | kV | kS | kC, 1);
  const std::uint64_t entry = Bench::vram_page(0x3000);
  std::memcpy(table, &entry, sizeof entry);
  bench.set_word(0x3000, 31);
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kOk);
  EXPECT_EQ(value, 31u);
  // The next page's entry is looked for in a table that the host took away.
  bench.bus.unmap(0x5000'0000);
  EXPECT_EQ(bench.load(false, kVmid, kVa + 4096, value), Outcome::kBusError);
}

// --- FRAGMENT ---

TEST(Fragment, D22_OneEntryServesTheWholeRun) {
  Bench bench;
  bench.enable_context(false, kVmid);
  bench.set(false, kVmid, kVa + 3 * 4096, Bench::vram_page(3 * 4096) | fragment(4));
  bench.set_word(15 * 4096, 15);
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa + 3 * 4096, value), Outcome::kOk);
  // No entry stands there, yet it is believed.
  EXPECT_EQ(bench.load(false, kVmid, kVa + 15 * 4096, value), Outcome::kOk);
  EXPECT_EQ(value, 15u);
  EXPECT_EQ(bench.gfx->cached(kVmid), 1u);
  EXPECT_EQ(bench.load(false, kVmid, kVa + 16 * 4096, value), Outcome::kFault);
}

TEST(Fragment, ALieIsBelievedToo) {
  Bench bench;
  bench.enable_context(false, kVmid);
  bench.set(false, kVmid, kVa, Bench::vram_page(0) | fragment(1));
  bench.set(false, kVmid, kVa + 4096, Bench::vram_page(0x8000) | fragment(1));
  bench.set_word(0x1000, 1);
  bench.set_word(0x8000, 8);
  std::uint64_t value = 0;
  ASSERT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kOk);
  ASSERT_EQ(bench.load(false, kVmid, kVa + 4096, value), Outcome::kOk);
  EXPECT_EQ(value, 1u) << "the run is taken as contiguous";
}

TEST(Fragment, ARunThatLeavesVramFaultsWhereItLeaves) {
  Bench bench;
  bench.enable_context(false, kVmid);
  bench.set(false, kVmid, kVa, Bench::vram_page(Bench::kVram - 4096) | fragment(9));
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kOk);
  EXPECT_EQ(bench.load(false, kVmid, kVa + 4096, value), Outcome::kFault);
  bench.flush(false, kVmid);
}

TEST(Contexts, AccessAcrossPagesGoesPieceByPiece) {
  Bench bench;
  bench.enable_context(false, kVmid);
  std::byte* memory = bench.bus.map(0x6000'0000, 4096);
  bench.set(false, kVmid, kVa, Bench::vram_page(0x7000));
  bench.set(false, kVmid, kVa + 4096, Bench::system_page(0x6000'0000));
  const std::uint64_t value = 0x1122'3344'5566'7788;
  EXPECT_EQ(bench.store(false, kVmid, kVa + 4092, value), Outcome::kOk);
  EXPECT_EQ(bench.get_word(0x7FF8) >> 32, 0x5566'7788u);
  EXPECT_EQ(memory[3], std::byte{0x11});
  std::uint64_t back = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa + 4092, back), Outcome::kOk);
  EXPECT_EQ(back, value);
}

}  // namespace
}  // namespace gpusim::test
