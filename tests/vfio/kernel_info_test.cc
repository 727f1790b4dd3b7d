// What the kernel answers, byte by byte: chains of capabilities with everything that can be wrong.
#include "vfio/kernel/kernel_info.h"

#include <linux/vfio.h>

#include <cstring>
#include <initializer_list>
#include <string>

#include <gtest/gtest.h>

#include "base/bytes.h"

namespace vfio_test {
namespace {

using base::Errc;
using vfio::SparseArea;

// A reply that grows at its end.
class Reply {
 public:
  template <class T>
  Reply& add(const T& part) {
    const auto bytes = base::as_bytes(part);
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }
  Reply& capability(std::uint16_t id, std::uint32_t next) {
    return add(vfio::CapabilityHeader{id, 1, next});
  }
  Reply& cut(std::size_t size) {
    bytes_.resize(size);
    return *this;
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

constexpr std::uint32_t kAll =
    VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE | VFIO_REGION_INFO_FLAG_MMAP;
constexpr std::uint32_t kFirst = sizeof(vfio_region_info);

Reply region(std::uint32_t flags, std::uint32_t first = 0, std::uint64_t size = 0x10000,
             std::uint64_t offset = std::uint64_t{2} << 40) {
  vfio_region_info info{};
  info.argsz = sizeof(info);
  info.flags = flags;
  info.index = 2;
  info.cap_offset = first;
  info.size = size;
  info.offset = offset;
  return Reply().add(info);
}
base::Error region_error(const Reply& reply) {
  const auto parsed = vfio::parse_kernel_region(reply.bytes(), 2);
  EXPECT_FALSE(parsed);
  if (parsed) return {};
  EXPECT_EQ(parsed.error().code, Errc::kProtocol);
  return parsed.error();
}

TEST(KernelRegion, WithoutCapabilitiesAllWholePagesMayBeMapped) {
  const auto parsed = vfio::parse_kernel_region(region(kAll, 0, 0x10800).bytes(), 2).value();
  EXPECT_EQ(parsed.size, 0x10800u);
  EXPECT_EQ(parsed.offset, std::uint64_t{2} << 40);
  EXPECT_TRUE(parsed.readable && parsed.writable);
  EXPECT_EQ(parsed.areas, (std::vector{SparseArea{0, 0x10000}}));
  EXPECT_FALSE(parsed.msix_mappable);
}

TEST(KernelRegion, WhatMayNotBeMappedHasNoAreas) {
  EXPECT_TRUE(vfio::parse_kernel_region(region(VFIO_REGION_INFO_FLAG_READ).bytes(), 2)
                  .value()
                  .areas.empty());
  EXPECT_TRUE(vfio::parse_kernel_region(
                  region(VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_MMAP).bytes(), 2)
                  .value()
                  .areas.empty())
      << "we would have to write";
  EXPECT_TRUE(vfio::parse_kernel_region(region(kAll, 0, 0x100).bytes(), 2).value().areas.empty());
  EXPECT_TRUE(
      vfio::parse_kernel_region(region(kAll, 0, 0x1000, 0x800).bytes(), 2).value().areas.empty());
  EXPECT_EQ(vfio::parse_kernel_region(region(0, 0, 0).bytes(), 2).value().size, 0u);
}

TEST(KernelRegion, SparseAreasAndTheMsixPage) {
  auto reply = region(kAll | VFIO_REGION_INFO_FLAG_CAPS, kFirst);
  reply.capability(VFIO_REGION_INFO_CAP_MSIX_MAPPABLE, kFirst + 16)
      .add(std::uint64_t{0})
      .capability(VFIO_REGION_INFO_CAP_SPARSE_MMAP, 0)
      .add(vfio::SparseMmap{2, 0})
      .add(SparseArea{0x8000, 0x1000})
      .add(SparseArea{0x1000, 0x2000});
  const auto parsed = vfio::parse_kernel_region(reply.bytes(), 2).value();
  EXPECT_TRUE(parsed.msix_mappable);
  EXPECT_EQ(parsed.areas, (std::vector{SparseArea{0x1000, 0x2000}, SparseArea{0x8000, 0x1000}}));
}

TEST(KernelRegion, CapabilitiesCountOnlyWithTheFlag) {
  const auto parsed = vfio::parse_kernel_region(region(kAll, 0x7777).bytes(), 2).value();
  EXPECT_EQ(parsed.areas.size(), 1u);
}

TEST(KernelRegion, NonsenseIsNamed) {
  const auto caps = kAll | VFIO_REGION_INFO_FLAG_CAPS;
  const auto says = [](const base::Error& error, const char* what) {
    EXPECT_NE(error.step.find(what), std::string::npos) << error.step;
  };
  says(region_error(region(kAll).cut(24)), "cut off");
  says(vfio::parse_kernel_region(region(kAll).bytes(), 3).error(), "another region");
  says(region_error(region(kAll, 0, std::uint64_t{1} << 63, 1)), "out of bounds");
  says(region_error(region(caps, kFirst)), "outside the reply");
  says(region_error(region(caps, 8).capability(7, 0)), "outside the reply");
  says(region_error(region(caps, 0xfffffff8).capability(7, 0)), "outside the reply");
  says(region_error(region(caps, kFirst).capability(7, kFirst)), "loops");
  says(region_error(region(caps, kFirst).capability(1, 0)), "outside the reply");
  const auto sparse = [&](std::uint32_t count) {
    auto reply = region(caps, kFirst);
    reply.capability(1, 0).add(vfio::SparseMmap{count, 0});
    return reply;
  };
  says(region_error(sparse(1)), "outside the reply");
  says(region_error(sparse(0xffffffff).add(SparseArea{0, 0x1000})), "outside the reply");
  says(region_error(sparse(1).add(SparseArea{0x10000, 0x1000})), "outside the region");
  says(region_error(sparse(1).add(SparseArea{~std::uint64_t{0xfff}, 0x2000})),
       "outside the region");
  says(region_error(sparse(1).add(SparseArea{0x800, 0x1000})), "whole pages");
  says(region_error(sparse(1).add(SparseArea{0x1000, 0})), "whole pages");
  says(region_error(sparse(2).add(SparseArea{0, 0x2000}).add(SparseArea{0x1000, 0x1000})),
       "overlap");
}

TEST(KernelInfo, MoreRoomIsAskedForWhereTheSizeSaysSo) {
  vfio_region_info info{};
  info.argsz = 96;
  EXPECT_EQ(vfio::needs_more(base::as_bytes(info)), 96u);
  info.argsz = sizeof(info);
  EXPECT_EQ(vfio::needs_more(base::as_bytes(info)), 0u);
}

constexpr std::uint32_t kType1Size = sizeof(vfio_iommu_type1_info);

Reply type1(std::uint32_t flags, std::uint32_t first = 0) {
  vfio_iommu_type1_info info{};
  info.argsz = sizeof(info);
  info.flags = flags;
  info.iova_pgsizes = 0x40201000;
  info.cap_offset = first;
  return Reply().add(info);
}
constexpr std::uint32_t kType1Caps = VFIO_IOMMU_INFO_PGSIZES | VFIO_IOMMU_INFO_CAPS;

TEST(Type1Info, AnOldKernelSaysLittle) {
  const auto info = vfio::parse_type1_info(type1(VFIO_IOMMU_INFO_PGSIZES, 0x9999).bytes()).value();
  EXPECT_EQ(info.page_sizes, 0x40201000u);
  ASSERT_EQ(info.ranges.size(), 1u);
  EXPECT_EQ(info.ranges[0].last.value(), ~std::uint64_t{0});
  EXPECT_FALSE(info.mappings_left);
  EXPECT_EQ(vfio::parse_type1_info(type1(0).bytes()).value().page_sizes, 0u);
}

TEST(Type1Info, RangesAndAvailableMappings) {
  auto reply = type1(kType1Caps, kType1Size);
  reply.capability(VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL, kType1Size + 16)
      .add(std::uint32_t{65000})
      .add(std::uint32_t{0})
      .capability(VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, 0)
      .add(std::uint32_t{2})
      .add(std::uint32_t{0})
      .add(vfio_iova_range{0xfef00000, 0xffffffffff})
      .add(vfio_iova_range{0, 0xfedfffff});
  const auto info = vfio::parse_type1_info(reply.bytes()).value();
  EXPECT_EQ(info.mappings_left, 65000u);
  ASSERT_EQ(info.ranges.size(), 2u);
  EXPECT_EQ(info.ranges[0].last.value(), 0xfedfffffu);
  EXPECT_EQ(info.ranges[1].first.value(), 0xfef00000u);
}

TEST(Type1Info, NonsenseIsNamed) {
  const auto error = [](const Reply& reply) {
    const auto parsed = vfio::parse_type1_info(reply.bytes());
    EXPECT_FALSE(parsed);
    return parsed ? std::string() : parsed.error().step;
  };
  const auto ranges = [](std::uint32_t count) {
    auto reply = type1(kType1Caps, kType1Size);
    reply.capability(VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE, 0).add(count).add(std::uint32_t{0});
    return reply;
  };
  EXPECT_NE(error(type1(0).cut(12)).find("cut off"), std::string::npos);
  EXPECT_NE(error(type1(kType1Caps, kType1Size)).find("outside"), std::string::npos);
  EXPECT_NE(error(ranges(1)).find("outside the reply"), std::string::npos);
  EXPECT_NE(error(ranges(0x10000001).add(vfio_iova_range{0, 1})).find("outside the reply"),
            std::string::npos);
  EXPECT_NE(error(ranges(1).add(vfio_iova_range{2, 1})).find("ends before"), std::string::npos);
  EXPECT_NE(error(ranges(2).add(vfio_iova_range{0, 5}).add(vfio_iova_range{5, 9})).find("overlap"),
            std::string::npos);
  EXPECT_NE(error(type1(kType1Caps, kType1Size).capability(1, 0)).find("outside the reply"),
            std::string::npos);
  EXPECT_NE(error(type1(kType1Caps, kType1Size).capability(3, 0)).find("outside the reply"),
            std::string::npos);
  auto twice = ranges(0);
  twice = type1(kType1Caps, kType1Size);
  twice.capability(1, kType1Size + 16).add(std::uint64_t{0}).capability(1, 0).add(std::uint64_t{0});
  EXPECT_NE(error(twice).find("twice"), std::string::npos);
}

}  // namespace
}  // namespace vfio_test
