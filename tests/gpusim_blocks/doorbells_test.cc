#include "tools/gpusim/model/doorbells.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace gpusim {
namespace {

struct FakeGate : DoorbellGate {
  bool aperture = true;
  std::uint32_t access = 0xF'FFFF;
  std::array<S2aEntry, kEntries> entries{};

  bool doorbell_aperture_enabled() const override { return aperture; }
  std::uint32_t doorbell_access() const override { return access; }
  S2aEntry s2a_entry(unsigned index) const override { return entries[index]; }
};

struct FakeConsumer : DoorbellConsumer {
  struct Seen {
    std::uint32_t dword;
    std::uint64_t value;
    bool wide;
  };
  std::vector<Seen> seen;
  bool enabled = true;

  bool doorbell(std::uint32_t dword, std::uint64_t value, bool wide) override {
    if (enabled) seen.push_back({dword, value, wide});
    return enabled;
  }
};

class Doorbells : public ::testing::Test {
 protected:
  Doorbells() {
    router.connect(DoorbellTarget::kInterrupts, ih);
    router.connect(DoorbellTarget::kSdma, sdma);
    gate.entries[1] = {.enabled = true, .target = 0, .first_dword = 0x340, .dwords = 8};
    gate.entries[6] = {.enabled = true, .target = 0xE, .first_dword = 0x200, .dwords = 40};
  }
  FakeGate gate;
  FakeConsumer ih, sdma;
  DoorbellRouter router{gate};
};

TEST_F(Doorbells, D29_ReachTheConsumerOfTheirEntry) {
  router.store(0x340 * 4, 0x60, 4);
  router.store(0x200 * 4, 0x1'0000'0040, 8);
  ASSERT_EQ(ih.seen.size(), 1u);
  EXPECT_EQ(ih.seen[0].dword, 0x340u);
  EXPECT_FALSE(ih.seen[0].wide);
  ASSERT_EQ(sdma.seen.size(), 1u);
  EXPECT_EQ(sdma.seen[0].value, 0x1'0000'0040u);
  EXPECT_TRUE(sdma.seen[0].wide);
  EXPECT_EQ(router.counters().delivered, 2u);
  EXPECT_EQ(router.counters().dropped(), 0u);
}

TEST_F(Doorbells, D29_ClosedApertureDropsAndCounts) {
  gate.aperture = false;
  router.store(0x340 * 4, 0x60, 4);
  EXPECT_TRUE(ih.seen.empty());
  EXPECT_EQ(router.counters().dropped_aperture, 1u);
}

TEST_F(Doorbells, D29_NoAccessBitDropsThatTargetOnly) {
  gate.access = 1u << 0xE;
  router.store(0x340 * 4, 0x60, 4);
  router.store(0x200 * 4, 1, 8);
  EXPECT_TRUE(ih.seen.empty());
  EXPECT_EQ(sdma.seen.size(), 1u);
  EXPECT_EQ(router.counters().dropped_access, 1u);
}

TEST_F(Doorbells, D29_WithoutAnEntryDropped) {
  router.store(0x348 * 4, 1, 4);  // one past the IH's range
  router.store(0x33F * 4, 1, 4);
  gate.entries[1].enabled = false;
  router.store(0x340 * 4, 1, 4);
  EXPECT_TRUE(ih.seen.empty());
  EXPECT_EQ(router.counters().dropped_no_entry, 3u);
}

TEST_F(Doorbells, D29_ConsumerDisabledDropped) {
  sdma.enabled = false;
  router.store(0x200 * 4, 1, 8);
  EXPECT_EQ(router.counters().dropped_consumer, 1u);
}

TEST_F(Doorbells, EntryMayDropOrRefuseWideStores) {
  gate.entries[6].no_64bit = true;
  router.store(0x200 * 4, 1, 8);
  router.store(0x200 * 4, 1, 4);
  gate.entries[6].drop = true;
  router.store(0x200 * 4, 1, 4);
  EXPECT_EQ(sdma.seen.size(), 1u);
  EXPECT_EQ(router.counters().dropped_by_entry, 2u);
}

TEST_F(Doorbells, TheGraphicsEntryOverAllTakesNothingAway) {
  FakeConsumer graphics;
  graphics.enabled = false;
  router.connect(DoorbellTarget::kGraphics, graphics);
  gate.entries[0] = {.enabled = true, .target = 3, .first_dword = 0, .dwords = 0};
  router.store(0x340 * 4, 0x20, 4);
  EXPECT_EQ(ih.seen.size(), 1u);
}

}  // namespace
}  // namespace gpusim
