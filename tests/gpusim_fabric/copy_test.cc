// Engines that read and write another GPU's memory.
#include <gtest/gtest.h>

#include "tests/gpusim_fabric/pod_bench.h"

namespace gpusim::test {
namespace {

constexpr std::uint64_t kLocal = 0x180'0000;  // VRAM of the requester

class Copy : public ::testing::TestWithParam<const char*> {
 protected:
  Copy() : pod(2, GetParam()) { pod.bring_up(false); }
  static std::uint64_t pattern(std::uint64_t at) { return at * 0x9E37'79B9'7F4A'7C15 + 1; }
  void fill(Node& node, std::uint64_t at, std::uint64_t bytes) {
    for (std::uint64_t i = 0; i < bytes; i += 8) node.put(at + i, pattern(i));
  }
  // First byte that is wrong, or `bytes`.
  std::uint64_t compare(Node& node, std::uint64_t at, std::uint64_t bytes) {
    for (std::uint64_t i = 0; i < bytes; i += 8)
      if (node.get<std::uint64_t>(at + i) != pattern(i)) return i;
    return bytes;
  }
  std::uint64_t remote_bytes(bool write, const std::string& engine) {
    const auto found = pod.log.totals().find({0, engine, AccessKind::kRemote, write});
    return found == pod.log.totals().end() ? 0 : found->second.bytes;
  }
  PodBench pod;
};

TEST_P(Copy, SdmaReadsAPeer) {
  fill(pod[1], kBuffer, kBufferBytes);
  pod[0].submit_copy(Node::buffer_va(), kMc + kLocal, kBufferBytes);
  pod.settle();
  EXPECT_EQ(compare(pod[0], kLocal, kBufferBytes), kBufferBytes);
  EXPECT_EQ(remote_bytes(false, "sdma0.0 q0"), kBufferBytes);
  EXPECT_EQ(remote_bytes(true, "sdma0.0 q0"), 0u);
}

TEST_P(Copy, SdmaWritesAPeer) {
  fill(pod[0], kLocal, kBufferBytes);
  pod[0].submit_copy(kMc + kLocal, Node::buffer_va(), kBufferBytes);
  pod.settle();
  EXPECT_EQ(compare(pod[1], kBuffer, kBufferBytes), kBufferBytes);
  EXPECT_EQ(remote_bytes(true, "sdma0.0 q0"), kBufferBytes);
}

TEST_P(Copy, OddPlacesAndSizes) {
  fill(pod[1], kBuffer, 0x5000);
  pod[0].submit_copy(Node::buffer_va(0xFF9), kMc + kLocal + 3, 0x2007);
  pod.settle();
  const auto there = pod[1].gpu().vram().cpu_view().subspan(kBuffer + 0xFF9, 0x2007);
  const auto here = pod[0].gpu().vram().cpu_view().subspan(kLocal + 3, 0x2007);
  EXPECT_TRUE(std::ranges::equal(there, here));
  EXPECT_EQ(pod[0].get<std::uint8_t>(kLocal + 2), 0u);
  EXPECT_EQ(pod[0].get<std::uint8_t>(kLocal + 3 + 0x2007), 0u);
}

TEST_P(Copy, PagesOfAPeerNeedNotBeInOrder) {
  fill(pod[1], kBuffer, 0x10000);
  for (std::uint64_t i = 0; i < 16; ++i)
    pod[1].set_npa(kNpaBuffer + i, pod[1].vram_entry(kBuffer + 4096 * (i ^ 5)));
  EXPECT_EQ(pod[0].copy(Node::buffer_va(), kMc + kLocal, 0x10000), 0u);
  for (std::uint64_t i = 0; i < 16; ++i)
    EXPECT_EQ(pod[0].get<std::uint64_t>(kLocal + 4096 * i), pattern(4096 * (i ^ 5))) << i;
}

TEST_P(Copy, LsdmaBothWaysAndFills) {
  fill(pod[1], kBuffer, 0x8000);
  EXPECT_EQ(pod[0].copy(Node::buffer_va(), Node::buffer_va(0x10000), 0x8000), 0u);
  EXPECT_EQ(compare(pod[1], kBuffer + 0x10000, 0x8000), 0x8000u);
  pod[0].submit({11 | 2u << 30, static_cast<std::uint32_t>(Node::buffer_va(0x2004)), 0, 0xCAFE'F00D,
                 0x1000 - 1});
  pod.settle();
  EXPECT_EQ(pod[1].get<std::uint32_t>(kBuffer + 0x2000),
            static_cast<std::uint32_t>(pattern(0x2000)));
  EXPECT_EQ(pod[1].get<std::uint32_t>(kBuffer + 0x2004), 0xCAFE'F00Du);
  EXPECT_EQ(pod[1].get<std::uint32_t>(kBuffer + 0x3000), 0xCAFE'F00Du);
  EXPECT_EQ(pod[1].get<std::uint32_t>(kBuffer + 0x3004),
            static_cast<std::uint32_t>(pattern(0x3000) >> 32));
}

TEST_P(Copy, D50_AtomicsAtTheExporter) {
  pod[1].put(kBuffer + 8, std::uint64_t{40});
  std::uint64_t old = 0;
  const Requester who{"test", 0, 0, 0};
  ASSERT_EQ(pod[0].gpu().gfxhub(0).atomic(who, Node::buffer_va(8), AtomicOp::kAdd64, 2, 0, old),
            Outcome::kOk);
  EXPECT_EQ(old, 40u);
  EXPECT_EQ(pod[1].get<std::uint64_t>(kBuffer + 8), 42u);
}

TEST_P(Copy, TheLogNamesEachAccess) {
  EXPECT_EQ(pod[0].copy(Node::buffer_va(0x1000), kMc + kLocal, 256), 0u);
  const auto found = pod.log.find(0, "lsdma");
  ASSERT_FALSE(found.empty());
  const Access& last = found.back();
  EXPECT_EQ(last.kind, AccessKind::kRemote);
  EXPECT_FALSE(last.write);
  EXPECT_EQ(last.address, (std::uint64_t{pod[1].id()} << 41) + kNpaBuffer * 4096 + 0x1000);
  EXPECT_EQ(last.bytes, 256u);
}

INSTANTIATE_TEST_SUITE_P(Modes, Copy, ::testing::Values("addr_mode=alias", "addr_mode=ident"),
                         [](const auto& info) { return std::string(info.param).substr(10); });

// What a model in line may hold its thread for: all engines share what a step moves, and each gets
// its turn.
TEST(LimitedStep, EnginesShareItAndTakeTurns) {
  constexpr std::uint64_t kLimit = 128 << 10, kPiece = 64 << 10, kBytes = 2 << 20;
  constexpr std::uint64_t kOther = kLocal + kBytes;
  PodBench pod;
  pod.bring_up(false);
  Gpu& gpu = pod.gpu(0);
  std::ranges::fill(gpu.vram().cpu_view().subspan(kBuffer, kBytes), std::byte{0xAA});
  gpu.limit_step(kLimit);
  pod[0].submit_copy(kMc + kBuffer, kMc + kLocal, kBytes);
  pod[0].start_copy(kMc + kBuffer, kMc + kOther, kBytes);
  const auto arrived = [&](std::uint64_t at) {
    std::uint64_t bytes = 0;
    for (std::uint64_t page = 0; page < kBytes; page += 4096)
      bytes += pod[0].get<std::uint8_t>(at + page + 4095) == 0xAA ? 4096 : 0;
    return bytes;
  };
  std::uint64_t before = 0;
  while (before < 2 * kBytes) {
    ASSERT_TRUE(gpu.step());
    const std::uint64_t sdma = arrived(kLocal), lsdma = arrived(kOther);
    ASSERT_LE(sdma + lsdma - before, kLimit + kPiece);
    before = sdma + lsdma;
    if (sdma < kBytes && lsdma < kBytes) {
      ASSERT_LE(std::max(sdma, lsdma) - std::min(sdma, lsdma), 2 * (kLimit + kPiece));
    }
  }
}

}  // namespace
}  // namespace gpusim::test
