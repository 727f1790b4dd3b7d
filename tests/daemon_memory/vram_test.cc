#include "daemon/gpu/memory/vram.h"

#include <gtest/gtest.h>

#include <random>

namespace {

using namespace gpuumd;

constexpr std::uint64_t kSize = base::kGiB;
constexpr std::uint64_t kVisible = 64 * base::kMiB;
// Where docs/hardware/discovery.md finds the table.
const Vram::Range kDiscovery{base::VramOffset(kSize - 64 * base::kKiB), 64 * base::kKiB};

Vram make() { return std::move(*Vram::create(kSize, kVisible, {kDiscovery})); }

TEST(Vram, ZonesAreKeptApart) {
  Vram vram = make();
  const auto visible = vram.allocate(base::kMiB, VramZone::kVisible);
  ASSERT_TRUE(visible);
  EXPECT_LE(visible->offset().value() + visible->bytes(), kVisible);
  const auto invisible = vram.allocate(base::kMiB, VramZone::kInvisibleFirst);
  ASSERT_TRUE(invisible);
  EXPECT_GE(invisible->offset().value(), kVisible);
  EXPECT_EQ(vram.visible_usage().used, base::kMiB);
  EXPECT_EQ(vram.invisible_usage().used, base::kMiB);
}

TEST(Vram, FirstChoiceFallsBackAndOnlyChoiceDoesNot) {
  Vram vram = make();
  const auto all = vram.allocate_blocks(kVisible, VramZone::kVisible);
  ASSERT_TRUE(all);
  EXPECT_EQ(vram.allocate(4096, VramZone::kVisible).error().code, base::Errc::kNoSpace);
  const auto other = vram.allocate(4096, VramZone::kVisibleFirst);
  ASSERT_TRUE(other);
  EXPECT_GE(other->offset().value(), kVisible);
}

TEST(Vram, ReservedMemoryIsNeverHandedOut) {
  Vram vram = make();
  auto all = vram.allocate_blocks(kSize - 64 * base::kKiB, VramZone::kInvisibleFirst);
  ASSERT_TRUE(all);
  for (const VramBlock& block : *all)
    EXPECT_LE(block.offset().value() + block.bytes(), kDiscovery.first.value());
  EXPECT_FALSE(vram.allocate(4096, VramZone::kInvisibleFirst));
  EXPECT_TRUE(vram.check());
  EXPECT_EQ(vram.invisible_usage().reserved, 64 * base::kKiB);
  EXPECT_FALSE(Vram::create(kSize, kVisible, {kDiscovery, kDiscovery}));
  EXPECT_FALSE(Vram::create(kSize, kVisible, {{base::VramOffset(kSize - 4096), 8192}}));
  EXPECT_FALSE(Vram::create(kSize, kSize + 4096, {}));
}

TEST(Vram, EVI_14_LargeBuffersAreWholeChunksAndNeedNotBeContiguous) {
  Vram vram = make();
  // Take every second chunk of the visible part away.
  auto chunks = std::move(*vram.allocate_blocks(kVisible, VramZone::kVisible));
  ASSERT_EQ(chunks.size(), 32u);
  std::vector<VramBlock> kept;
  for (std::size_t i = 0; i < chunks.size(); i += 2) kept.push_back(std::move(chunks[i]));
  chunks.clear();
  const auto buffer = vram.allocate_blocks(20 * base::kMiB, VramZone::kVisible);
  ASSERT_TRUE(buffer);
  EXPECT_EQ(buffer->size(), 10u);
  for (const VramBlock& block : *buffer) EXPECT_EQ(block.bytes(), Vram::kNaturalBlock);
  EXPECT_EQ(runs_of(*buffer).size(), 10u);
  // All or nothing.
  const auto before = vram.visible_usage().used;
  EXPECT_FALSE(vram.allocate_blocks(20 * base::kMiB, VramZone::kVisible));
  EXPECT_EQ(vram.visible_usage().used, before);
}

TEST(Vram, AnAlignedPieceIsNeverSpreadOverSmallerBlocks) {
  auto vram = std::move(*Vram::create(base::kMiB, base::kMiB, {}));
  const auto take = [&](std::uint64_t bytes, std::uint64_t alignment) {
    return vram.allocate_blocks(bytes, VramZone::kVisible, alignment);
  };
  // Half of it is free, in pieces of 8 KiB.
  std::vector<VramBlock> kept;
  for (int i = 0; i < 128; ++i) kept.push_back(std::move(*vram.allocate(8192, VramZone::kVisible)));
  for (std::size_t i = 0; i < kept.size(); i += 2) kept[i].reset();
  const auto fine = take(64 * base::kKiB, 8192);
  ASSERT_TRUE(fine);
  for (const auto& block : *fine) EXPECT_EQ(block.bytes(), 8192u);
  EXPECT_TRUE(take(12 * base::kKiB, 16384)) << "less than a piece may lie anywhere";
  EXPECT_EQ(take(64 * base::kKiB, 16384).error().code, base::Errc::kNoSpace);
}

TEST(Vram, NeighboursBecomeOneRun) {
  Vram vram = std::move(*Vram::create(kSize, kVisible, {}));
  const auto blocks = vram.allocate_blocks(6 * base::kMiB + 5 * 4096, VramZone::kInvisible);
  ASSERT_TRUE(blocks);
  const auto runs = runs_of(*blocks);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].pages(), 3u * 512 + 5);
}

TEST(Vram, EVI_9_UsedAndFreeAddUpUnderRandomUse) {
  Vram vram = make();
  std::vector<VramBlock> blocks;
  std::mt19937_64 random(11);
  for (int i = 0; i < 3000; ++i) {
    if (random() % 5 < 3) {
      const auto zone = static_cast<VramZone>(random() % 4);
      auto block = vram.allocate(1 + random() % (4 * base::kMiB), zone);
      if (block) blocks.push_back(std::move(*block));
    } else if (!blocks.empty()) {
      std::swap(blocks[random() % blocks.size()], blocks.back());
      blocks.pop_back();
    }
  }
  std::uint64_t held = 0;
  for (const VramBlock& block : blocks) held += block.bytes();
  EXPECT_EQ(vram.visible_usage().used + vram.invisible_usage().used, held);
  EXPECT_TRUE(vram.check());
  blocks.clear();
  EXPECT_EQ(vram.visible_usage().free, kVisible);
  EXPECT_EQ(vram.visible_usage().largest_free, kVisible);
  EXPECT_TRUE(vram.check());
}

TEST(Vram, WorksWithAllOfItVisible) {
  auto vram = Vram::create(kSize, kSize, {kDiscovery});
  ASSERT_TRUE(vram);
  EXPECT_TRUE(vram->allocate(4096, VramZone::kInvisibleFirst));
  EXPECT_FALSE(vram->allocate(4096, VramZone::kInvisible));
  EXPECT_TRUE(vram->check());
}

}  // namespace
