#include "daemon/submit/lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/gpu/engine/sdma_packets.h"
#include "tests/submit/engine_rig.h"

namespace gpuumd {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr unsigned kQueue = 2;
constexpr base::Vmid kVmid{5};

struct LaneTest : testing::Test {
  test::EngineRig rig;
  EngineMemory fence = rig.allocate(64);
  Lane lane{rig.make_queue(kQueue, 1024), fence};
  fake::GpuMemory::Piece ib = rig.memory.allocate(kVmid.value(), 4096);

  LaneTest() { lane.program(); }
  void launch(SliceId id, unsigned slot = 0) {
    lane.launch(id, kVmid, base::GpuVa(ib.at + slot * 256), 8);
  }
  std::vector<SliceId> done() {
    std::vector<SliceId> ids;
    lane.look();
    lane.take_done([&](SliceId id) { ids.push_back(id); });
    return ids;
  }
};

TEST_F(LaneTest, AnIbGoesOutInItsVmidAndItsFenceComesBack) {
  EXPECT_TRUE(lane.idle());
  launch(11, 1);
  EXPECT_FALSE(lane.look());
  EXPECT_THAT(done(), IsEmpty());
  rig.engine.run(kQueue);
  ASSERT_EQ(rig.engine.indirects.size(), 1u);
  EXPECT_EQ(rig.engine.indirects[0].vmid, kVmid.value());
  EXPECT_EQ(rig.engine.indirects[0].at, ib.at + 256);
  EXPECT_EQ(rig.engine.indirects[0].dwords, 8u);
  EXPECT_TRUE(lane.look());
  EXPECT_THAT(done(), ElementsAre(11));
  EXPECT_TRUE(lane.idle());
}

TEST_F(LaneTest, TwoInFlightAndInOrder) {
  launch(1);
  EXPECT_TRUE(lane.has_room());
  launch(2);
  EXPECT_FALSE(lane.has_room());
  while (rig.engine.indirects.size() < 1) rig.engine.run(kQueue, 1);
  EXPECT_THAT(done(), IsEmpty()) << "the IB has run, its fence has not";
  while (rig.engine.indirects.size() < 2) rig.engine.run(kQueue, 1);
  EXPECT_THAT(done(), ElementsAre(1));
  EXPECT_TRUE(lane.has_room());
  launch(3);
  rig.engine.run(kQueue);
  EXPECT_THAT(done(), ElementsAre(2, 3));
}

// The engine is never seen empty, so its read pointer is never written back (the fake's way).
TEST_F(LaneTest, D32_ALaneThatIsNeverEmptyNeverFillsItsRing) {
  launch(0);
  for (SliceId id = 1; id < 200; ++id) {
    ASSERT_TRUE(lane.has_room());
    launch(id);
    lane.request_wake();
    while (rig.engine.indirects.size() < id + 1) rig.engine.run(kQueue, 1);
    ASSERT_THAT(done(), ElementsAre(id - 1));
    ASSERT_FALSE(lane.idle());
  }
  EXPECT_EQ(rig.engine.traps.size(), 198u) << "a TRAP behind all but the last slice has run";
}

TEST_F(LaneTest, OneTrapBehindWhatIsInFlight) {
  lane.request_wake();
  EXPECT_TRUE(rig.doorbells.state().doorbells.empty()) << "nothing to wait for";
  launch(1);
  lane.request_wake();
  lane.request_wake();
  rig.engine.run(kQueue);
  ASSERT_EQ(rig.engine.traps.size(), 1u);
  EXPECT_EQ(rig.engine.traps[0].context, kQueue);
  launch(2);
  lane.request_wake();
  rig.engine.run(kQueue);
  EXPECT_EQ(rig.engine.traps.size(), 2u);
}

TEST_F(LaneTest, AFenceAheadOfWhatWasSentIsNotBelieved) {
  launch(1);
  launch(2);
  fence.word().store(99);
  EXPECT_FALSE(lane.look());
  EXPECT_THAT(done(), IsEmpty());
  fence.word().store(1);
  EXPECT_THAT(done(), ElementsAre(1));
}

TEST_F(LaneTest, StopGivesWhatIsLostAndProgramStartsAnew) {
  launch(1);
  launch(2);
  EXPECT_THAT(lane.stop(), ElementsAre(1, 2));
  EXPECT_TRUE(lane.stopped());
  EXPECT_FALSE(lane.has_room());
  EXPECT_TRUE(lane.idle());
  EXPECT_THAT(lane.stop(), IsEmpty());
  lane.program();
  launch(3);
  // What the engine may still have written before its reset is below the new count.
  fence.word().store(2);
  EXPECT_THAT(done(), IsEmpty());
  rig.engine.run(kQueue);
  EXPECT_THAT(done(), ElementsAre(3));
}

}  // namespace
}  // namespace gpuumd
