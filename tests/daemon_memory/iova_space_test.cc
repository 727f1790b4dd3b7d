#include "daemon/gpu/memory/iova_space.h"

#include <gtest/gtest.h>

#include <set>

namespace {

using namespace gpuumd;

vfio::IovaLimits limits(std::uint64_t first, std::uint64_t last) {
  return {.usable = {{base::Iova(first), base::Iova(last)}}};
}
const vfio::IovaLimits kWide = limits(0, ~std::uint64_t{0});

TEST(IovaSpace, ChunksAreAlignedInsideTheDmaMaskAndDistinct) {
  auto space = IovaSpace::create(kWide, 1);
  ASSERT_TRUE(space);
  std::set<base::Iova> seen;
  for (int i = 0; i < 1000; ++i) {
    const auto at = space->allocate_chunk();
    ASSERT_TRUE(at);
    EXPECT_TRUE(at->aligned(IovaSpace::kChunk));
    EXPECT_LE(at->value() + IovaSpace::kChunk, std::uint64_t{1} << IovaSpace::kDmaBits);
    EXPECT_TRUE(seen.insert(*at).second);
  }
  EXPECT_EQ(space->used(), 1000 * IovaSpace::kChunk);
}

TEST(IovaSpace, EachStartBeginsElsewhere) {
  std::set<base::Iova> starts;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    auto space = IovaSpace::create(kWide, seed);
    starts.insert(*space->allocate_chunk());
    starts.insert(*space->allocate_small(4096));
  }
  EXPECT_EQ(starts.size(), 40u);
}

TEST(IovaSpace, NothingIsAnAddressOfTheGart) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    auto space = IovaSpace::create(limits(0, (std::uint64_t{1} << 36) - 1 + base::kGiB), seed);
    EXPECT_GE(space->allocate_chunk()->value(), 512 * base::kMiB);
    EXPECT_GE(space->allocate_small(4096)->value(), 512 * base::kMiB);
  }
}

// The GPU's leaves of a short buffer are as large as those of its memory.
TEST(IovaSpace, SmallRangesAreAlignedToTheLargestPowerOfTwoInThem) {
  auto space = IovaSpace::create(kWide, 7);
  ASSERT_TRUE(space);
  for (int n = 0; n < 100; ++n) {
    EXPECT_TRUE(space->allocate_small(4096)->aligned(4096));
    EXPECT_TRUE(space->allocate_small(64 * base::kKiB)->aligned(64 * base::kKiB));
    EXPECT_TRUE(space->allocate_small(768 * base::kKiB)->aligned(512 * base::kKiB));
  }
}

TEST(IovaSpace, SmallRangesNeverShareAChunkWithLargeOnes) {
  auto space = IovaSpace::create(limits(0, 64 * base::kMiB - 1), 3);
  ASSERT_TRUE(space);
  std::set<std::uint64_t> small, large;
  while (auto at = space->allocate_small(12 * 1024)) small.insert(at->value() / IovaSpace::kChunk);
  while (auto at = space->allocate_chunk()) large.insert(at->value() / IovaSpace::kChunk);
  EXPECT_EQ(small.size(), 4u);
  EXPECT_EQ(large.size(), 28u);  // and nothing is left over
  for (const auto chunk : small) EXPECT_EQ(large.count(chunk), 0u);
  EXPECT_EQ(space->allocate_small(0).error().code, base::Errc::kInvalidArgument);
  EXPECT_EQ(space->allocate_small(IovaSpace::kChunk).error().code, base::Errc::kInvalidArgument);
}

TEST(IovaSpace, AnAddressComesAgainAsLateAsPossible) {
  auto space = IovaSpace::create(limits(0, 64 * base::kMiB - 1), 5);
  const auto first = *space->allocate_chunk();
  space->release(first, IovaSpace::kChunk);
  int others = 0;
  while (true) {
    const auto at = space->allocate_chunk();
    ASSERT_TRUE(at);
    if (*at == first) break;
    ++others;
  }
  EXPECT_EQ(others, 27);  // all other chunks came first
}

TEST(IovaSpace, OnlyReleaseMakesRoom) {
  auto space = IovaSpace::create(limits(0, 64 * base::kMiB - 1), 5);
  std::vector<base::Iova> all;
  while (auto at = space->allocate_chunk()) all.push_back(*at);
  EXPECT_EQ(space->allocate_chunk().error().code, base::Errc::kNoSpace);
  space->release(all[7], IovaSpace::kChunk);
  EXPECT_EQ(*space->allocate_chunk(), all[7]);
#ifndef NDEBUG
  space->release(all[7], IovaSpace::kChunk);
  EXPECT_DEATH(space->release(all[7], IovaSpace::kChunk), "overlaps");
#endif
}

TEST(IovaSpace, HolesOfTheIommuAreLeftOut) {
  vfio::IovaLimits holes;
  holes.usable = {{base::Iova(0), base::Iova(16 * base::kMiB - 1)},
                  {base::Iova(32 * base::kMiB), base::Iova(48 * base::kMiB + 4095)}};
  auto space = IovaSpace::create(holes, 9);
  ASSERT_TRUE(space);
  std::uint64_t count = 0;
  while (auto at = space->allocate_chunk()) {
    ++count;
    EXPECT_TRUE(
        at->value() + IovaSpace::kChunk <= 16 * base::kMiB ||
        (at->value() >= 32 * base::kMiB && at->value() + IovaSpace::kChunk <= 48 * base::kMiB));
  }
  EXPECT_EQ(count, 15u);  // 16, and one is the small region
}

TEST(IovaSpace, LimitsThatCannotWorkAreRefused) {
  EXPECT_EQ(IovaSpace::create(limits(0, base::kMiB), 1).error().code, base::Errc::kUnsupported);
  vfio::IovaLimits large_pages = kWide;
  large_pages.page_sizes = 64 * base::kKiB;
  EXPECT_EQ(IovaSpace::create(large_pages, 1).error().code, base::Errc::kUnsupported);
  const auto none = IovaSpace::create({}, 1);
  ASSERT_FALSE(none);
  EXPECT_NE(none.error().step.find("without an IOMMU"), std::string::npos);
}

}  // namespace
