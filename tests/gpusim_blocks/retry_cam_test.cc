#include "tools/gpusim/model/retry_cam.h"

#include <gtest/gtest.h>

#include <set>

namespace gpusim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

Iv fault_of(std::uint8_t vmid) { return Iv{.client = 0x1B, .source = 1, .vmid = vmid}; }

class RetryCamTest : public ::testing::Test {
 protected:
  RetryCamTest() { cam.configure(true, 0xF); }
  RetryCam cam;
  ModelTime now{0};
};

TEST_F(RetryCamTest, D16_SizeFieldGivesEntries) {
  EXPECT_EQ(cam.capacity(), 1024u);
  cam.configure(true, 0);
  EXPECT_EQ(cam.capacity(), 64u);
  cam.configure(true, 0x1F);
  EXPECT_EQ(cam.capacity(), 1024u) << "what 10 bits of index can name";
}

TEST_F(RetryCamTest, D15_OneVectorAPageWhileItsEntryLives) {
  EXPECT_TRUE(cam.fault(0, 0x1000, fault_of(3), now));
  EXPECT_FALSE(cam.fault(0, 0x1000, fault_of(3), now));  // the same page from another engine
  EXPECT_TRUE(cam.fault(1, 0x1000, fault_of(3), now)) << "another hub";
  EXPECT_TRUE(cam.fault(0, 0x1000, fault_of(4), now)) << "another VMID";
  EXPECT_TRUE(cam.fault(0, 0x1001, fault_of(3), now)) << "another page";
  EXPECT_EQ(cam.live(), 4u);
}

TEST_F(RetryCamTest, D15_AfterTheAckANewVectorWithANewIndex) {
  const auto first = cam.fault(0, 0x1000, fault_of(3), now);
  cam.acknowledge(*first);
  const auto second = cam.fault(0, 0x1000, fault_of(3), now);
  ASSERT_TRUE(second);
  EXPECT_NE(*first, *second);
}

TEST_F(RetryCamTest, D16_FullCamHoldsFurtherFaultsBack) {
  cam.configure(true, 0);
  std::set<std::uint16_t> indices;
  for (unsigned page = 0; page < 64; ++page) indices.insert(*cam.fault(0, page, fault_of(3), now));
  EXPECT_EQ(indices.size(), 64u);
  EXPECT_FALSE(cam.fault(0, 100, fault_of(3), now));
  EXPECT_EQ(cam.counters().full, 1u);
  cam.acknowledge(17);
  const auto index = cam.fault(0, 100, fault_of(3), now);
  ASSERT_TRUE(index);
  EXPECT_EQ(*index, 17);
}

TEST_F(RetryCamTest, D16_AckOfAFreeIndexIsIgnored) {
  const auto index = cam.fault(0, 1, fault_of(3), now);
  cam.acknowledge(static_cast<std::uint16_t>(*index + 1));
  cam.acknowledge(1023);
  EXPECT_EQ(cam.live(), 1u);
  EXPECT_EQ(cam.counters().acknowledged_free, 2u);
}

TEST_F(RetryCamTest, D16_UnacknowledgedForASecondRaisesAgain) {
  const auto index = cam.fault(0, 1, fault_of(3), now);
  EXPECT_FALSE(cam.overdue(now + milliseconds(999)));
  const auto again = cam.overdue(now + seconds(1));
  ASSERT_TRUE(again);
  EXPECT_EQ(again->src_data[3], *index);
  EXPECT_FALSE(cam.overdue(now + milliseconds(1500)));
  EXPECT_TRUE(cam.overdue(now + seconds(2)));
  cam.acknowledge(*index);
  EXPECT_FALSE(cam.overdue(now + seconds(10)));
}

TEST_F(RetryCamTest, D16_AnOldDeadlineDoesNotHitTheNextOwnerOfTheIndex) {
  cam.configure(true, 0);
  for (unsigned page = 0; page < 64; ++page) cam.fault(0, page, fault_of(3), now);
  cam.acknowledge(5);
  cam.fault(0, 1000, fault_of(3), now + milliseconds(900));  // takes index 5
  unsigned raised = 0;
  while (const auto iv = cam.overdue(now + seconds(1))) {
    EXPECT_NE(iv->src_data[3], 5u);
    ++raised;
  }
  EXPECT_EQ(raised, 63u);
}

TEST_F(RetryCamTest, D16_SwitchedOffAVectorAMillisecondAndPage) {
  cam.fault(0, 1, fault_of(3), now);
  cam.configure(false, 0);
  EXPECT_EQ(cam.live(), 0u);
  EXPECT_EQ(cam.fault(0, 1, fault_of(3), now), 0);
  EXPECT_FALSE(cam.fault(0, 1, fault_of(3), now + microseconds(10)));
  EXPECT_EQ(cam.fault(0, 2, fault_of(3), now + microseconds(10)), 0);
  EXPECT_EQ(cam.fault(0, 1, fault_of(3), now + milliseconds(1)), 0);
}

}  // namespace
}  // namespace gpusim
