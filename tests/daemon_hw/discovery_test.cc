#include "daemon/gpu/bringup/discovery.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/daemon_hw/discovery_builder.h"

namespace {

using daemon_hw::DiscoveryBuilder;
using gpuumd::RegisterBlock;
using namespace gpuumd::discovery;

void expect_gpu(const Table& table) {
  ASSERT_EQ(table.blocks.size(), 13u);
  const Block& nbio = table.blocks.front();
  EXPECT_EQ(nbio.id, HardwareId::kNbif);
  EXPECT_EQ(nbio.version, (Version{6, 3, 2}));
  EXPECT_EQ(nbio.sub_revision, 1);
  EXPECT_EQ(nbio.variant, 2);
  EXPECT_EQ(nbio.bases[1], 0x14u);
  EXPECT_EQ(nbio.bases[3], 0x10400u);
  EXPECT_EQ(nbio.bases[4], RegisterBlock::kAbsent);
  EXPECT_EQ(table.blocks[6].instance, 1);
  EXPECT_EQ(table.blocks[6].bases[2], 0x59800u);
}

TEST(Discovery, EveryFormatGivesTheSameBlocks) {
  for (const int major : {1, 2})
    for (const int version : {3, 4})
      for (const bool wide : {false, true}) {
        if (version == 3 && wide) continue;
        SCOPED_TRACE(testing::Message() << major << " " << version << " " << wide);
        auto builder = DiscoveryBuilder::gpu();
        builder.binary_major = static_cast<std::uint16_t>(major);
        builder.version = static_cast<std::uint16_t>(version);
        builder.wide = wide;
        const auto table = parse(builder.build());
        ASSERT_TRUE(table) << table.error().message();
        EXPECT_EQ(table->wide_bases, wide);
        expect_gpu(*table);
      }
}

TEST(Discovery, Version3HasNoFlagForWideBases) {
  auto builder = DiscoveryBuilder::gpu();
  builder.version = 3;
  auto bytes = builder.build();
  const std::size_t flag = 12 + 7 * 8 + 78;
  bytes[flag] = std::byte{1};  // padding in version 3
  const std::uint16_t sum = DiscoveryBuilder::sum(bytes, 68, bytes.size() - 68);
  std::memcpy(bytes.data() + 14, &sum, 2);
  DiscoveryBuilder::fix_checksum(bytes);
  const auto table = parse(bytes);
  ASSERT_TRUE(table) << table.error().message();
  expect_gpu(*table);
}

TEST(Discovery, ManyDiesAndTrailingBytes) {
  auto builder = DiscoveryBuilder::gpu();
  builder.dies.push_back({{11, 7, 12, 1, 0, {0x5000, 0x6000}}});
  auto bytes = builder.build();
  bytes.resize(bytes.size() + 100, std::byte{0x5A});  // the place is larger than the binary
  const auto table = parse(bytes);
  ASSERT_TRUE(table) << table.error().message();
  EXPECT_EQ(table->dies, 2);
  EXPECT_EQ(table->blocks.back().die, 1);
  EXPECT_EQ(table->blocks.back().instance, 7);
}

TEST(Discovery, HarvestedBlocksAreGone) {
  auto builder = DiscoveryBuilder::gpu();
  builder.harvested = {{11, 1}, {42, 2}, {42, 3}};
  const auto table = parse(builder.build());
  ASSERT_TRUE(table) << table.error().message();
  EXPECT_EQ(table->harvested, 3u);
  EXPECT_EQ(table->blocks.size(), 10u);
}

TEST(Discovery, BaseBeyondTheRegisterSpaceIsAbsent) {
  auto builder = DiscoveryBuilder::gpu();
  builder.wide = true;
  builder.dies[0][1].bases = {0x1'0000'10A0};
  builder.dies[0][3].bases = {0xFFFF'FFF0};
  const auto table = parse(builder.build());
  ASSERT_TRUE(table);
  EXPECT_EQ(table->blocks[1].bases[0], RegisterBlock::kAbsent);
  EXPECT_EQ(table->blocks[3].bases[0], RegisterBlock::kAbsent);
}

TEST(Discovery, MoreBasesThanSegments) {
  auto builder = DiscoveryBuilder::gpu();
  builder.dies[0][1].bases.assign(255, 0x77);
  const auto table = parse(builder.build());
  ASSERT_TRUE(table) << table.error().message();
  EXPECT_EQ(table->blocks[1].bases[7], 0x77u);
  EXPECT_EQ(table->blocks[2].id, HardwareId::kMp0);
}

TEST(Discovery, UnknownVersionsAreNamed) {
  auto builder = DiscoveryBuilder::gpu();
  builder.version = 9;
  auto table = parse(builder.build());
  ASSERT_FALSE(table);
  EXPECT_EQ(table.error().code, base::Errc::kUnsupported);
  EXPECT_NE(table.error().step.find("version 9"), std::string::npos);
  builder.version = 4;
  builder.binary_major = 3;
  table = parse(builder.build());
  ASSERT_FALSE(table);
  EXPECT_EQ(table.error().code, base::Errc::kUnsupported);
}

TEST(Discovery, D59_ChecksumCoversFromByte10ToTheEnd) {
  for (const int major : {1, 2}) {
    auto builder = DiscoveryBuilder::gpu();
    builder.binary_major = static_cast<std::uint16_t>(major);
    const auto good = builder.build();
    for (std::size_t at = 10; at < good.size(); ++at) {
      auto bytes = good;
      bytes[at] ^= std::byte{0x01};
      const auto table = parse(bytes);
      ASSERT_FALSE(table) << "byte " << at;
    }
  }
}

TEST(Discovery, IpTableHasItsOwnChecksum) {
  auto bytes = DiscoveryBuilder::gpu().build();
  bytes[bytes.size() - 1] ^= std::byte{0x10};
  DiscoveryBuilder::fix_checksum(bytes);
  const auto table = parse(bytes);
  ASSERT_FALSE(table);
  EXPECT_NE(table.error().step.find("IP discovery has a wrong checksum"), std::string::npos);
}

TEST(Discovery, CutShortAtEveryLength) {
  const auto good = DiscoveryBuilder::gpu().build();
  for (std::size_t size = 0; size < good.size(); ++size) {
    // A copy of exactly that size, so that the sanitizer sees a read past it.
    std::vector<std::byte> bytes(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_FALSE(parse(bytes)) << size;
    if (size < kHeaderBytes) continue;
    const auto said = static_cast<std::uint16_t>(size);  // and if its header agrees
    std::memcpy(bytes.data() + 10, &said, 2);
    DiscoveryBuilder::fix_checksum(bytes);
    EXPECT_FALSE(parse(bytes)) << size;
  }
}

// Mutations with every checksum made right again, so that they reach the parser's inside.
TEST(Discovery, HostileBytesNeverCrash) {
  constexpr unsigned kSeed = 20261129;
  std::mt19937 random(kSeed);
  unsigned accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    auto builder = DiscoveryBuilder::gpu();
    builder.binary_major = random() % 2 ? 1 : 2;
    builder.wide = random() % 2;
    builder.harvested = {{11, 1}};
    auto bytes = builder.build();
    for (unsigned n = random() % 6 + 1; n > 0; --n)
      bytes[random() % bytes.size()] = std::byte(random() % 3 ? random() : 0xFF);
    const std::size_t list = builder.binary_major == 2 ? 16 : 12;
    for (const std::size_t entry : {list, list + 16}) {
      std::uint16_t at, ip_size = 136;
      std::memcpy(&at, bytes.data() + entry, 2);
      if (entry == list && at + 8u <= bytes.size()) std::memcpy(&ip_size, bytes.data() + at + 6, 2);
      const std::uint16_t sum = DiscoveryBuilder::sum(bytes, at, ip_size);
      std::memcpy(bytes.data() + entry + 2, &sum, 2);
    }
    DiscoveryBuilder::fix_checksum(bytes);
    const auto table = parse(bytes);
    if (table)
      ++accepted;
    else
      ASSERT_FALSE(table.error().step.empty());
  }
  EXPECT_GT(accepted, 20u) << "the mutations no longer reach the inside";
}

}  // namespace
