// The discovery binary, read by a parser that shares nothing with its builder.
#include "tools/gpusim/model/discovery_table.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "tools/gpusim/model/bases.h"
#include "tools/gpusim/model/options.h"

namespace gpusim {
namespace {

struct ParsedBlock {
  unsigned major, minor, revision;
  std::vector<std::uint64_t> bases;
};

// (hardware id, instance) -> block. Only what a reader of the format would know.
class Parser {
 public:
  explicit Parser(std::vector<std::byte> bytes) : b_(std::move(bytes)) {}

  std::uint64_t at(std::size_t offset, unsigned bytes) const {
    std::uint64_t value = 0;
    for (unsigned i = 0; i < bytes; ++i)
      value |= std::to_integer<std::uint64_t>(b_.at(offset + i)) << (8 * i);
    return value;
  }
  unsigned sum(std::size_t from, std::size_t to) const {
    unsigned total = 0;
    for (std::size_t i = from; i < to; ++i) total += std::to_integer<unsigned>(b_.at(i));
    return total & 0xFFFF;
  }
  std::size_t table_list() const { return at(4, 2) == 1 ? 12 : 16; }
  std::size_t table(unsigned index) const { return at(table_list() + 8 * index, 2); }

  std::map<std::pair<unsigned, unsigned>, ParsedBlock> blocks() const {
    std::map<std::pair<unsigned, unsigned>, ParsedBlock> found;
    const std::size_t ip = table(0);
    const bool wide = (at(ip + 78, 1) & 1) != 0;
    for (unsigned die = 0; die < at(ip + 12, 2); ++die) {
      const std::size_t header = at(ip + 14 + 4 * die + 2, 2);
      std::size_t entry = header + 4;
      for (unsigned n = 0; n < at(header + 2, 2); ++n) {
        ParsedBlock block{static_cast<unsigned>(at(entry + 4, 1)),
                          static_cast<unsigned>(at(entry + 5, 1)),
                          static_cast<unsigned>(at(entry + 6, 1)),
                          {}};
        const unsigned width = wide ? 8 : 4;
        const auto count = static_cast<unsigned>(at(entry + 3, 1));
        for (unsigned i = 0; i < count; ++i)
          block.bases.push_back(at(entry + 8 + i * width, width));
        found[{static_cast<unsigned>(at(entry, 2)), static_cast<unsigned>(at(entry + 2, 1))}] =
            block;
        entry += 8 + count * width;
      }
    }
    return found;
  }
  std::size_t size() const { return b_.size(); }

 private:
  std::vector<std::byte> b_;
};

Parser parse(const GpuOptions& options) { return Parser(build_discovery(options, Bases(options))); }

TEST(Discovery, D59_ChecksumCoversByteTenToTheEnd) {
  const Parser binary = parse({});
  EXPECT_EQ(binary.at(0, 4), 0x28211407u);
  EXPECT_EQ(binary.at(10, 2), binary.size());
  EXPECT_EQ(binary.at(8, 2), binary.sum(10, binary.size()));
  EXPECT_LE(binary.size(), 10u * 1024);
}

TEST(Discovery, EachTableHasItsOwnChecksum) {
  for (const unsigned major : {1u, 2u}) {
    GpuOptions options;
    options.binary_major = major;
    const Parser binary = parse(options);
    EXPECT_EQ(binary.at(4, 2), major);
    unsigned present = 0;
    for (unsigned i = 0; i < 7; ++i) {
      const std::size_t list = binary.table_list() + 8 * i;
      if (binary.at(list, 2) == 0) continue;
      ++present;
      const std::size_t start = binary.at(list, 2);
      EXPECT_EQ(binary.at(list + 2, 2), binary.sum(start, start + binary.at(list + 4, 2)));
    }
    EXPECT_EQ(present, 3u);
    EXPECT_EQ(binary.at(binary.table(0), 4), 0x53445049u);
    EXPECT_EQ(binary.at(binary.table(0) + 4, 2), 4u);
    EXPECT_EQ(binary.at(binary.table(2), 4), 0x56524148u);
    EXPECT_EQ(binary.at(binary.table(5), 4), 0x0053504Eu);
  }
}

TEST(Discovery, D7_TwoOfEverythingByDefault) {
  const auto blocks = parse({}).blocks();
  for (const auto& [id, instances] :
       {std::pair{108u, 1u}, {34u, 2u}, {40u, 1u}, {11u, 2u}, {42u, 4u}, {91u, 1u}, {255u, 1u}})
    for (unsigned instance = 0; instance <= instances; ++instance)
      EXPECT_EQ(blocks.contains({id, instance}), instance < instances) << id << ' ' << instance;
  const ParsedBlock& gc = blocks.at({11, 0});
  EXPECT_EQ(gc.major, 12u);
  EXPECT_EQ(gc.minor, 1u);
  EXPECT_EQ(blocks.at({34, 1}).major, 4u);
  EXPECT_EQ(blocks.at({255, 0}).revision, 8u);
  EXPECT_EQ(blocks.at({42, 3}).bases, blocks.at({11, 1}).bases);
}

TEST(Discovery, D7_CountsAndWideBasesAreOptions) {
  GpuOptions options;
  options.xccs = 8;
  options.mids = 1;
  options.bases_64bit = true;
  options.binary_major = 2;
  const Parser binary = parse(options);
  EXPECT_LE(binary.size(), 10u * 1024);
  const auto blocks = binary.blocks();
  EXPECT_TRUE(blocks.contains({11, 7}));
  EXPECT_FALSE(blocks.contains({34, 1}));
  EXPECT_EQ(blocks.at({11, 7}).bases[0], blocks.at({11, 0}).bases[0] + 7 * 0x40000u);
}

TEST(Discovery, D6_NominalBasesWithoutASeed) {
  GpuOptions options;
  options.bases_seed = 0;
  const auto blocks = parse(options).blocks();
  using List = std::vector<std::uint64_t>;
  EXPECT_EQ(blocks.at({108, 0}).bases, (List{0, 0x14, 0xD20, 0x10400}));
  EXPECT_EQ(blocks.at({34, 0}).bases, (List{0, 0x18000, 0x19800}));
  EXPECT_EQ(blocks.at({40, 0}).bases, (List{0x10A0}));
  EXPECT_EQ(blocks.at({11, 0}).bases, (List{0x1260, 0xA000}));
  EXPECT_EQ(blocks.at({91, 0}).bases, (List{0x11400}));
  EXPECT_EQ(blocks.at({255, 0}).bases, (List{0, 0x16000, 0x16C00}));
  EXPECT_EQ(blocks.at({41, 0}).bases, (List{0xF20}));
}

TEST(Discovery, D6_SeededBasesMoveBySteps) {
  std::set<std::uint64_t> ih_bases;
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    GpuOptions options;
    options.bases_seed = seed;
    const Bases bases(options);
    EXPECT_EQ(bases.segments(Ip::kNbio)[2], 0xD20u);
    EXPECT_EQ(bases.segments(Ip::kMp0)[1], 0x16000u);
    for (const Ip ip : {Ip::kGc, Ip::kMmhub, Ip::kOsssys, Ip::kLsdma, Ip::kHdp})
      for (const std::uint32_t base : bases.segments(ip)) EXPECT_LT(base, 0x20000u);
    EXPECT_EQ((bases.segments(Ip::kOsssys)[0] - 0x10A0) % 0x400, 0u);
    EXPECT_EQ(bases.at(Ip::kMmhub, 1, 2), bases.at(Ip::kMmhub, 0, 2) + 0x40000);
    ih_bases.insert(bases.segments(Ip::kOsssys)[0]);
  }
  EXPECT_GT(ih_bases.size(), 20u);
}

TEST(Discovery, TheOrderOfEntriesIsNoPromise) {
  GpuOptions one, other;
  other.seed = 2;
  EXPECT_NE(build_discovery(one, Bases(one)), build_discovery(other, Bases(other)));
  EXPECT_EQ(parse(one).blocks().at({11, 0}).bases, parse(other).blocks().at({11, 0}).bases);
}

}  // namespace
}  // namespace gpusim
