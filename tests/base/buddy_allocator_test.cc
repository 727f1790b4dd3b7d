#include "base/buddy_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace {

using base::BuddyAllocator;

TEST(BuddyAllocator, GivesAlignedBlocksLowestFirst) {
  BuddyAllocator buddy(1024);
  EXPECT_EQ(buddy.allocate(9), 0u);
  EXPECT_EQ(buddy.allocate(0), 512u);
  EXPECT_EQ(buddy.allocate(4), 528u);
  EXPECT_EQ(buddy.free_pages(), 1024u - 512 - 1 - 16);
  EXPECT_TRUE(buddy.check());
}

TEST(BuddyAllocator, JoinsBuddiesSoThatTheWholeComesBack) {
  BuddyAllocator buddy(std::uint64_t{1} << BuddyAllocator::kMaxOrder);
  std::vector<std::uint64_t> pages;
  for (int i = 0; i < 100; ++i) pages.push_back(*buddy.allocate(0));
  EXPECT_FALSE(buddy.allocate(BuddyAllocator::kMaxOrder));
  for (const auto page : pages) buddy.free(page, 0);
  EXPECT_EQ(buddy.allocate(BuddyAllocator::kMaxOrder), 0u);
}

TEST(BuddyAllocator, AnySizeIsUsedToTheLastPage) {
  for (const std::uint64_t pages : {1u, 3u, 511u, 513u, 16384u + 77u}) {
    BuddyAllocator buddy(pages);
    EXPECT_TRUE(buddy.check()) << pages;
    std::uint64_t got = 0;
    while (buddy.allocate(0)) ++got;
    EXPECT_EQ(got, pages);
    EXPECT_EQ(buddy.free_pages(), 0u);
    EXPECT_TRUE(buddy.check()) << pages;
  }
}

TEST(BuddyAllocator, StaysInsideTheRange) {
  BuddyAllocator buddy(4096);
  // One free block of 4096 pages: the range cuts into it.
  EXPECT_EQ(buddy.allocate(3, 100, 200), 104u);
  EXPECT_EQ(buddy.allocate(6, 100, 200), 128u);
  EXPECT_FALSE(buddy.allocate(6, 100, 200));
  EXPECT_EQ(buddy.largest_free(100, 200), 4u);  // 112..127
  EXPECT_TRUE(buddy.check());
}

TEST(BuddyAllocator, ReserveTakesExactlyItsPagesOrNothing) {
  BuddyAllocator buddy(1000);
  EXPECT_TRUE(buddy.reserve(990, 10));
  EXPECT_EQ(buddy.free_pages(), 990u);
  EXPECT_FALSE(buddy.reserve(980, 11));  // overlaps
  EXPECT_FALSE(buddy.reserve(995, 6));   // past the end
  EXPECT_EQ(buddy.free_pages(), 990u);
  EXPECT_TRUE(buddy.check());
  EXPECT_TRUE(buddy.reserve(980, 10));
  EXPECT_TRUE(buddy.check());
}

TEST(BuddyAllocator, RandomOperationsConserveEveryPage) {
  constexpr std::uint64_t kPages = 20000;
  constexpr std::uint64_t kBorder = 7001;  // visible | invisible, not aligned to anything
  BuddyAllocator buddy(kPages);
  std::vector<bool> used(kPages, false);
  std::map<std::uint64_t, unsigned> blocks;
  std::mt19937_64 random(7);
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0) {
      const unsigned order = random() % 10;
      const bool low = random() % 2 == 0;
      const std::uint64_t first = low ? 0 : kBorder;
      const std::uint64_t end = low ? kBorder : kPages;
      const auto page = buddy.allocate(order, first, end);
      if (!page) {
        for (std::uint64_t at = first;
             at + (1u << order) <= end;) {  // nothing of that size is really free
          at = (at + (1u << order) - 1) >> order << order;
          if (at + (1u << order) > end) break;
          bool free = true;
          for (std::uint64_t n = 0; n < (1u << order); ++n) free = free && !used[at + n];
          ASSERT_FALSE(free) << "order " << order << " at " << at;
          at += 1u << order;
        }
        continue;
      }
      ASSERT_EQ(*page % (1u << order), 0u);
      ASSERT_GE(*page, first);
      ASSERT_LE(*page + (1u << order), end);
      for (std::uint64_t n = 0; n < (1u << order); ++n) {
        ASSERT_FALSE(used[*page + n]);
        used[*page + n] = true;
      }
      blocks[*page] = order;
    } else if (!blocks.empty()) {
      auto at = blocks.lower_bound(random() % kPages);
      if (at == blocks.end()) at = blocks.begin();
      buddy.free(at->first, at->second);
      for (std::uint64_t n = 0; n < (1u << at->second); ++n) used[at->first + n] = false;
      blocks.erase(at);
    }
    if (i % 500 == 0) {
      ASSERT_TRUE(buddy.check());
    }
  }
  EXPECT_EQ(buddy.free_pages(),
            static_cast<std::uint64_t>(std::count(used.begin(), used.end(), false)));
  for (const auto& [page, order] : blocks) buddy.free(page, order);
  EXPECT_TRUE(buddy.check());
  EXPECT_EQ(buddy.free_pages(), kPages);
}

#ifndef NDEBUG
TEST(BuddyAllocatorDeathTest, DoubleFreeIsOurMistake) {
  BuddyAllocator buddy(64);
  const auto page = buddy.allocate(2);
  buddy.free(*page, 2);
  EXPECT_DEATH(buddy.free(*page, 2), "");
}
#endif

}  // namespace
