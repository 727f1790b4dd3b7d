// Opcode 1: what the importer's hubs remember of the exporter's memory goes.
#include <gtest/gtest.h>

#include "tests/gpusim_fabric/pod_bench.h"

namespace gpusim::test {
namespace {

constexpr std::uint64_t kLocal = 0x180'0000;

// GPU 1 exports, GPU 0 imports: the shootdown goes from 1 to 0.
class Shootdown : public ::testing::Test {
 protected:
  explicit Shootdown(unsigned gpus = 2) : pod(gpus) {
    pod.bring_up();
    pod[1].put(kBuffer, std::uint64_t{0xAAAA});
    pod[1].put(kBuffer + 0x1000, std::uint64_t{0xBBBB});
  }
  std::uint64_t read_by_sdma() {
    pod[0].submit_copy(Node::buffer_va(), kMc + kLocal, 8);
    pod.settle();
    return pod[0].get<std::uint64_t>(kLocal);
  }
  std::uint64_t read_by_lsdma() {
    EXPECT_EQ(pod[0].copy(Node::buffer_va(), kMc + kLocal + 64, 8), 0u);
    return pod[0].get<std::uint64_t>(kLocal + 64);
  }
  // The importer's own entries lead elsewhere from now on; nothing is flushed here.
  void move_import() {
    pod[0].set_gart(kGartBuffer,
                    ((std::uint64_t{pod[1].id()} << 29 | kNpaBuffer) + 1) << 12 | kNpa);
  }
  PodBench pod;
};

TEST_F(Shootdown, D45_StaleBeforeAndRightAfter) {
  EXPECT_EQ(read_by_sdma(), 0xAAAAu);
  EXPECT_EQ(read_by_lsdma(), 0xAAAAu);
  move_import();
  EXPECT_EQ(read_by_sdma(), 0xAAAAu) << "the GFXHUB still holds the old translation";
  EXPECT_EQ(read_by_lsdma(), 0xAAAAu) << "and so does the MMHUB";
  pod[1].send(kShootdown, Node::shootdown(2));
  EXPECT_EQ(pod[1].record(pod[0], kShootdown), (Record{2, 0, 2}));
  EXPECT_EQ(read_by_sdma(), 0xBBBBu);
  EXPECT_EQ(read_by_lsdma(), 0xBBBBu);
  EXPECT_TRUE(pod[0].messages().empty()) << "no vector for a shootdown (U26)";
}

TEST_F(Shootdown, U26_ALightOneDropsAsMuch) {
  read_by_sdma();
  move_import();
  pod[1].send(kShootdown, Node::shootdown(2, 1));
  EXPECT_EQ(read_by_sdma(), 0xBBBBu);
}

TEST_F(Shootdown, U26_AnyRangeIsTheWholeSpace) {
  read_by_sdma();
  move_import();
  Packet packet = Node::shootdown(2);
  packet[8] = 0x4000'0002;
  packet[9] = 0;
  pod[1].send(kShootdown, packet);
  EXPECT_EQ(read_by_sdma(), 0xBBBBu);
}

TEST_F(Shootdown, U26_AHeavyOneWaitsForAccessesInFlight) {
  pod.run("lsdma.slow", {{"us", "20000"}});
  pod[0].start_copy(Node::buffer_va(), kMc + kLocal, 8);
  pod.step();  // translated; done 20 ms later
  pod[1].put(kScratch, Node::shootdown(2));
  pod[1].start_copy(kMc + kScratch, kGartShootdownRing * 4096 + 64, 64);
  const auto run = [&] {
    while (pod.step()) {
    }
  };
  run();
  pod[1].put(kScratch, std::uint64_t{2});
  pod[1].start_copy(kMc + kScratch, kGartPointers * 4096 + 16 * pod[1].id() + 8, 8);
  run();
  pod[1].start_copy(kMc + kScratch, kGartDoorbell * 4096 + 0x40, 4);
  run();
  EXPECT_TRUE(pod.gpu(0).waiting());
  EXPECT_EQ(pod[1].record(pod[0], kShootdown).data, 1u) << "not yet";
  pod.settle();
  EXPECT_EQ(pod[1].record(pod[0], kShootdown), (Record{2, 0, 2}));
  EXPECT_EQ(pod[0].get<std::uint64_t>(kLocal), 0xAAAAu);
}

TEST_F(Shootdown, U26_ALightOneDoesNotWait) {
  pod.run("lsdma.slow", {{"us", "20000"}});
  pod[0].start_copy(Node::buffer_va(), kMc + kLocal, 8);
  pod.step();
  pod[1].store_slot(kShootdown, 1, Node::shootdown(2, 1));
  pod[1].store_pointer(kShootdown, 2);
  pod[1].put(kScratch, 2u);
  pod[1].start_copy(kMc + kScratch, kGartDoorbell * 4096 + 0x40, 4);
  while (pod.step()) {
  }
  EXPECT_EQ(pod[1].record(pod[0], kShootdown), (Record{2, 0, 2}));
}

class ThreeGpus : public Shootdown {
 protected:
  ThreeGpus() : Shootdown(3) {}
};

TEST_F(ThreeGpus, D45_OnlyTranslationsToTheSenderGo) {
  EXPECT_EQ(read_by_sdma(), 0xAAAAu);
  pod[2].map_peer(pod[0]);
  pod[2].flush();
  pod[2].written = {};
  pod[2].introduce(pod[0]);
  move_import();
  pod[2].send(kShootdown, Node::shootdown(2));
  EXPECT_EQ(read_by_sdma(), 0xAAAAu) << "GPU 2 cannot flush what leads to GPU 1";
  pod[1].send(kShootdown, Node::shootdown(2));
  EXPECT_EQ(read_by_sdma(), 0xBBBBu);
}

TEST_F(Shootdown, U48_ALegacyPeerNeverAnswersOnThatRing) {
  pod.run("nht.no_shootdown", {});
  read_by_sdma();
  move_import();
  pod[1].send(kShootdown, Node::shootdown(2));
  pod[1].send(kShootdown, pod[1].move_record(pod[0], kShootdown, 3));
  EXPECT_EQ(pod[1].record(pod[0], kShootdown), (Record{1, 0, 1}));
  EXPECT_EQ(read_by_sdma(), 0xAAAAu);
  pod[1].send(kInterrupt, Node::message(2, {1}));
  EXPECT_EQ(pod[1].record(pod[0], kInterrupt), (Record{2, 0, 2})) << "the other ring works";
}

}  // namespace
}  // namespace gpusim::test
