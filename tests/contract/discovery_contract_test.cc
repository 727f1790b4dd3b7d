// The discovery binary as the model writes it and as the daemon reads it
// (docs/hardware/discovery.md).
#include <gtest/gtest.h>

#include "tests/contract/contract_rig.h"

namespace contract {
namespace {

using gpuumd::discovery::HardwareId;

template <class T>
T at(std::span<const std::byte> bytes, std::size_t offset) {
  return base::load<T>(bytes, offset);
}

TEST(Discovery, HeaderByTheSheet) {
  for (const unsigned major : {1u, 2u}) {
    gpusim::GpuOptions options;
    options.binary_major = major;
    const auto binary = gpusim::build_discovery(options, gpusim::Bases(options));
    const std::span<const std::byte> bytes(binary);
    EXPECT_EQ(at<std::uint32_t>(bytes, 0), 0x2821'1407u);
    EXPECT_EQ(at<std::uint16_t>(bytes, 4), major);
    EXPECT_EQ(at<std::uint16_t>(bytes, 10), binary.size());
    std::uint16_t sum = 0;
    for (std::size_t i = 10; i < binary.size(); ++i)
      sum = static_cast<std::uint16_t>(sum + std::to_integer<unsigned>(binary[i]));
    EXPECT_EQ(at<std::uint16_t>(bytes, 8), sum);
    const std::size_t list = major == 1 ? 12 : 16;
    const auto table = at<std::uint16_t>(bytes, list);
    EXPECT_EQ(at<std::uint32_t>(bytes, table), 0x5344'5049u);
    EXPECT_EQ(at<std::uint16_t>(bytes, table + 4), 4u);
    EXPECT_EQ(at<std::uint32_t>(bytes, at<std::uint16_t>(bytes, list + 16)), 0x5652'4148u);

    EXPECT_TRUE(gpuumd::discovery::has_signature(bytes));
    EXPECT_EQ(gpuumd::discovery::total_size(bytes).value(), binary.size());
    const auto parsed = gpuumd::discovery::parse(bytes);
    ASSERT_TRUE(parsed) << parsed.error().message();
    EXPECT_EQ(parsed->binary_major, major);
    EXPECT_EQ(parsed->version, 4u);
  }
}

TEST(Discovery, EveryBlockAndBase) {
  struct Kind {
    HardwareId daemon;
    gpusim::Ip model;
    unsigned number;
    gpuumd::discovery::Version version;
  };
  static_assert(static_cast<unsigned>(HardwareId::kGc) == 11 &&
                static_cast<unsigned>(gpusim::Ip::kGc) == 11);
  for (const std::uint64_t seed : {0, 1, 2, 3, 99}) {
    for (const bool wide : {false, true}) {
      gpusim::GpuOptions options;
      options.bases_seed = seed;
      options.seed = seed + 5;
      options.bases_64bit = wide;
      options.xccs = 8;
      options.mids = 4;
      const gpusim::Bases bases(options);
      const auto parsed = gpuumd::discovery::parse(gpusim::build_discovery(options, bases));
      ASSERT_TRUE(parsed) << parsed.error().message();
      EXPECT_EQ(parsed->wide_bases, wide);
      const Kind kinds[] = {
          {HardwareId::kNbif, gpusim::Ip::kNbio, 1, {6, 3, 2}},
          {HardwareId::kOsssys, gpusim::Ip::kOsssys, 1, {7, 1, 0}},
          {HardwareId::kLsdma, gpusim::Ip::kLsdma, 1, {7, 1, 0}},
          {HardwareId::kMp0, gpusim::Ip::kMp0, 1, {15, 0, 8}},
          {HardwareId::kMmhub, gpusim::Ip::kMmhub, 4, {4, 2, 0}},
          {HardwareId::kGc, gpusim::Ip::kGc, 8, {12, 1, 0}},
      };
      for (const auto& kind : kinds) {
        EXPECT_EQ(static_cast<unsigned>(kind.daemon), static_cast<unsigned>(kind.model));
        unsigned found = 0;
        for (const auto& block : parsed->blocks) {
          if (block.id != kind.daemon) continue;
          ++found;
          EXPECT_EQ(block.version, kind.version);
          for (unsigned s = 0; s < bases.segments(kind.model).size(); ++s)
            EXPECT_EQ(block.bases[s], bases.at(kind.model, block.instance, s));
        }
        EXPECT_EQ(found, kind.number) << static_cast<unsigned>(kind.daemon);
      }
      EXPECT_EQ(
          std::ranges::count(parsed->blocks, HardwareId::kSdma0, &gpuumd::discovery::Block::id),
          16);
    }
  }
}

TEST(Discovery, D8_WhereVramLies) {
  Rig rig;
  EXPECT_EQ(rig.topology.fb_base.value(), 0x80'0000'0000u);
  EXPECT_EQ(rig.topology.fb_top.value(), 0x80'0000'0000u + Rig::kVram - 1);
  EXPECT_EQ(rig.topology.vram_base.value(), std::uint64_t{0x1100} << 24);
  EXPECT_EQ(rig.topology.xccs.size(), 2u);
  EXPECT_EQ(rig.topology.mmhubs.size(), 2u);
  EXPECT_EQ(rig.topology.sdma_per_xcc(), 2u);
}

}  // namespace
}  // namespace contract
