// Where write-backs go, and who can be made to receive them.
#include <gtest/gtest.h>

#include "tests/gpusim_fabric/pod_bench.h"

namespace gpusim::test {
namespace {

class Records : public ::testing::Test {
 protected:
  Records() : pod(3) { pod.bring_up(); }
  Record at(Node& node, std::uint64_t offset) {
    return {node.get<std::uint32_t>(offset), node.get<std::uint32_t>(offset + 4),
            node.get<std::uint64_t>(offset + 8)};
  }
  PodBench pod;
};

TEST_F(Records, U04_AnotherIdIsReplacedByTheSenders) {
  // GPU 0 names GPU 2's memory.
  Packet packet = pod[0].move_record(pod[1], kInterrupt, 2);
  const std::uint64_t third = std::uint64_t{pod[2].id()} << 41 | (kNpaRecords * 4096 + 0x100);
  packet[2] = static_cast<std::uint32_t>(third);
  packet[3] = static_cast<std::uint32_t>(third >> 32);
  pod[0].send(kInterrupt, packet);
  EXPECT_EQ(at(pod[2], kRecords + 0x100), Record{});
  EXPECT_EQ(at(pod[0], kRecords + 0x100), (Record{2, 0, 2}));
}

TEST_F(Records, U04_IdZeroIsTheSenderToo) {
  Packet packet = pod[0].move_record(pod[1], kInterrupt, 2);
  packet[3] &= 0x1FF;
  pod[0].send(kInterrupt, packet);
  EXPECT_EQ(pod[0].record(pod[1], kInterrupt), (Record{2, 0, 2}));
}

TEST_F(Records, U29_TheEntrysOwnWriteBackGoesToTheNewPlace) {
  Packet packet = pod[0].move_record(pod[1], kInterrupt, 2);
  packet[2] += 0x200;
  pod[0].send(kInterrupt, packet);
  EXPECT_EQ(pod[0].record(pod[1], kInterrupt), (Record{1, 0, 1})) << "the old one is left alone";
  EXPECT_EQ(at(pod[0], kRecords + 32 * pod[1].id() + 0x200), (Record{2, 0, 2}));
}

// Bit 28 asks for the read pointer, bit 29 for the rest.
TEST_F(Records, U27_TheEntryMayAskForTheReadPointerAlone) {
  Packet packet = pod[0].move_record(pod[1], kInterrupt, 2);
  packet[0] &= ~(1u << 29);
  pod[0].send(kInterrupt, packet);
  EXPECT_EQ(pod[0].record(pod[1], kInterrupt), (Record{1, 0, 2}));
}

TEST_F(Records, U29_EachRingHasItsOwn) {
  Packet packet = pod[0].move_record(pod[1], kInterrupt, 2);
  packet[2] += 0x200;
  pod[0].send(kInterrupt, packet);
  pod[0].send(kShootdown, Node::shootdown(2));
  EXPECT_EQ(pod[0].record(pod[1], kShootdown), (Record{2, 0, 2}));
}

TEST_F(Records, U29_LowBitsOfTheAddressAreIgnored) {
  Packet packet = pod[0].move_record(pod[1], kInterrupt, 2);
  packet[2] |= 3;
  packet[3] |= 0xFFF0'0000;
  pod[0].send(kInterrupt, packet);
  EXPECT_EQ(pod[0].record(pod[1], kInterrupt), (Record{2, 0, 2}));
}

TEST_F(Records, U29_TheDoorbellSpaceIsNoRecord) {
  Packet packet = pod[0].move_record(pod[1], kInterrupt, 2);
  packet[3] = 0x000F'FF00;
  pod[0].send(kInterrupt, packet);
  EXPECT_EQ(pod[0].record(pod[1], kInterrupt), (Record{2, 9, 2}));
  EXPECT_EQ(*pod.run("nht.counters", {{"gpu", "0"}}).number("doorbells"), 2u)
      << "only those of the introduction";
}

TEST_F(Records, NothingIsWrittenBeforeOpcodeThree) {
  pod[2].map_peer(pod[1]);
  pod[2].flush();
  pod[2].send(kInterrupt, Node::message(1, {5}));
  EXPECT_EQ(pod[2].record(pod[1], kInterrupt), Record{});
  const auto messages = pod[1].messages();
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].pasid, pod[2].id());
}

TEST_F(Records, D40_TheDataWordIsWrittenLast) {
  pod[0].send(kInterrupt, Node::message(2, {1}));
  const auto found = pod.log.find(1, "nht");
  ASSERT_GE(found.size(), 3u);
  const std::uint64_t npa = pod[0].record_npa(pod[1], kInterrupt);
  EXPECT_EQ(found[found.size() - 3].address, npa + 8);
  EXPECT_EQ(found[found.size() - 2].address, npa + 4);
  EXPECT_EQ(found.back().address, npa);
  EXPECT_EQ(found.back().bytes, 4u);
}

TEST_F(Records, ASenderThatIsGoneDoesNotHoldTheFirmware) {
  pod[0].store_slot(kInterrupt, 1, Node::message(2, {1}));
  pod[0].store_pointer(kInterrupt, 2);
  pod[0].start_copy(kMc + kScratch, kGartDoorbell * 4096, 4);
  while (pod.gpu(0).step()) {
  }
  pod.gpu(0).set_link(false);
  pod.settle();
  EXPECT_EQ(pod[1].messages().size(), 1u);
  EXPECT_EQ(*pod.run("nht.counters", {{"gpu", "1"}}).number("lost_records"), 1u);
}

}  // namespace
}  // namespace gpusim::test
