// Messages that are lost, late, doubled or out of order, and peers that do not answer.
#include <gtest/gtest.h>

#include "tests/gpusim_fabric/pod_bench.h"

namespace gpusim::test {
namespace {

class Messages : public ::testing::Test {
 protected:
  Messages() { pod.bring_up(); }
  void send(std::uint32_t type) {
    ++sequence;
    pod[0].send(kInterrupt, Node::message(sequence, {type | sequence << 10}));
  }
  std::vector<std::uint32_t> received() {
    std::vector<std::uint32_t> types;
    for (const Vector& vector : pod[1].messages()) types.push_back(vector.data[0] & 0x3FF);
    return types;
  }
  ScenarioValues arguments(std::initializer_list<std::pair<const std::string, std::string>> more) {
    ScenarioValues values(more);
    values.set("gpu", "1");
    values.set("from", std::uint64_t{pod[0].id()});
    return values;
  }
  std::uint32_t acknowledged() { return pod[0].record(pod[1], kInterrupt).data; }
  using Types = std::vector<std::uint32_t>;
  std::uint32_t sequence = 1;
  PodBench pod;
};

TEST_F(Messages, Dropped) {
  pod.run("nht.drop", arguments({{"count", "2"}}));
  for (std::uint32_t type : {1, 2, 3}) send(type);
  EXPECT_EQ(received(), Types{3});
  EXPECT_EQ(acknowledged(), 4u) << "acknowledged all the same (U32)";
}

TEST_F(Messages, DroppedByType) {
  pod.run("nht.drop", arguments({{"type", "4"}}));
  for (std::uint32_t type : {3, 4, 4}) send(type);
  EXPECT_EQ(received(), (Types{3, 4}));
}

TEST_F(Messages, AnotherSendersAreLeftAlone) {
  pod.run("nht.drop", {{"gpu", "1"}, {"from", "77"}});
  send(1);
  EXPECT_EQ(received(), Types{1});
}

TEST_F(Messages, Delayed) {
  pod.run("nht.delay", arguments({{"us", "3000"}}));
  const ModelTime before = pod.clock.now();
  send(1);
  EXPECT_EQ(received(), Types{1});
  EXPECT_GE(pod.clock.now() - before, 3ms);
}

TEST_F(Messages, Duplicated) {
  pod.run("nht.duplicate", arguments({}));
  send(5);
  send(6);
  EXPECT_EQ(received(), (Types{5, 5, 6}));
}

TEST_F(Messages, Reordered) {
  pod.run("nht.reorder", arguments({}));
  pod[0].store_slot(kInterrupt, 1, Node::message(2, {1}));
  pod[0].store_slot(kInterrupt, 2, Node::message(3, {2}));
  pod[0].store_pointer(kInterrupt, 3);
  pod[0].ring_doorbell(kInterrupt, 3);
  EXPECT_EQ(received(), (Types{2, 1}));
}

TEST_F(Messages, ReorderedWithNobodyBehindComesLate) {
  pod.run("nht.reorder", arguments({{"us", "1000"}}));
  send(1);
  EXPECT_EQ(received(), Types{1});
}

TEST_F(Messages, MutePeerTakesEverything) {
  pod.run("nht.mute", {{"gpu", "1"}});
  send(1);
  EXPECT_TRUE(received().empty());
  EXPECT_EQ(acknowledged(), 2u);
  pod.run("nht.mute", {{"gpu", "1"}, {"on", "false"}});
  send(2);
  EXPECT_EQ(received(), Types{2});
}

TEST_F(Messages, HungPeerTakesNothing) {
  pod.run("nht.hang", {{"gpu", "1"}});
  send(1);
  EXPECT_EQ(acknowledged(), 1u);
  pod.run("nht.hang", {{"gpu", "1"}, {"on", "false"}});
  pod.settle();
  EXPECT_EQ(received(), Types{1}) << "it goes on where it stood";
  EXPECT_EQ(acknowledged(), 2u);
}

TEST_F(Messages, TakenWithoutAWriteBack) {
  pod.run("nht.no_write_back", arguments({{"ring", "interrupt"}}));
  send(1);
  EXPECT_EQ(received(), Types{1});
  EXPECT_EQ(acknowledged(), 1u);
  send(2);
  EXPECT_EQ(pod[0].record(pod[1], kInterrupt), (Record{3, 0, 3}));
}

TEST_F(Messages, ALostDoorbellIsRepairedByTheNext) {
  pod.run("fabric.lose_doorbell", {{"from", std::to_string(pod[0].id())}});
  send(1);
  EXPECT_TRUE(received().empty());
  send(2);
  EXPECT_EQ(received(), (Types{1, 2}));
}

TEST_F(Messages, ArgumentsAreChecked) {
  EXPECT_FALSE(pod.hooks.run("nht.drop", {{"gpu", "1"}, {"from", "1024"}}));
  EXPECT_FALSE(pod.hooks.run("nht.fail", {{"gpu", "1"}, {"ring", "other"}}));
  EXPECT_FALSE(pod.hooks.run("nht.delay", {{"gpu", "1"}, {"us", "later"}}));
  EXPECT_FALSE(pod.hooks.run("nht.status", {{"gpu", "1"}}));
}

TEST_F(Messages, CommandsGoWithThePod) {
  EXPECT_FALSE(pod.hooks.list().empty());
  pod.parts.gpus.clear();
  pod.parts.parts.clear();
  for (const auto& command : pod.hooks.list()) {
    EXPECT_FALSE(command.name.starts_with("nht.")) << command.name;
    EXPECT_FALSE(command.name.starts_with("fabric.")) << command.name;
  }
}

}  // namespace
}  // namespace gpusim::test
