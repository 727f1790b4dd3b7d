#include "vfio/kernel/kernel_info.h"

#include <linux/vfio.h>

#include <algorithm>
#include <utility>

#include "base/address.h"
#include "base/bytes.h"

namespace vfio {
namespace {

static_assert(sizeof(CapabilityHeader) == sizeof(vfio_info_cap_header));
static_assert(kCapabilitySparseMmap == VFIO_REGION_INFO_CAP_SPARSE_MMAP);
static_assert(sizeof(SparseMmap) ==
              sizeof(vfio_region_info_cap_sparse_mmap) - sizeof(CapabilityHeader));
static_assert(sizeof(SparseArea) == sizeof(vfio_region_sparse_mmap_area));

// Files are addressed by a signed 64-bit offset.
constexpr std::uint64_t kMaxFileSize = std::uint64_t{1} << 63;

// Of vfio_iommu_type1_info; kernels before 5.4 know no more.
constexpr std::size_t kType1Fixed = offsetof(vfio_iommu_type1_info, cap_offset);
constexpr std::size_t kType1WithCapabilities = kType1Fixed + sizeof(std::uint32_t);

std::unexpected<base::Error> nonsense(const char* what) {
  return base::fail(base::Errc::kProtocol, what);
}

base::Result<std::vector<IovaRange>> read_ranges(std::span<const std::byte> reply, std::size_t at) {
  struct Fixed {
    std::uint32_t count;
    std::uint32_t reserved;
  };
  if (!base::fits(at, sizeof(Fixed), reply.size()))
    return nonsense("IOVA ranges outside the reply");
  const auto fixed = base::load<Fixed>(reply, at);
  at += sizeof(fixed);
  if (fixed.count > (reply.size() - at) / sizeof(vfio_iova_range))
    return nonsense("IOVA ranges outside the reply");
  std::vector<IovaRange> ranges;
  for (std::uint32_t i = 0; i < fixed.count; ++i, at += sizeof(vfio_iova_range)) {
    const auto range = base::load<vfio_iova_range>(reply, at);
    if (range.start > range.end) return nonsense("IOVA range that ends before it begins");
    ranges.push_back({base::Iova(range.start), base::Iova(range.end)});
  }
  std::ranges::sort(ranges, {}, &IovaRange::first);
  for (std::size_t i = 1; i < ranges.size(); ++i)
    if (ranges[i].first <= ranges[i - 1].last) return nonsense("IOVA ranges overlap");
  return ranges;
}

}  // namespace

std::size_t needs_more(std::span<const std::byte> reply) {
  const auto size = base::load<std::uint32_t>(reply, 0);
  return size > reply.size() ? size : 0;
}

base::Result<KernelRegion> parse_kernel_region(std::span<const std::byte> reply,
                                               std::uint32_t index) {
  if (reply.size() < sizeof(vfio_region_info)) return nonsense("region info is cut off");
  const auto info = base::load<vfio_region_info>(reply, 0);
  if (info.index != index) return nonsense("another region than asked for");
  if (!base::fits(info.offset, info.size, kMaxFileSize))
    return nonsense("region size or offset out of bounds");
  KernelRegion region;
  region.size = info.size;
  region.offset = info.offset;
  region.readable = (info.flags & VFIO_REGION_INFO_FLAG_READ) != 0;
  region.writable = (info.flags & VFIO_REGION_INFO_FLAG_WRITE) != 0;
  const bool has = (info.flags & VFIO_REGION_INFO_FLAG_CAPS) != 0;
  const auto chain = read_chain(reply, has ? info.cap_offset : 0, sizeof(info));
  if (!chain) return std::unexpected(chain.error());
  region.msix_mappable = std::ranges::any_of(*chain, [](const Capability& capability) {
    return capability.id == VFIO_REGION_INFO_CAP_MSIX_MAPPABLE;
  });
  auto areas = mappable_areas(reply, *chain, info.size);
  if (!areas) return std::unexpected(areas.error());
  if ((info.flags & VFIO_REGION_INFO_FLAG_MMAP) != 0 && region.readable && region.writable &&
      base::is_aligned(info.offset, base::kPageSize))
    region.areas = std::move(*areas);
  return region;
}

base::Result<Type1Info> parse_type1_info(std::span<const std::byte> reply) {
  if (reply.size() < kType1WithCapabilities) return nonsense("IOMMU info is cut off");
  const auto flags = base::load<std::uint32_t>(reply, offsetof(vfio_iommu_type1_info, flags));
  Type1Info info;
  if ((flags & VFIO_IOMMU_INFO_PGSIZES) != 0)
    info.page_sizes =
        base::load<std::uint64_t>(reply, offsetof(vfio_iommu_type1_info, iova_pgsizes));
  const bool has = (flags & VFIO_IOMMU_INFO_CAPS) != 0;
  const auto first = base::load<std::uint32_t>(reply, offsetof(vfio_iommu_type1_info, cap_offset));
  const auto chain = read_chain(reply, has ? first : 0, kType1WithCapabilities);
  if (!chain) return std::unexpected(chain.error());
  bool said = false;
  for (const Capability& capability : *chain) {
    if (capability.id == VFIO_IOMMU_TYPE1_INFO_CAP_IOVA_RANGE) {
      if (std::exchange(said, true)) return nonsense("IOVA ranges twice");
      auto ranges = read_ranges(reply, capability.payload);
      if (!ranges) return std::unexpected(ranges.error());
      info.ranges = std::move(*ranges);
    } else if (capability.id == VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL) {
      if (!base::fits(capability.payload, sizeof(std::uint32_t), reply.size()))
        return nonsense("available mappings outside the reply");
      info.mappings_left = base::load<std::uint32_t>(reply, capability.payload);
    }
  }
  if (!said) info.ranges = {{base::Iova(0), base::Iova(UINT64_MAX)}};
  return info;
}

}  // namespace vfio
