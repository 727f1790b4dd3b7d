// The books of a ring, and the page allocator.
#include <gtest/gtest.h>

#include <map>

#include "bench.h"
#include "fabric/npa_allocator.h"
#include "fabric/ring_sender.h"

namespace {

using namespace fabric;
using fabric_test::SeededRandom;

TEST(RingSender, U27_SixtyThreeOutstanding) {
  RingSender ring;
  int sent = 0;
  for (; ring.has_room(64); ++sent) ring.begin(static_cast<std::uint64_t>(sent), {});
  EXPECT_EQ(sent, 63);
  const auto accepted = ring.accept({.data = 63, .status = 0, .rptr = 63});
  EXPECT_EQ(accepted.finished.size(), 63U);
  EXPECT_TRUE(ring.has_room(64));
}

// First packet 1; the comparison survives the wrap of 32 bits (errata A15).
TEST(RingSender, A15_U10_U35_SequenceWraps) {
  RingSender ring;
  EXPECT_EQ(ring.begin(1, {}).sequence, 1U);
  ring.accept({1, 0, 1});
  ring.set_sequence(0xFFFF'FFFE);
  EXPECT_EQ(ring.begin(2, {}).sequence, 0xFFFF'FFFFU);
  EXPECT_EQ(ring.begin(3, {}).sequence, 0U);
  EXPECT_EQ(ring.begin(4, {}).sequence, 1U);
  EXPECT_EQ(ring.accept({0xFFFF'FFFE, 0, 4}).finished.size(), 0U);  // acknowledged before
  EXPECT_EQ(ring.accept({2, 0, 4}).finished.size(), 0U);            // not sent yet
  const auto two = ring.accept({0, 0, 3});
  ASSERT_EQ(two.finished.size(), 2U);
  EXPECT_EQ(two.finished[1].entry.id, 3U);
  EXPECT_EQ(ring.accept({1, 0, 4}).finished.size(), 1U);
}

// A record that an earlier life left behind does not complete anything.
TEST(RingSender, U35_StaleRecordIsIgnored) {
  RingSender ring;
  ring.begin(1, {});
  EXPECT_TRUE(ring.accept({900, 0, 900}).finished.empty());
  EXPECT_FALSE(ring.accept({900, 0, 900}).corrupt);
  EXPECT_EQ(ring.in_flight().size(), 1U);
}

TEST(RingSender, U28_OnlyTheNewestHasAStatus) {
  RingSender ring;
  for (std::uint64_t id = 1; id <= 3; ++id) ring.begin(id, {});
  const auto accepted = ring.accept({3, 7, 3});
  ASSERT_EQ(accepted.finished.size(), 3U);
  EXPECT_EQ(accepted.finished[0].status, NhtStatus::kOk);
  EXPECT_EQ(accepted.finished[2].status, NhtStatus::kInterruptNotRaised);
}

TEST(RingSender, ReadPointerOutsideTheRingIsCorrupt) {
  RingSender ring;
  ring.begin(1, {});
  EXPECT_TRUE(ring.accept({1, 0, 2}).corrupt);
}

// Errata A14: pointers come from the receiver's memory, sequence numbers go on.
TEST(RingSender, A14_AdoptsTheRemotePointer) {
  RingSender ring;
  ring.begin(1, {});
  ring.abandon();
  EXPECT_FALSE(ring.adopt(1));
  EXPECT_TRUE(ring.adopt(0));
  const auto& entry = ring.begin(2, {});
  EXPECT_EQ(entry.index, 0U);
  EXPECT_EQ(entry.sequence, 2U);
  EXPECT_TRUE(ring.accept({1, 0, 1}).finished.empty());  // the abandoned one, consumed late
  EXPECT_EQ(ring.accept({2, 0, 1}).finished.size(), 1U);
}

TEST(NpaAllocator, U43_EndsAreExclusive) {
  NpaAllocator allocator(kAliasFirstPage, kAliasEndPage, kAliasEndPage - 1);
  const auto last = allocator.allocate(1);
  ASSERT_TRUE(last);
  EXPECT_EQ(last->page, (1ULL << 29) - 2);
  const auto first = allocator.allocate(1);
  ASSERT_TRUE(first);
  EXPECT_EQ(first->page, 0x800U);
  EXPECT_FALSE(allocator.allocate(1ULL << 29));
  EXPECT_FALSE(allocator.allocate(0));
}

TEST(NpaAllocator, U18_NextFitDoesNotReuseAtOnce) {
  NpaAllocator allocator(kAliasFirstPage, kAliasEndPage, 0x5000);
  const auto a = allocator.allocate(4);
  ASSERT_TRUE(allocator.free(*a));
  const auto b = allocator.allocate(4);
  EXPECT_NE(a->page, b->page);
  EXPECT_FALSE(allocator.free(*a));  // freed already
}

TEST(NpaAllocator, ConservesPagesAndAligns) {
  SeededRandom random(7);
  NpaAllocator allocator(0x800, 0x4000, 0x1234);
  const std::uint64_t all = allocator.free_pages();
  std::map<std::uint64_t, NpaRange> live;
  std::uint64_t used = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (live.empty() || random.below(2) == 0) {
      const std::uint64_t pages =
          random.below(8) == 0 ? 512 + random.below(700) : 1 + random.below(40);
      const auto range = allocator.allocate(pages);
      if (!range) continue;
      EXPECT_TRUE(pages < 512 || range->page % 512 == 0);
      EXPECT_GE(range->page, 0x800U);
      EXPECT_LE(range->end(), 0x4000U);
      const auto next = live.lower_bound(range->page);
      EXPECT_TRUE(next == live.end() || next->first >= range->end());
      EXPECT_TRUE(next == live.begin() || std::prev(next)->second.end() <= range->page);
      live.emplace(range->page, *range);
      used += pages;
    } else {
      auto it = std::next(live.begin(), static_cast<std::ptrdiff_t>(random.below(live.size())));
      EXPECT_TRUE(allocator.free(it->second));
      used -= it->second.pages;
      live.erase(it);
    }
    ASSERT_EQ(allocator.free_pages() + used, all);
  }
}

}  // namespace
