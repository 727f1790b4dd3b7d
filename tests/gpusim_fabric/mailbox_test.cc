// The firmware's mailbox: load, halt, and what they do to rings.
#include <gtest/gtest.h>

#include "tests/gpusim_fabric/pod_bench.h"

namespace gpusim::test {
namespace {

class Mailbox : public ::testing::Test {
 protected:
  Mailbox() {
    for (unsigned i = 0; i < 2; ++i) pod[i].map_peer(pod[1 - i]);
    for (unsigned i = 0; i < 2; ++i) {
      pod[i].bring_up();
      pod[i].write_table();
    }
  }
  PodBench pod;
};

TEST_F(Mailbox, LoadAndHalt) {
  EXPECT_EQ(pod[0].status(), 0xA0u);
  EXPECT_EQ(pod[0].command(1), 0xA1u);
  EXPECT_EQ(pod[0].read_smn(0x0AE1'0958), 1u) << "CMD reads back (D61)";
  EXPECT_EQ(pod[0].command(2), 0xA2u);
  EXPECT_EQ(pod[0].command(1), 0xA1u);
}

TEST_F(Mailbox, D44_WrongStateOrCommandIsAnErrorThatHaltEnds) {
  pod[0].load_firmware();
  EXPECT_EQ(pod[0].command(1), 0xA3u) << "loaded twice";
  EXPECT_EQ(pod[0].command(1), 0xA3u);
  EXPECT_EQ(pod[0].command(2), 0xA2u);
  EXPECT_EQ(pod[0].command(7), 0xA3u);
  EXPECT_EQ(pod[0].command(2), 0xA2u);
}

TEST_F(Mailbox, D43_OnlyTheTablesAddressIsCheckedAtLoad) {
  for (std::uint64_t at = 0; at < 256 * 40; at += 8) pod[0].put(kTable + at, ~std::uint64_t{0});
  EXPECT_EQ(pod[0].command(1), 0xA1u);
  pod[0].command(2);
  pod[0].write_smn(0x0AE1'0964, 0x7F);  // beyond every window of VMID 0
  pod[0].write_smn(0x0AE1'0958, 1);
  pod.settle();
  EXPECT_EQ(pod[0].status(), 0xA3u);
}

TEST_F(Mailbox, StatusCannotBeWritten) {
  pod[0].write_smn(0x0AE1'0968, 0xA1);
  EXPECT_EQ(pod[0].status(), 0xA0u);
}

TEST_F(Mailbox, D44_DoorbellsAreDroppedUntilLoadedAndWhileHalted) {
  pod[0].send(kInterrupt, Node::message(1, {0x11}));
  EXPECT_TRUE(pod[1].messages().empty());
  pod[1].load_firmware();
  EXPECT_TRUE(pod[1].messages().empty()) << "what was rung before is not remembered";
  pod[0].send(kInterrupt, Node::message(2, {0x22}));
  const auto both = pod[1].messages();
  ASSERT_EQ(both.size(), 2u) << "the word counts: the next doorbell repairs the lost one";
  EXPECT_EQ(both[0].data[0], 0x11u);
  EXPECT_EQ(pod[1].command(2), 0xA2u);
  pod[0].send(kInterrupt, Node::message(3, {0x33}));
  EXPECT_TRUE(pod[1].messages().empty());
  EXPECT_EQ(*pod.run("nht.counters", {{"gpu", "1"}}).number("dropped_doorbells"), 2u);
}

TEST_F(Mailbox, U02_LoadStartsAtZeroAndForgetsTheRecords) {
  pod[0].load_firmware();
  pod[1].load_firmware();
  pod[0].introduce(pod[1]);
  pod[0].send(kInterrupt, Node::message(2, {0x22}));
  EXPECT_EQ(pod[0].record(pod[1], kInterrupt), (Record{2, 0, 2}));
  pod[1].messages();
  pod[1].command(2);
  pod[1].load_firmware();
  // A sender that did not notice: its ring is read again from the start, without a record until
  // opcode 3 comes by.
  pod[0].put(kRecords + 32 * pod[1].id(), Record{});
  pod[0].ring_doorbell(kInterrupt, 2);
  EXPECT_EQ(pod[1].messages().size(), 1u);
  EXPECT_EQ(pod[0].record(pod[1], kInterrupt), (Record{2, 0, 2}));
}

TEST_F(Mailbox, D56_ResetGoesBackToPreInit) {
  pod[1].load_firmware();
  pod.gpu(1).reset();
  EXPECT_EQ(pod[1].status(), 0xA0u);
  EXPECT_EQ(pod[1].read_smn(0x0AE1'0960), 0u);
}

TEST_F(Mailbox, ScenarioStatus) {
  pod.run("nht.status", {{"gpu", "1"}, {"value", "0xF0"}});
  EXPECT_EQ(pod[1].status(), 0xF0u);
  EXPECT_EQ(pod[1].command(1), 0xA3u);
}

}  // namespace
}  // namespace gpusim::test
