#include "tools/gpusim/model/nbio.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "base/bytes.h"
#include "tools/gpusim/model/reset_noise.h"

namespace gpusim {
namespace {

constexpr std::uint32_t kMmIndex = 0x0, kMmData = 0x1, kMmIndexHi = 0x6;
constexpr std::uint32_t kIndex2 = 0xE, kData2 = 0xF, kIndex2Hi = 0x11;
constexpr std::uint32_t kMemsize = 0xDE3, kFbEn = 0xE20, kFlush = 0xE17;
constexpr std::uint32_t kAperEn = 0xDE0, kS2a = 0xEEB, kAccess = 0xF17;

struct FakeHostVram : HostVram {
  std::vector<std::byte> memory = std::vector<std::byte>(2 << 20);
  unsigned flushes = 0;
  void host_read(std::uint64_t offset, std::span<std::byte> to) override {
    std::ranges::copy(std::span(memory).subspan(offset, to.size()), to.begin());
  }
  void host_write(std::uint64_t offset, std::span<const std::byte> from) override {
    std::ranges::copy(from, memory.begin() + static_cast<std::ptrdiff_t>(offset));
  }
  void flush_host_stores() override { ++flushes; }
};

GpuOptions small() {
  GpuOptions options;
  options.vram_bytes = 2 << 20;
  options.seed = 7;
  return options;
}

class NbioTest : public ::testing::Test {
 protected:
  GpuOptions options = small();
  Bases bases{options};
  RegisterFile registers;
  FakeHostVram vram;
  Nbio nbio{registers, bases, options, vram};
};

TEST_F(NbioTest, MemorySizeAtItsFixedPlace) {
  EXPECT_EQ(registers.read(kMemsize), 2u);
  registers.write(kMemsize, 5);
  EXPECT_EQ(registers.read(kMemsize), 2u);
}

TEST_F(NbioTest, D37_SmnReachesRegistersBeyondBar5) {
  registers.define(0x5'0000, "FAR", 0x1234);
  registers.write(kIndex2, 0x5'0000 * 4);
  EXPECT_EQ(registers.read(kData2), 0x1234u);
  registers.write(kData2, 77);
  EXPECT_EQ(registers.read(0x5'0000), 77u);
}

TEST_F(NbioTest, D37_UnknownReadsZeroAndDropsWrites) {
  registers.write(kIndex2, 0x0BAD'0000);
  registers.write(kData2, 1);
  EXPECT_EQ(registers.read(kData2), 0u);
  EXPECT_EQ(registers.read(0x1'2345), 0u);
  registers.write(0x1'2345, 9);
  EXPECT_EQ(registers.read(0x1'2345), 0u);
}

TEST_F(NbioTest, SmnOfAnotherDieIsEmpty) {
  registers.write(kIndex2, kMemsize * 4);
  EXPECT_EQ(registers.read(kData2), 2u);
  registers.write(kIndex2Hi, 1);
  EXPECT_EQ(registers.read(kData2), 0u);
}

TEST_F(NbioTest, SmnWindowDoesNotOpenOnItself) {
  registers.write(kIndex2, kData2 * 4);
  EXPECT_EQ(registers.read(kData2), 0u);
  registers.write(kData2, 1);
}

TEST_F(NbioTest, MmWindowReadsAndWritesVram) {
  base::store(std::span(vram.memory), 0x1ABCE0, std::uint32_t{0xCAFE});
  registers.write(kMmIndexHi, 0);
  registers.write(kMmIndex, 0x1ABCE0 | 0x8000'0000);
  EXPECT_EQ(registers.read(kMmData), 0xCAFEu);
  registers.write(kMmData, 0xBEEF);
  EXPECT_EQ(base::load<std::uint32_t>(vram.memory, 0x1ABCE0), 0xBEEFu);
  registers.write(kMmIndexHi, 1);  // 2 GiB further: outside VRAM
  EXPECT_EQ(registers.read(kMmData), 0u);
  registers.write(kMmData, 1);
  registers.write(kMmIndexHi, 0);
  registers.write(kMmIndex, 0x1ABCE0);  // not the VRAM form
  EXPECT_EQ(registers.read(kMmData), 0u);
}

TEST_F(NbioTest, D57_FramebufferEnableGatesTheHost) {
  EXPECT_EQ(registers.read(kFbEn), 3u);
  registers.write(kMmIndex, 0x8000'0000);
  registers.write(kMmData, 5);
  registers.write(kFbEn, 2);
  EXPECT_FALSE(nbio.host_reads_enabled());
  EXPECT_EQ(registers.read(kMmData), 0xFFFF'FFFFu);
  registers.write(kFbEn, 1);
  registers.write(kMmData, 6);
  EXPECT_EQ(registers.read(kMmData), 5u);
}

TEST_F(NbioTest, FlushRegisterFlushesWhateverIsWritten) {
  EXPECT_EQ(nbio.flush_dword(), kFlush);
  const std::uint32_t idle = registers.read(kFlush);
  EXPECT_NE(idle, 0u);
  EXPECT_NE(idle, 1u);
  EXPECT_NE(idle, 0xFFFF'FFFFu);
  registers.write(kFlush, 0);
  registers.write(kFlush, 1);
  EXPECT_EQ(vram.flushes, 2u);
  EXPECT_EQ(registers.read(kFlush), idle);
}

TEST_F(NbioTest, FlushRequestAnswersInDone) {
  registers.write(0xE26, 0x5);
  EXPECT_EQ(registers.read(0xE27), 0x5u);
  EXPECT_EQ(vram.flushes, 1u);
}

TEST_F(NbioTest, D29_ResetClosesAllDoorbells) {
  EXPECT_FALSE(nbio.doorbell_aperture_enabled());
  EXPECT_EQ(nbio.doorbell_access(), 0u);
  for (unsigned i = 0; i < DoorbellGate::kEntries; ++i) EXPECT_FALSE(nbio.s2a_entry(i).enabled);
}

TEST_F(NbioTest, S2aWordsOfTheContract) {
  registers.write(kAperEn, 1);
  registers.write(kAccess, 0xF'FFFF);
  registers.write(kS2a + 2, 0x0011'A001);
  EXPECT_FALSE(nbio.s2a_entry(1).enabled) << "no target port type yet";
  registers.write(kS2a + 3, 3);
  const S2aEntry ih = nbio.s2a_entry(1);
  EXPECT_TRUE(ih.enabled);
  EXPECT_EQ(ih.target, 0);
  EXPECT_EQ(ih.first_dword, 0x340u);
  EXPECT_EQ(ih.dwords, 8u);
  registers.write(kS2a + 12, 0xE001'001D + (40 << 17));
  registers.write(kS2a + 13, 3);
  const S2aEntry sdma = nbio.s2a_entry(6);
  EXPECT_EQ(sdma.target, 0xE);
  EXPECT_EQ(sdma.first_dword, 0x200u);
  EXPECT_EQ(sdma.dwords, 40u);
  registers.write(kS2a, 0x3000'0007);
  registers.write(kS2a + 1, 3);
  EXPECT_EQ(nbio.s2a_entry(0).target, 3);
  EXPECT_EQ(nbio.s2a_entry(0).dwords, 0u);
}

TEST_F(NbioTest, D56_ScratchOfTheDiscoveryTableSurvives) {
  nbio.set_discovery_scratch(0x1'2345'6000, 0x900);
  registers.write(kFbEn, 0);
  registers.reset();
  EXPECT_EQ(registers.read(0x94), 0x2345'6000u);
  EXPECT_EQ(registers.read(0x95), 1u);
  EXPECT_EQ(registers.read(0x96), 0x900u);
  EXPECT_EQ(registers.read(kFbEn), 3u);
}

TEST_F(NbioTest, UnusedRegistersResetToSeededNoise) {
  constexpr std::uint32_t kInterruptCntl = 0xE11;
  EXPECT_EQ(registers.read(kInterruptCntl), noise(7, kInterruptCntl));
  RegisterFile other;
  GpuOptions different = small();
  different.seed = 8;
  const Nbio twin(other, bases, different, vram);
  EXPECT_NE(other.read(kInterruptCntl), registers.read(kInterruptCntl));
  registers.write(kInterruptCntl, 3);
  EXPECT_EQ(registers.read(kInterruptCntl), 3u);
}

}  // namespace
}  // namespace gpusim
