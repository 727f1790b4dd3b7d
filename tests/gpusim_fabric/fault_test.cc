// Remote accesses that fail, and what requester and exporter see of it.
#include <gtest/gtest.h>

#include "tests/gpusim_fabric/pod_bench.h"

namespace gpusim::test {
namespace {

constexpr std::uint64_t kLocal = 0x180'0000;
constexpr std::uint32_t kWriteNack = 1u << 17, kReadNack = 1u << 18;

class Fault : public ::testing::Test {
 protected:
  explicit Fault(unsigned gpus = 2) : pod(gpus) { pod.bring_up(false); }
  // The vector of an SDMA queue that was stopped; data[3] says whether the peer was lost.
  void expect_stopped(std::uint32_t lost, std::uint64_t npa) {
    pod.settle();
    const auto vectors = pod[0].vectors();
    ASSERT_EQ(vectors.size(), 1u);
    EXPECT_EQ(vectors[0].client, 0x0A);
    EXPECT_EQ(vectors[0].source, 0xE7);
    EXPECT_EQ(vectors[0].data[0], 1u);
    EXPECT_EQ(vectors[0].data[1] | std::uint64_t{vectors[0].data[2]} << 32, npa >> 12);
    EXPECT_EQ(vectors[0].data[3], lost);
  }
  std::uint64_t npa(std::uint64_t offset = 0) {
    return (std::uint64_t{pod[1].id()} << 41) + kNpaBuffer * 4096 + offset;
  }
  PodBench pod;
};

TEST_F(Fault, D46_AMissingEntryRefusesTheReadAndFaultsAtTheExporter) {
  pod[0].put(kLocal, std::uint64_t{0x77});
  pod[1].set_npa(kNpaBuffer, 0);
  EXPECT_EQ(pod[0].copy(Node::buffer_va(), kMc + kLocal, 64), kReadNack);
  EXPECT_EQ(pod[0].get<std::uint64_t>(kLocal), 0x77u) << "nothing of a refused read is delivered";
  const auto there = pod[1].vectors();
  ASSERT_EQ(there.size(), 1u);
  EXPECT_EQ(there[0].client, 0x12);
  EXPECT_EQ(there[0].vmid, 15);
  EXPECT_TRUE(pod[0].vectors().empty());
}

TEST_F(Fault, D46_TheNoRetryPatternRefusesTheWrite) {
  pod[1].set_npa(kNpaBuffer, kFinal);
  EXPECT_EQ(pod[0].copy(kMc + kLocal, Node::buffer_va(), 64), kWriteNack);
  pod[0].submit_copy(kMc + kLocal, Node::buffer_va(), 64);
  expect_stopped(0, npa());
}

TEST_F(Fault, D46_NobodyHasThatId) {
  pod[0].set_gart(kGartBuffer, (std::uint64_t{77} << 29 | kNpaBuffer) << 12 | kNpa);
  pod[0].submit_copy(Node::buffer_va(), kMc + kLocal, 64);
  expect_stopped(0, std::uint64_t{77} << 41 | kNpaBuffer << 12);
  EXPECT_EQ(*pod.run("fabric.counters").number("no_target"), 1u);
}

TEST_F(Fault, D46_APeerOutsideTheVirtualPodIsRefused) {
  pod.run("psp.config", {{"gpu", "1"}, {"vpod_id", "2"}});
  pod[0].submit_copy(Node::buffer_va(), kMc + kLocal, 64);
  expect_stopped(0, npa());
  EXPECT_EQ(*pod.run("fabric.counters").number("outsiders"), 1u);
}

TEST_F(Fault, D46_MembershipHoldsInBothDirections) {
  const std::uint32_t only_self = 1u << pod[1].id();
  pod.run("psp.config", {{"gpu", "1"}, {"active0", std::to_string(only_self)}});
  EXPECT_EQ(pod[0].copy(Node::buffer_va(), kMc + kLocal, 64), kReadNack);
  EXPECT_EQ(pod[1].copy(Node::buffer_va(), kMc + kLocal, 64), kReadNack);
  EXPECT_EQ(*pod.run("fabric.counters").number("outsiders"), 2u);
}

TEST_F(Fault, D47_RetryEndsWhenTheEntryChanges) {
  pod[1].put(kBuffer, std::uint64_t{5});
  pod[1].set_npa(kNpaBuffer, pod[1].vram_entry(kBuffer) | kX);
  pod[0].start_copy(Node::buffer_va(), kMc + kLocal, 8);
  for (unsigned i = 0; i < 200; ++i) {
    pod.step();
    pod.clock.advance(10us);
  }
  EXPECT_GT(*pod.run("fabric.counters").number("retried"), 50u) << "about every 10 us";
  EXPECT_EQ(pod[0].get<std::uint64_t>(kLocal), 0u);
  pod[1].set_npa(kNpaBuffer, pod[1].vram_entry(kBuffer));
  pod[1].flush();
  pod.settle();
  EXPECT_EQ(pod[0].copy_errors(), 0u);
  EXPECT_EQ(pod[0].get<std::uint64_t>(kLocal), 5u);
}

TEST_F(Fault, D47_RetryForAHundredMillisecondsIsARefusal) {
  pod[1].set_npa(kNpaBuffer, pod[1].vram_entry(kBuffer) | kX);
  const ModelTime before = pod.clock.now();
  pod[0].submit_copy(Node::buffer_va(), kMc + kLocal, 64);
  expect_stopped(0, npa());
  EXPECT_GE(pod.clock.now() - before, 100ms);
  EXPECT_TRUE(pod[1].vectors().empty()) << "X = 1 is no fault at the exporter";
}

TEST_F(Fault, LinkDownIsAPeerLost) {
  pod.gpu(1).set_link(false);
  pod[0].submit_copy(Node::buffer_va(), kMc + kLocal, 64);
  expect_stopped(1, npa());
}

TEST_F(Fault, LinkDownInTheMiddleOfACopy) {
  for (std::uint64_t i = 0; i < kBufferBytes; i += 4096) pod[1].put(kBuffer + i, i + 1);
  pod[0].submit_copy(Node::buffer_va(), kMc + kLocal, kBufferBytes);
  pod[0].gpu().step();
  pod.run("fabric.cut", {{"a", std::to_string(pod[0].id())}, {"b", std::to_string(pod[1].id())}});
  pod.settle();
  const auto vectors = pod[0].vectors();
  ASSERT_EQ(vectors.size(), 1u);
  EXPECT_EQ(vectors[0].source, 0xE7);
  EXPECT_EQ(vectors[0].data[3], 1u);
  std::uint64_t arrived = 0;
  for (std::uint64_t i = 0; i < kBufferBytes; i += 4096)
    arrived += pod[0].get<std::uint64_t>(kLocal + i) == i + 1 ? 4096 : 0;
  EXPECT_GT(arrived, 0u);
  EXPECT_LT(arrived, kBufferBytes);
}

TEST_F(Fault, CutAndJoinedAgain) {
  const ScenarioValues way{{"a", std::to_string(pod[1].id())}, {"b", std::to_string(pod[0].id())}};
  pod.run("fabric.cut", way);
  EXPECT_EQ(pod[0].copy(Node::buffer_va(), kMc + kLocal, 64), kReadNack);
  EXPECT_EQ(pod[1].copy(Node::buffer_va(), kMc + kLocal, 64), kReadNack);
  pod.run("fabric.join", way);
  EXPECT_EQ(pod[0].copy(Node::buffer_va(), kMc + kLocal, 64), 0u);
}

TEST_F(Fault, ALostAccessAndALostAnswer) {
  pod[0].put(kLocal, std::uint64_t{9});
  pod.run("fabric.lose", {{"from", std::to_string(pod[0].id())}});
  EXPECT_EQ(pod[0].copy(kMc + kLocal, Node::buffer_va(), 8), kWriteNack);
  EXPECT_EQ(pod[1].get<std::uint64_t>(kBuffer), 0u);
  pod.run("fabric.lose", {{"to", std::to_string(pod[1].id())}, {"done", "true"}});
  EXPECT_EQ(pod[0].copy(kMc + kLocal, Node::buffer_va(), 8), kWriteNack);
  EXPECT_EQ(pod[1].get<std::uint64_t>(kBuffer), 9u) << "it took effect, only the answer is lost";
  EXPECT_EQ(pod[0].copy(kMc + kLocal, Node::buffer_va(), 8), 0u);
}

TEST_F(Fault, D56_ResetOfAPeerIsSeenAsALinkThatGoesDownAndUp) {
  pod[0].submit_copy(Node::buffer_va(), kMc + kLocal, kBufferBytes);
  pod[0].gpu().step();
  pod.gpu(1).reset();
  pod.settle();
  const auto vectors = pod[0].vectors();
  ASSERT_EQ(vectors.size(), 1u);
  EXPECT_EQ(vectors[0].source, 0xE7);
  EXPECT_EQ(vectors[0].data[3], 1u);
  pod.clock.advance(5ms);
  EXPECT_EQ(pod[0].copy(Node::buffer_va(), kMc + kLocal, 64), kReadNack)
      << "up again, but nobody has opened the NPA space (D54)";
  EXPECT_EQ(*pod.run("fabric.counters").number("refused"), 1u);
  EXPECT_EQ(pod[1].status(), 0xA0u);
  pod[1].bring_up();
  EXPECT_EQ(pod[0].copy(Node::buffer_va(), kMc + kLocal, 64), 0u);
}

TEST_F(Fault, D56_OwnResetTakesTheOwnLinkDown) {
  pod.gpu(0).reset();
  EXPECT_EQ(pod[1].copy(Node::buffer_va(), kMc + kLocal, 64), kReadNack);
  EXPECT_GE(*pod.run("fabric.counters").number("link_down"), 1u);
}

TEST_F(Fault, ARemovedPeerIsLost) {
  pod.run("device.gone", {{"gpu", "1"}});
  pod[0].submit_copy(Node::buffer_va(), kMc + kLocal, 64);
  expect_stopped(1, npa());
}

TEST_F(Fault, AnAddressOutsideAnyWindowGoesNowhere) {
  pod[0].set_gart(kGartBuffer, (1ull << 51 | npa()) | kNpa);
  EXPECT_EQ(pod[0].copy(Node::buffer_va(), kMc + kLocal, 64), kReadNack);
  EXPECT_EQ(*pod.run("fabric.counters").number("no_target"), 1u);
}

TEST_F(Fault, ScenarioArguments) {
  EXPECT_FALSE(pod.hooks.run("fabric.cut", {{"a", "3"}}));
  EXPECT_FALSE(pod.hooks.run("fabric.cut", {{"a", "3"}, {"b", "1024"}}));
  EXPECT_FALSE(pod.hooks.run("fabric.lose", {{"count", "some"}}));
}

}  // namespace
}  // namespace gpusim::test
