// Entries written byte by byte, and what the firmware makes of them.
#include <gtest/gtest.h>

#include "tests/gpusim_fabric/pod_bench.h"

namespace gpusim::test {
namespace {

class Rings : public ::testing::Test {
 protected:
  explicit Rings(const char* options = "") : pod(2, options) { pod.bring_up(); }
  Record record(Ring ring = kInterrupt) { return pod[0].record(pod[1], ring); }
  PodBench pod;
};

TEST_F(Rings, D49_AMessageBecomesAVector) {
  pod[0].send(kInterrupt, Node::message(2, {0x0040'0C01, 0x1111'2222, 0x3333, 0xFFFF'FFFF}));
  const auto vectors = pod[1].vectors();
  ASSERT_EQ(vectors.size(), 1u);
  EXPECT_EQ(vectors[0].client, 0x1C);
  EXPECT_EQ(vectors[0].source, 0);
  EXPECT_EQ(vectors[0].ring_id, 0);
  EXPECT_EQ(vectors[0].vmid, 0);
  EXPECT_EQ(vectors[0].pasid, pod[0].id());
  EXPECT_EQ(vectors[0].data,
            (std::array<std::uint32_t, 4>{0x0040'0C01, 0x1111'2222, 0x3333, 0xFFFF'FFFF}));
  EXPECT_EQ(record(), (Record{2, 0, 2}));
}

TEST_F(Rings, D39_OpcodeThreeByteForByte) {
  // The ring slot, the pointer word and the record at their places in memory.
  const std::uint64_t slot = kRings + (std::uint64_t{pod[0].id()} << 13) + 4096;
  const std::uint64_t npa = pod[0].record_npa(pod[1], kInterrupt);
  EXPECT_EQ(npa, 0x0600'0080'00C0u) << "ids 3 and 6 of the default pod";
  EXPECT_EQ(pod[1].get<std::uint32_t>(slot), 0x3000'0003u);
  EXPECT_EQ(pod[1].get<std::uint32_t>(slot + 4), 1u);
  EXPECT_EQ(pod[1].get<std::uint32_t>(slot + 8), 0x0080'00C0u);
  EXPECT_EQ(pod[1].get<std::uint32_t>(slot + 12), 0x0000'0600u);
  EXPECT_EQ(pod[1].get<std::uint64_t>(kRings + (std::uint64_t{pod[1].id()} << 13) + 16 * 3), 1u);
  EXPECT_EQ(pod[0].get<std::uint32_t>(kRecords + 0xC0), 1u);
  EXPECT_EQ(pod[0].get<std::uint32_t>(kRecords + 0xC4), 0u);
  EXPECT_EQ(pod[0].get<std::uint64_t>(kRecords + 0xC8), 1u);
}

TEST_F(Rings, U07_TheDoorbellsValueIsAHint) {
  pod[0].store_slot(kInterrupt, 1, Node::message(2, {0x22}));
  pod[0].store_slot(kInterrupt, 2, Node::message(3, {0x33}));
  pod[0].store_pointer(kInterrupt, 3);
  pod[0].ring_doorbell(kInterrupt, 0xDEAD'BEEF);
  EXPECT_EQ(pod[1].messages().size(), 2u);
  EXPECT_EQ(record(), (Record{3, 0, 3}));
  pod[0].ring_doorbell(kInterrupt, 3);
  EXPECT_TRUE(pod[1].messages().empty()) << "one with nothing new is harmless";
  EXPECT_EQ(record(), (Record{3, 0, 3}));
}

TEST_F(Rings, D48_AllPortsActAlike) {
  std::uint32_t sequence = 2;
  for (unsigned port = 0; port < 16; ++port, ++sequence) {
    pod[0].store_slot(kInterrupt, sequence - 1, Node::message(sequence, {port}));
    pod[0].store_pointer(kInterrupt, sequence);
    pod[0].ring_doorbell(kInterrupt, sequence, port);
    const auto messages = pod[1].messages();
    ASSERT_EQ(messages.size(), 1u) << port;
    EXPECT_EQ(messages[0].data[0], port);
  }
}

TEST_F(Rings, U39_IndexOneIsTheShootdownRing) {
  pod[0].store_slot(kShootdown, 1, Node::shootdown(2));
  pod[0].store_pointer(kShootdown, 2);
  pod[0].ring_doorbell(kInterrupt, 2);
  EXPECT_EQ(record(kShootdown), (Record{1, 0, 1})) << "only the other ring was looked at";
  pod[0].ring_doorbell(kShootdown, 2);
  EXPECT_EQ(record(kShootdown), (Record{2, 0, 2}));
}

TEST_F(Rings, U27_SixtyThreeEntriesInOneGo) {
  for (std::uint32_t i = 0; i < 63; ++i)
    pod[0].store_slot(kInterrupt, (1 + i) % 64, Node::message(2 + i, {i}));
  pod[0].store_pointer(kInterrupt, 64);
  pod[0].ring_doorbell(kInterrupt, 64);
  const auto messages = pod[1].messages();
  ASSERT_EQ(messages.size(), 63u);
  for (std::uint32_t i = 0; i < 63; ++i) EXPECT_EQ(messages[i].data[0], i);
  EXPECT_EQ(record(), (Record{64, 0, 64})) << "an absolute count, not a slot";
}

TEST_F(Rings, WrapsRoundAndKeepsCounting) {
  for (std::uint32_t i = 2; i < 200; ++i) pod[0].send(kInterrupt, Node::message(i, {i}));
  EXPECT_EQ(pod[1].messages().size(), 198u);
  EXPECT_EQ(record(), (Record{199, 0, 199}));
}

TEST_F(Rings, D40_TheHeadersBitsChooseWhatIsWritten) {
  Packet packet = Node::message(2, {1});
  packet[0] = 0x2000'0002;  // data and status, the old read pointer
  pod[0].send(kInterrupt, packet);
  EXPECT_EQ(record(), (Record{2, 0, 1}));
  packet[0] = 0x1000'0002;  // the read pointer alone
  packet[1] = 3;
  pod[0].send(kInterrupt, packet);
  EXPECT_EQ(record(), (Record{2, 0, 3}));
  packet[0] = 0x0000'0002;
  packet[1] = 4;
  pod[0].send(kInterrupt, packet);
  EXPECT_EQ(record(), (Record{2, 0, 3}));
  EXPECT_EQ(pod[1].messages().size(), 3u) << "all three took effect";
}

TEST_F(Rings, U10_SequencesAreOpaque) {
  pod[0].send(kInterrupt, Node::message(0xFFFF'FFFF, {1}));
  EXPECT_EQ(record(), (Record{0xFFFF'FFFF, 0, 2}));
  pod[0].send(kInterrupt, Node::message(0, {2}));
  EXPECT_EQ(record(), (Record{0, 0, 3}));
}

TEST_F(Rings, D48_TheSenderComesFromTheLink) {
  // GPU 1 writes into the slot of GPU 0 and rings: only its own ring is looked at.
  pod[1].messages();
  Packet forged = Node::message(9, {0xBAD});
  pod[0].store_slot(kInterrupt, 1, forged);
  pod[0].store_pointer(kInterrupt, 2);
  pod[1].ring_doorbell(kInterrupt, 2);
  EXPECT_TRUE(pod[1].messages().empty());
  EXPECT_TRUE(pod[0].messages().empty());
}

TEST_F(Rings, U32_TakenEvenIfNobodyListens) {
  const std::uint32_t ih = pod[1].gpu().bases().at(Ip::kOsssys, 0, 0);
  pod[0].send(kInterrupt, Node::message(2, {1}));
  EXPECT_EQ(record(), (Record{2, 0, 2})) << "the driver has not read it";
  EXPECT_NE(pod[1].read(ih + 0x82), 0u);
}

class IdentRings : public Rings {
 protected:
  IdentRings() : Rings("addr_mode=ident") {}
};

TEST_F(IdentRings, D38_RecordsArriveUnderTheReceiversId) {
  EXPECT_EQ(record(), (Record{1, 0, 1}));
  pod[0].send(kInterrupt, Node::message(2, {7}));
  ASSERT_EQ(pod[1].messages().size(), 1u);
  EXPECT_EQ(record(), (Record{2, 0, 2}));
}

}  // namespace
}  // namespace gpusim::test
