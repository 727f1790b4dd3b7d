#include "daemon/gpu/memory/page_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/daemon_memory/memory_fixture.h"

namespace {

using namespace gpuumd;
using fake::Vm;

constexpr PteFlags kReadWrite{.read = true, .write = true};
constexpr PteFlags kReadOnly{.read = true};
constexpr std::uint64_t kPage = base::kPageSize;
constexpr std::uint64_t kHuge = 2 * base::kMiB;

PhysRun system_run(std::uint64_t at, std::uint64_t pages) {
  return PhysRun::system(base::Iova(at), pages);
}

TEST(PageTable, MapsWhatWasAskedAndNothingElse) {
  Vm vm(Unmapped::kNoRetry);
  vm.map(0x7'1234'5000, {PhysRun::vram(base::VramOffset(0x3000), 1), system_run(0x9000, 2)},
         kReadWrite);
  const auto first = vm.walk(0x7'1234'5000);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->address, 0x1'0000'3000u);
  EXPECT_FALSE(first->system);
  const auto last = vm.walk(0x7'1234'7FFF);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->address, 0xA000u);
  EXPECT_TRUE(last->system);
  EXPECT_FALSE(vm.walk(0x7'1234'4000));
  EXPECT_FALSE(vm.walk(0x7'1234'8000));
}

TEST(PageTable, UnmappedSaysWhatTheModeWants) {
  for (const auto& [mode, pattern] :
       {std::pair(Unmapped::kNoRetry, 6u), std::pair(Unmapped::kRetry, 0u)}) {
    Vm vm(mode);
    EXPECT_FALSE(vm.walk(0x5000));
    EXPECT_EQ(vm.walker.last_entry(), pattern);  // at the root
    vm.map(0x5000, {system_run(0x9000, 2)}, kReadOnly);
    EXPECT_FALSE(vm.walk(0x7000));
    EXPECT_EQ(vm.walker.last_entry(), pattern);  // in the PTB
    EXPECT_FALSE(vm.walk(0x40'0000'0000));
    EXPECT_EQ(vm.walker.last_entry(), pattern);  // in a directory
    vm.unmap(0x5000, kPage);
    EXPECT_FALSE(vm.walk(0x5000));
    EXPECT_EQ(vm.walker.last_entry(), pattern);
  }
}

TEST(PageTable, LeavesAreAsLargeAsAlignmentAllows) {
  Vm vm(Unmapped::kNoRetry);
  vm.map(0, {system_run(base::kGiB, base::kGiB / kPage)}, kReadWrite);
  EXPECT_EQ(vm.walk(0x1234'5000)->level, 2u);
  EXPECT_EQ(vm.table->tables(), 3u);  // root, PDB2, PDB1
  vm.map(4 * base::kGiB, {system_run(kHuge, 512)}, kReadWrite);
  EXPECT_EQ(vm.walk(4 * base::kGiB + 0x5000)->level, 1u);
  EXPECT_EQ(vm.walk(4 * base::kGiB + 0x5000)->address, kHuge + 0x5000);
  vm.map(8 * base::kGiB, {system_run(kPage, 512)}, kReadWrite);  // address not aligned alike
  EXPECT_EQ(vm.walk(8 * base::kGiB)->level, 0u);
}

TEST(PageTable, FragmentNamesTheAlignedRun) {
  Vm vm(Unmapped::kNoRetry);
  vm.map(0x10000, {system_run(0x50000, 16)}, kReadWrite);
  EXPECT_EQ(vm.walk(0x10000)->fragment, 4u);
  EXPECT_EQ(vm.walk(0x1F000)->fragment, 4u);
  // Taking one page out cuts the run on both sides of it.
  vm.unmap(0x15000, kPage);
  EXPECT_EQ(vm.walk(0x13000)->fragment, 2u);
  EXPECT_EQ(vm.walk(0x14000)->fragment, 0u);
  EXPECT_EQ(vm.walk(0x16000)->fragment, 1u);
  EXPECT_EQ(vm.walk(0x18000)->fragment, 3u);
  // And not across pages that are no neighbours in memory.
  vm.map(0x20000, {system_run(0x100000, 1), system_run(0x900000, 1)}, kReadWrite);
  EXPECT_EQ(vm.walk(0x20000)->fragment, 0u);
}

TEST(PageTable, PartialUnmapSplitsLargeLeaves) {
  Vm vm(Unmapped::kNoRetry);
  vm.map(0, {system_run(base::kGiB, base::kGiB / kPage)}, kReadWrite);
  vm.unmap(0x4000'0000 - 3 * kPage, kPage);
  EXPECT_FALSE(vm.walk(0x4000'0000 - 3 * kPage));
  const auto before = vm.walk(0x4000'0000 - 4 * kPage);
  ASSERT_TRUE(before);
  EXPECT_EQ(before->address, 2 * base::kGiB - 4 * kPage);
  EXPECT_EQ(vm.walk(0x4000'0000 - kPage)->address, 2 * base::kGiB - kPage);
  EXPECT_EQ(vm.walk(kHuge)->level, 1u);
  EXPECT_EQ(vm.table->tables(), 5u);
}

TEST(PageTable, FullContiguousTablesBecomeOneLeaf) {
  Vm vm(Unmapped::kRetry);
  // As faults come in: page after page.
  for (unsigned i = 0; i < 512; ++i)
    vm.map(kHuge + i * kPage, {system_run(8 * kHuge + i * kPage, 1)}, kReadWrite);
  EXPECT_EQ(vm.walk(kHuge + 0x7000)->level, 1u);
  EXPECT_EQ(vm.walk(kHuge + 0x7000)->address, 8 * kHuge + 0x7000);
  EXPECT_EQ(vm.table->tables(), 4u);
}

TEST(PageTable, ChangeOfRightsReachesSinglePagesOfALeaf) {
  Vm vm(Unmapped::kNoRetry);
  vm.map(0, {system_run(kHuge, 512)}, kReadOnly);
  vm.map(0x6000, {system_run(kHuge + 0x6000, 1)}, kReadWrite);
  EXPECT_TRUE(vm.walk(0x6000)->write);
  EXPECT_EQ(vm.walk(0x6000)->fragment, 0u);
  EXPECT_FALSE(vm.walk(0x7000)->write);
  EXPECT_EQ(vm.walk(0x7000)->address, kHuge + 0x7000);
  vm.map(0, {system_run(kHuge, 512)}, kReadOnly);  // back again: one leaf
  EXPECT_EQ(vm.walk(0x6000)->level, 1u);
  EXPECT_FALSE(vm.walk(0x6000)->write);
}

TEST(PageTable, NpaPagesAreLeavesThatAreNotValid) {
  Vm vm(Unmapped::kNoRetry);
  const std::uint64_t npa = std::uint64_t{5} << 41 | 64 * base::kMiB;
  vm.map(0x40'0000, {PhysRun::npa(base::Npa(npa), 600)}, kReadWrite);
  const auto large = vm.walk(0x40'1000);
  ASSERT_TRUE(large);
  EXPECT_TRUE(large->npa);
  EXPECT_EQ(large->level, 1u);
  EXPECT_EQ(large->address, npa + kPage);
  EXPECT_TRUE(vm.table->occupied(base::GpuVa(0x40'0000), kPage));  // errata C9
  vm.unmap(0x40'0000, 600 * kPage);
  EXPECT_FALSE(vm.walk(0x40'1000));
  EXPECT_EQ(vm.table->tables(), 1u);
}

TEST(PageTable, RequestsThatCannotBeAreRefused) {
  Vm vm(Unmapped::kNoRetry);
  auto code = [](const auto& result) { return result.error().code; };
  auto& table = *vm.table;
  EXPECT_EQ(code(table.plan_map(base::GpuVa(0x800), {system_run(0, 1)}, kReadWrite)),
            base::Errc::kInvalidArgument);
  EXPECT_EQ(code(table.plan_map(base::GpuVa(0), {}, kReadWrite)), base::Errc::kInvalidArgument);
  EXPECT_EQ(code(table.plan_map(PageTable::kEnd - kPage, {system_run(0, 2)}, kReadWrite)),
            base::Errc::kOutOfRange);
  EXPECT_EQ(code(table.plan_map(base::GpuVa(0), {system_run(kPhysicalEnd, 1)}, kReadWrite)),
            base::Errc::kInvalidArgument);
  EXPECT_EQ(code(table.plan_map(base::GpuVa(0), {PhysRun::npa(base::Npa(0), 1)},
                                {.read = true, .execute = true})),
            base::Errc::kInvalidArgument);
  EXPECT_EQ(code(table.plan_unmap(base::GpuVa(0), 0)), base::Errc::kInvalidArgument);
  EXPECT_EQ(code(table.plan_unmap(PageTable::kEnd - kPage, 2 * kPage)), base::Errc::kOutOfRange);
  EXPECT_EQ(vm.pages.left, 1999u);
}

TEST(PageTable, VMB_4_VMB_25_ShortageShowsInThePlanAndTheChangeCannotFail) {
  Vm vm(Unmapped::kNoRetry, 6);
  auto plan = vm.table->plan_map(base::GpuVa(0x5000), {system_run(0x9000, 1)}, kReadWrite);
  ASSERT_TRUE(plan);
  EXPECT_EQ(vm.pages.left, 1u);  // root and four levels
  const auto second =
      vm.table->plan_map(base::GpuVa(std::uint64_t{1} << 50), {system_run(0x9000, 1)}, kReadWrite);
  EXPECT_EQ(second.error().code, base::Errc::kAgain);
  EXPECT_EQ(vm.pages.left, 1u);  // nothing kept by the plan that failed
  TableUpdate update;
  vm.table->map(std::move(*plan), update);
  vm.apply(update);
  EXPECT_TRUE(vm.walk(0x5000));
}

TEST(PageTable, VMB_4_PlansStayGoodWhileOthersPass) {
  Vm vm(Unmapped::kNoRetry);
  vm.map(0x5000, {system_run(0x9000, 1)}, kReadWrite);
  // This plan finds every table there; then they go.
  auto plan = vm.table->plan_map(base::GpuVa(0x6000), {system_run(0xA000, 1)}, kReadWrite);
  ASSERT_TRUE(plan);
  vm.unmap(0x5000, kPage);
  EXPECT_EQ(vm.table->tables(), 1u);
  TableUpdate update;
  vm.table->map(std::move(*plan), update);
  vm.apply(update);
  EXPECT_EQ(vm.walk(0x6000)->address, 0xA000u);
}

TEST(PageTable, ScatteredPagesReserveOneTableAChunk) {
  const PteFormat format{.vram = fake::kVramMap};
  std::vector<PhysRun> runs;
  for (unsigned i = 0; i < 1024; ++i) runs.push_back(system_run(i * 2 * kPage, 1));
  EXPECT_EQ(PageTable::tables_for_map(format, base::GpuVa(0), runs), 2u + 3u);
  runs = {system_run(base::kGiB, 4 * base::kGiB / kPage)};
  EXPECT_EQ(PageTable::tables_for_map(format, base::GpuVa(0), runs), 2u);  // 1 GiB leaves
  EXPECT_EQ(PageTable::tables_for_map(format, base::GpuVa(kPage), runs), 2049u + 5u + 2u);
}

TEST(PageTable, UnmapFlushesBeforeTablesAreFreed) {
  Vm vm(Unmapped::kNoRetry);
  const auto all = vm.pages.left;
  vm.map(0x5000, {system_run(0x9000, 1)}, kReadWrite);
  EXPECT_EQ(vm.pages.left, all - 4);
  auto plan = vm.table->plan_unmap(base::GpuVa(0x5000), kPage);
  ASSERT_TRUE(plan);
  TableUpdate update;
  vm.table->unmap(std::move(*plan), update);
  vm.apply(update);
  EXPECT_FALSE(vm.walk(0x5000));
  EXPECT_TRUE(update.needs_flush());
  EXPECT_EQ(update.freed.size(), 4u);
  EXPECT_EQ(vm.pages.left, all - 4);  // still walked by whoever has the old root entry cached
  vm.table->flushed(std::move(update));
  EXPECT_EQ(vm.pages.left, all);
}

TEST(PageTable, INV_5_AnAddressIsTakenUntilItsFlush) {
  Vm vm(Unmapped::kNoRetry);
  vm.map(0x5000, {system_run(0x9000, 1)}, kReadWrite);
  auto plan = vm.table->plan_unmap(base::GpuVa(0x5000), kPage);
  ASSERT_TRUE(plan);
  TableUpdate update;
  vm.table->unmap(std::move(*plan), update);
  EXPECT_TRUE(vm.table->occupied(base::GpuVa(0x5000), kPage));
#ifndef NDEBUG
  {
    auto map = vm.table->plan_map(base::GpuVa(0x5000), {system_run(0xB000, 1)}, kReadWrite);
    ASSERT_TRUE(map);
    TableUpdate early;
    EXPECT_DEATH(vm.table->map(std::move(*map), early), "unflushed_");
  }
#endif
  vm.table->flushed(std::move(update));
  EXPECT_FALSE(vm.table->occupied(base::GpuVa(0x5000), kPage));
  vm.map(0x5000, {system_run(0xB000, 1)}, kReadWrite);
  EXPECT_EQ(vm.walk(0x5000)->address, 0xB000u);
}

// Every entry that makes a new table reachable comes in the second stage; all else of it before.
TEST(PageTable, NewTablesAreFilledBeforeTheyAreLinked) {
  Vm vm(Unmapped::kNoRetry);
  auto plan = vm.table->plan_map(base::GpuVa(0x5000), {system_run(0x9000, 1)}, kReadWrite);
  ASSERT_TRUE(plan);
  TableUpdate update;
  vm.table->map(std::move(*plan), update);
  ASSERT_EQ(update.link.size(), 1u);
  EXPECT_EQ(update.link[0].count, 1u);
  std::uint64_t filled = 0;
  for (const EntryRun& run : update.fill) filled += run.count;
  EXPECT_EQ(filled, 4u * 512);
  EXPECT_FALSE(update.needs_flush());  // nothing valid was replaced
  // A second page of the same table: one entry, no fill.
  auto next = vm.table->plan_map(base::GpuVa(0x6000), {system_run(0x1'9000, 1)}, kReadWrite);
  ASSERT_TRUE(next);
  TableUpdate second;
  vm.table->map(std::move(*next), second);
  EXPECT_TRUE(second.fill.empty());
  EXPECT_EQ(second.link.size(), 1u);
}

TEST(PageTable, SplitShowsTheSamePagesBeforeAndAfterTheLink) {
  Vm vm(Unmapped::kNoRetry);
  vm.map(0, {system_run(kHuge, 512)}, kReadWrite);
  auto plan = vm.table->plan_unmap(base::GpuVa(0x8000), kPage);
  ASSERT_TRUE(plan);
  TableUpdate update;
  vm.table->unmap(std::move(*plan), update);
  const auto link = std::exchange(update.link, {});
  vm.apply(update);  // the fill alone changes nothing that is reachable
  EXPECT_EQ(vm.walk(0x8000)->level, 1u);
  update.fill.clear();
  update.link = link;
  vm.apply(update);
  EXPECT_FALSE(vm.walk(0x8000));
  EXPECT_EQ(vm.walk(0x9000)->address, kHuge + 0x9000);
}

TEST(TablePage, MayOutliveItsPool) {
  auto pool = std::make_unique<fake::TestTablePages>(2);
  auto kept = pool->take(), back = pool->take();
  back.reset();
  EXPECT_EQ(pool->left, 1u);
  pool.reset();
  EXPECT_TRUE(kept);
  kept.reset();
  EXPECT_FALSE(kept);
}

}  // namespace
