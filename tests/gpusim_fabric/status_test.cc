// Every status code of a write-back record.
#include <gtest/gtest.h>

#include "tests/gpusim_fabric/pod_bench.h"

namespace gpusim::test {
namespace {

class Status : public ::testing::Test {
 protected:
  Status() { pod.bring_up(); }
  Record record(Ring ring = kInterrupt) { return pod[0].record(pod[1], ring); }
  std::uint64_t table_entry() { return kTable + 40 * std::uint64_t{pod[0].id()}; }
  std::uint32_t ih() { return pod[1].gpu().bases().at(Ip::kOsssys, 0, 0); }
  // After a change of the table; the sender's side is not told.
  void reload() {
    ASSERT_EQ(pod[1].command(2), 0xA2u);
    ASSERT_EQ(pod[1].command(1), 0xA1u);
  }
  PodBench pod;
};

TEST_F(Status, D42_TwoUnknownOpcode) {
  for (const std::uint32_t opcode : {0u, 4u, 0x0100'0002u, 0x0FFF'FFFFu}) {
    Packet packet = Node::message(50 + (opcode & 0xF), {1});
    packet[0] = 0x3000'0000 | opcode;
    pod[0].send(kInterrupt, packet);
    EXPECT_EQ(record(), (Record{50 + (opcode & 0xF), 2, pod[0].written[kInterrupt]})) << opcode;
  }
  pod[0].send(kInterrupt, Node::message(99, {1}));
  EXPECT_EQ(record().status, 0u) << "a status belongs to its entry (U08)";
  EXPECT_EQ(pod[1].messages().size(), 1u);
}

TEST_F(Status, U08_TwoOpcodeOnTheWrongRing) {
  pod[0].send(kInterrupt, Node::shootdown(2));
  EXPECT_EQ(record(kInterrupt), (Record{2, 2, 2}));
  pod[0].send(kShootdown, Node::message(2, {1}));
  EXPECT_EQ(record(kShootdown), (Record{2, 2, 2}));
  EXPECT_TRUE(pod[1].messages().empty());
}

TEST_F(Status, U08_TheGoodOnesAroundABadOneAreServed) {
  pod[0].store_slot(kInterrupt, 1, Node::message(2, {0x22}));
  Packet bad = Node::message(3, {0x33});
  bad[0] = 0x3000'0009;
  pod[0].store_slot(kInterrupt, 2, bad);
  pod[0].store_slot(kInterrupt, 3, Node::message(4, {0x44}));
  pod[0].store_pointer(kInterrupt, 4);
  pod[0].ring_doorbell(kInterrupt, 4);
  const auto messages = pod[1].messages();
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[1].data[0], 0x44u);
  EXPECT_EQ(record(), (Record{4, 0, 4}));
}

TEST_F(Status, D43_FourBadMetadata) {
  const auto spoil = [&](std::uint64_t at, std::uint32_t value) {
    pod[1].write_table();
    pod[1].put(table_entry() + at, value);
    reload();
    pod[0].put(kRecords + 32 * pod[1].id(), Record{});
    pod[0].ring_doorbell(kInterrupt, 0x1234);
    EXPECT_EQ(record(), (Record{0x1234, 4, 0})) << at << ": the doorbell's value is the data";
  };
  spoil(0, 0x4E48'5447);  // magic
  spoil(4, 5);            // ring size
  spoil(8, 0x20'0001);    // ring not on a page
  spoil(24, 0x20'0004);   // pointer not aligned
  EXPECT_TRUE(pod[1].messages().empty());
}

TEST_F(Status, D43_FourWithoutARecordIsSilent) {
  pod[1].put(table_entry(), 0u);
  pod.gpu(1).reset();
  pod.clock.advance(5ms);
  pod[1].bring_up();
  pod[1].load_firmware();
  pod[0].put(kRecords + 32 * pod[1].id(), Record{});
  pod[0].ring_doorbell(kInterrupt, 1);
  EXPECT_EQ(record(), Record{});
  EXPECT_EQ(*pod.run("nht.counters", {{"gpu", "1"}}).number("unrecorded"), 1u);
}

TEST_F(Status, U11_FiveRingOverflow) {
  pod[0].store_slot(kInterrupt, (70 - 1) % 64, Node::message(70, {1}));
  pod[0].store_pointer(kInterrupt, 70);  // read pointer 1
  pod[0].ring_doorbell(kInterrupt, 70);
  EXPECT_EQ(record(), (Record{70, 5, 70})) << "the read pointer jumps to the word";
  EXPECT_TRUE(pod[1].messages().empty());
  pod[0].store_slot(kInterrupt, 70 % 64, Node::message(71, {0x71}));
  pod[0].store_pointer(kInterrupt, 71);
  pod[0].ring_doorbell(kInterrupt, 71);
  EXPECT_EQ(record(), (Record{71, 0, 71}));
  EXPECT_EQ(pod[1].messages().size(), 1u);
}

TEST_F(Status, U11_SixtyFourAheadIsStillGood) {
  for (std::uint32_t i = 0; i < 64; ++i)
    pod[0].store_slot(kInterrupt, (1 + i) % 64, Node::message(2 + i, {i}));
  pod[0].store_pointer(kInterrupt, 65);
  pod[0].ring_doorbell(kInterrupt, 65);
  EXPECT_EQ(record(), (Record{65, 0, 65}));
  EXPECT_EQ(pod[1].messages().size(), 64u);
}

TEST_F(Status, U11_SixPointerBehind) {
  for (std::uint32_t i = 2; i < 6; ++i) pod[0].send(kInterrupt, Node::message(i, {i}));
  pod[1].messages();
  pod[0].store_pointer(kInterrupt, 2);  // read pointer 5
  pod[0].ring_doorbell(kInterrupt, 2);
  EXPECT_EQ(record(), (Record{2, 6, 2})) << "sequence of the entry in slot 1";
  EXPECT_TRUE(pod[1].messages().empty());
}

TEST_F(Status, D42_SixPointerAddressDoesNotTranslate) {
  pod[1].put(table_entry() + 24, std::uint64_t{0x7F'0000'0000});
  reload();
  pod[0].ring_doorbell(kInterrupt, 0x55);
  EXPECT_EQ(record().data, 0x55u);
  EXPECT_EQ(record().status, 6u);
}

TEST_F(Status, D42_EightRingAddressDoesNotTranslate) {
  pod[1].put(table_entry() + 8, std::uint64_t{0x7F'0000'0000});
  reload();
  pod[0].store_pointer(kInterrupt, 2);
  pod[0].ring_doorbell(kInterrupt, 2);
  EXPECT_EQ(record(), (Record{2, 8, 2}));
}

TEST_F(Status, D42_SevenInterruptHandlerOff) {
  pod[1].write(ih() + 0x80, 0);
  pod[0].send(kInterrupt, Node::message(2, {1}));
  EXPECT_EQ(record(), (Record{2, 7, 2}));
}

TEST_F(Status, U29_NineGoesToTheOldAddress) {
  Packet packet = pod[0].move_record(pod[1], kInterrupt, 2);
  packet[2] = 0x01F0'0000;  // a page of our window that is not mapped
  pod[0].send(kInterrupt, packet);
  EXPECT_EQ(record(), (Record{2, 9, 2}));
  pod[0].send(kInterrupt, Node::message(3, {1}));
  EXPECT_EQ(record(), (Record{3, 0, 3})) << "the old address stays in use";
}

TEST_F(Status, U29_NineWithoutAnOldAddressIsSilent) {
  pod.gpu(1).reset();
  pod.clock.advance(5ms);
  pod[1].bring_up();
  pod[1].load_firmware();
  pod[0].put(kRecords + 32 * pod[1].id(), Record{});
  Packet packet = pod[0].move_record(pod[1], kInterrupt, 1);
  packet[2] = 0x01F0'0000;
  pod[0].written[kInterrupt] = 0;
  pod[0].send(kInterrupt, packet);
  EXPECT_EQ(record(), Record{});
  EXPECT_EQ(*pod.run("nht.counters", {{"gpu", "1"}}).number("failed"), 1u);
}

TEST_F(Status, ThreeAHeavyShootdownThatDoesNotEnd) {
  pod.run("lsdma.slow", {{"gpu", "1"}, {"us", "5000000"}});
  pod[1].start_copy(Node::buffer_va(), kMc + 0x180'0000, 4096);
  pod.step();  // translated and in flight
  pod[0].store_slot(kShootdown, 1, Node::shootdown(2));
  pod[0].store_pointer(kShootdown, 2);
  pod[0].ring_doorbell(kShootdown, 2);
  for (unsigned i = 0; i < 4; ++i) pod.settle();  // each gives up after 400 ms
  EXPECT_EQ(record(kShootdown), (Record{2, 3, 2}));
}

TEST_F(Status, OneAndOthersByAScenario) {
  for (std::uint32_t status : {1u, 3u, 7u}) {
    pod.run("nht.fail", {{"gpu", "1"}, {"status", std::to_string(status)}});
    pod[0].send(kInterrupt, Node::message(10 + status, {1}));
    EXPECT_EQ(record().status, status);
  }
  EXPECT_TRUE(pod[1].messages().empty());
}

}  // namespace
}  // namespace gpusim::test
