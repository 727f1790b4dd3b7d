// The parts of the client that only read bytes.
#include <cstring>

#include <gtest/gtest.h>

#include "scripted_server.h"
#include "vfio/user/user_region.h"
#include "vfio/user/user_version.h"

namespace vfio_test {
namespace {

namespace wire = vfio::wire;
using base::Errc;

constexpr std::uint32_t kAll = wire::kRegionReadable | wire::kRegionWriteable |
                               wire::kRegionMappable | wire::kRegionHasCapabilities;

struct Chain {
  wire::RegionInfo info{0, kAll, 2, sizeof(wire::RegionInfo), 0x10000, 0};
  Bytes rest;

  template <class... Parts>
  Chain& with(const Parts&... parts) {
    rest = bytes_of(parts...);
    return *this;
  }
  Bytes bytes() const {
    Bytes all = bytes_of(info);
    all.insert(all.end(), rest.begin(), rest.end());
    return all;
  }
  base::Result<vfio::Region> parse(std::size_t fds = 1) const {
    return vfio::parse_region_info(bytes(), 2, fds);
  }
  Errc error(std::size_t fds = 1) const {
    const auto region = parse(fds);
    return region ? Errc{} : region.error().code;
  }
};

wire::CapabilityHeader capability(std::uint16_t id, std::uint32_t next) { return {id, 1, next}; }

TEST(RegionInfo, WholePagesWithoutACapability) {
  Chain chain;
  chain.info.flags &= ~wire::kRegionHasCapabilities;
  chain.info.size = 0x2800;
  const auto region = chain.parse().value();
  EXPECT_TRUE(region.mappable);
  ASSERT_EQ(region.areas.size(), 1u);
  EXPECT_EQ(region.areas[0].size, 0x2000u);
}

TEST(RegionInfo, AreasAreSorted) {
  const auto region = Chain()
                          .with(capability(7, 40), capability(1, 0), wire::SparseMmap{2, 0},
                                wire::SparseArea{0x8000, 0x1000}, wire::SparseArea{0x1000, 0x2000})
                          .parse();
  ASSERT_TRUE(region) << region.error().message();
  ASSERT_EQ(region->areas.size(), 2u);
  EXPECT_EQ(region->areas[0].offset, 0x1000u);
  EXPECT_EQ(region->areas[1].offset, 0x8000u);
}

TEST(RegionInfo, NoAreas) {
  EXPECT_TRUE(Chain().with(capability(1, 0), wire::SparseMmap{0, 0}).parse().value().areas.empty());
}

TEST(RegionInfo, ChainThatLoops) {
  EXPECT_EQ(Chain().with(capability(7, 40), capability(8, 32)).error(), Errc::kProtocol);
  EXPECT_EQ(Chain().with(capability(7, 32)).error(), Errc::kProtocol);
}

TEST(RegionInfo, ChainThatLeavesTheReply) {
  Chain chain;
  for (const std::uint32_t next : {33u, 36u, 4096u, 0xfffffff8u, 1u, 31u})
    EXPECT_EQ(chain.with(capability(7, next)).error(), Errc::kProtocol) << next;
  for (const std::uint32_t first : {4u, 33u, 40u, 0xffffffffu}) {
    chain.with(capability(7, 0));
    chain.info.capability_offset = first;
    EXPECT_EQ(chain.error(), Errc::kProtocol) << first;
  }
}

TEST(RegionInfo, AreasThatLie) {
  const auto error = [](wire::SparseArea a, wire::SparseArea b, std::uint32_t count = 2) {
    return Chain().with(capability(1, 0), wire::SparseMmap{count, 0}, a, b).error();
  };
  EXPECT_EQ(error({0, 0x1000}, {0x1000, 0x1000}), Errc{});
  EXPECT_EQ(error({0, 0x2000}, {0x1000, 0x1000}), Errc::kProtocol) << "overlap";
  EXPECT_EQ(error({0, 0x1000}, {0, 0x1000}), Errc::kProtocol) << "same";
  EXPECT_EQ(error({0, 0x1000}, {0x10000, 0x1000}), Errc::kProtocol) << "outside";
  EXPECT_EQ(error({0, 0x1000}, {UINT64_MAX - 0xfff, 0x2000}), Errc::kProtocol) << "wraps";
  EXPECT_EQ(error({0x10, 0x1000}, {0x2000, 0x1000}), Errc::kProtocol) << "misaligned";
  EXPECT_EQ(error({0, 0x800}, {0x2000, 0x1000}), Errc::kProtocol) << "part of a page";
  EXPECT_EQ(error({0, 0}, {0x2000, 0x1000}), Errc::kProtocol) << "empty";
  EXPECT_EQ(error({0, 0x1000}, {0x1000, 0x1000}, 3), Errc::kProtocol) << "more than come";
  EXPECT_EQ(error({0, 0x1000}, {0x1000, 0x1000}, UINT32_MAX), Errc::kProtocol);
}

TEST(RegionInfo, TwoSparseCapabilities) {
  EXPECT_EQ(
      Chain()
          .with(capability(1, 48), wire::SparseMmap{0, 0}, capability(1, 0), wire::SparseMmap{0, 0})
          .error(),
      Errc::kProtocol);
}

TEST(RegionInfo, CutSparseCapability) {
  EXPECT_EQ(Chain().with(capability(1, 0), std::uint32_t{0}).error(), Errc::kProtocol);
}

TEST(RegionInfo, AnotherRegion) {
  Chain chain;
  chain.with(capability(7, 0)).info.index = 3;
  EXPECT_EQ(chain.error(), Errc::kProtocol);
}

TEST(RegionInfo, DescriptorsFitTheFlag) {
  Chain chain;
  chain.with(capability(7, 0));
  EXPECT_EQ(chain.error(0), Errc::kProtocol);
  EXPECT_EQ(chain.error(2), Errc::kProtocol);
  chain.info.flags &= ~wire::kRegionMappable;
  EXPECT_EQ(chain.error(1), Errc::kProtocol);
  EXPECT_EQ(chain.error(0), Errc{});
}

TEST(RegionInfo, SizesThatWrap) {
  Chain chain;
  chain.with(capability(7, 0));
  chain.info.size = UINT64_MAX;
  EXPECT_EQ(chain.error(), Errc::kProtocol);
  chain.info.size = 0x1000;
  chain.info.offset = UINT64_MAX - 0xfff;
  EXPECT_EQ(chain.error(), Errc::kProtocol);
}

TEST(RegionInfo, OneWayRegionIsTrapped) {
  Chain chain;
  chain.with(capability(7, 0)).info.flags &= ~wire::kRegionWriteable;
  EXPECT_FALSE(chain.parse().value().mappable);
}

base::Result<vfio::ServerCapabilities> parse(std::string_view json, std::size_t fds = 0,
                                             bool offered = true) {
  Bytes payload = bytes_of(wire::Version{0, 1});
  const auto text = std::as_bytes(std::span(json));
  payload.insert(payload.end(), text.begin(), text.end());
  return vfio::parse_version_reply(payload, offered, fds);
}
Errc version_error(std::string_view json, std::size_t fds = 0, bool offered = true) {
  const auto result = parse(json, fds, offered);
  return result ? Errc{} : result.error().code;
}

TEST(VersionReply, EmptyDataMeansDefaults) {
  for (const auto* text : {"", R"({})", R"({"capabilities": {}})", R"({"capabilities":{"x":[]}})"})
    EXPECT_EQ(parse(text).value().max_msg_fds, 1u) << text;
}

TEST(VersionReply, Garbage) {
  for (const auto* text :
       {"{", "nonsense", "[]", "7", "null", R"({"capabilities": 1})", R"({"capabilities": []})",
        R"({"capabilities": {"max_msg_fds": -1}})", R"({"capabilities": {"max_msg_fds": 1.5}})",
        R"({"capabilities": {"max_msg_fds": "8"}})", R"({"capabilities": {"pgsizes": 0}})",
        R"({"capabilities": {"max_dma_maps": 99999999999999999999999}})",
        R"({"capabilities": {"max_dma_maps": {}}})", "\xff\xfe", "{} {}"})
    EXPECT_EQ(version_error(text), Errc::kProtocol) << text;
  EXPECT_EQ(version_error(std::string(16000, '[')), Errc::kProtocol);
}

TEST(VersionReply, WrongVersions) {
  const auto error = [](std::uint16_t major, std::uint16_t minor) {
    const auto result = vfio::parse_version_reply(bytes_of(wire::Version{major, minor}), true, 0);
    return result ? Errc{} : result.error().code;
  };
  EXPECT_EQ(error(0, 0), Errc{});
  EXPECT_EQ(error(0, 1), Errc{});
  EXPECT_EQ(error(0, 2), Errc::kProtocol);
  EXPECT_EQ(error(1, 0), Errc::kProtocol);
}

TEST(VersionReply, UselessServers) {
  EXPECT_EQ(version_error(R"({"capabilities": {"max_msg_fds": 0}})"), Errc::kUnsupported);
  EXPECT_EQ(version_error(R"({"capabilities": {"max_data_xfer_size": 4}})"), Errc::kUnsupported);
}

TEST(VersionReply, Wake) {
  const auto wake = [](std::string_view value) {
    return R"({"capabilities": {"gpuumd.wake": )" + std::string(value) + "}}";
  };
  const auto good = wake(R"({"version": 1, "regions": [2, 5]})");
  EXPECT_EQ(parse(good, 3).value().wake_regions, (std::vector<std::uint32_t>{2, 5}));
  EXPECT_EQ(version_error(good, 2), Errc::kProtocol) << "a descriptor is missing";
  EXPECT_EQ(version_error(good, 4), Errc::kProtocol) << "one too many";
  EXPECT_EQ(version_error(good, 3, false), Errc::kProtocol) << "not offered";
  for (const auto* value :
       {"1", R"({"version": 2, "regions": [2]})", R"({"regions": [2]})", R"({"version": 1})",
        R"({"version": 1, "regions": 2})", R"({"version": 1, "regions": [6]})",
        R"({"version": 1, "regions": [-1]})", R"({"version": 1, "regions": ["2"]})",
        R"({"version": 1, "regions": [2, 2]})", R"({"version": 1, "regions": [0,1,2,3,4,5,0]})",
        R"({"version": 1, "regions": [4294967298]})"})
    EXPECT_EQ(version_error(wake(value), 2), Errc::kProtocol) << value;
  EXPECT_EQ(version_error("", 1), Errc::kProtocol) << "a descriptor for nothing";
}

}  // namespace
}  // namespace vfio_test
