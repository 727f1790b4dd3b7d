#include "vfio/user/user_region.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "base/address.h"
#include "base/bytes.h"

namespace vfio {
namespace {

std::unexpected<base::Error> nonsense(const char* what) {
  return base::fail(base::Errc::kProtocol, what);
}

// Files are addressed by a signed 64-bit offset.
constexpr std::uint64_t kMaxFileSize = std::uint64_t{1} << 63;

base::Result<std::vector<wire::SparseArea>> read_areas(std::span<const std::byte> payload,
                                                       std::size_t at, std::uint64_t region_size) {
  if (!base::fits(at, sizeof(wire::SparseMmap), payload.size()))
    return nonsense("sparse mmap capability outside the reply");
  const auto sparse = base::load<wire::SparseMmap>(payload, at);
  at += sizeof(sparse);
  if (sparse.area_count > (payload.size() - at) / sizeof(wire::SparseArea))
    return nonsense("sparse areas outside the reply");
  std::vector<wire::SparseArea> areas(sparse.area_count);
  for (auto& area : areas) {
    area = base::load<wire::SparseArea>(payload, at);
    at += sizeof(area);
    if (!base::fits(area.offset, area.size, region_size))
      return nonsense("sparse area outside the region");
    if (!base::is_aligned(area.offset, base::kPageSize) ||
        !base::is_aligned(area.size, base::kPageSize) || area.size == 0)
      return nonsense("sparse area is not whole pages");
  }
  std::ranges::sort(areas, {}, &wire::SparseArea::offset);
  for (std::size_t i = 1; i < areas.size(); ++i)
    if (areas[i].offset - areas[i - 1].offset < areas[i - 1].size)
      return nonsense("sparse areas overlap");
  return areas;
}

// The areas of the sparse mmap capability, or one area of all whole pages when there is none.
base::Result<std::vector<wire::SparseArea>> mappable_areas(std::span<const std::byte> payload,
                                                           const wire::RegionInfo& info) {
  bool sparse = false;
  std::vector<wire::SparseArea> areas;
  std::size_t at = (info.flags & wire::kRegionHasCapabilities) != 0 ? info.capability_offset : 0;
  // A chain that is longer than the reply has room for goes in a circle.
  std::size_t left = (payload.size() - sizeof(info)) / sizeof(wire::CapabilityHeader);
  while (at != 0) {
    if (left-- == 0) return nonsense("capability chain loops");
    if (at < sizeof(info) || !base::fits(at, sizeof(wire::CapabilityHeader), payload.size()))
      return nonsense("capability outside the reply");
    const auto capability = base::load<wire::CapabilityHeader>(payload, at);
    if (capability.id == wire::kCapabilitySparseMmap) {
      if (std::exchange(sparse, true)) return nonsense("two sparse mmap capabilities");
      auto read = read_areas(payload, at + sizeof(capability), info.size);
      if (!read) return read;
      areas = std::move(*read);
    }
    at = capability.next;
  }
  const std::uint64_t whole = base::align_down(info.size, base::kPageSize);
  if (!sparse && whole != 0) areas.push_back({0, whole});
  return areas;
}

}  // namespace

std::size_t region_info_needs(std::span<const std::byte> payload) {
  const auto info = base::load<wire::RegionInfo>(payload, 0);
  return info.argsz > payload.size() ? info.argsz : 0;
}

base::Result<Region> parse_region_info(std::span<const std::byte> payload, std::uint32_t index,
                                       std::size_t fd_count) {
  const auto info = base::load<wire::RegionInfo>(payload, 0);
  if (info.index != index) return nonsense("another region than asked for");
  const bool mappable = (info.flags & wire::kRegionMappable) != 0;
  if (fd_count != (mappable ? 1u : 0u)) return nonsense("descriptors do not fit the MMAP flag");
  if (!base::fits(info.offset, info.size, kMaxFileSize))
    return nonsense("region size or offset out of bounds");

  Region region;
  region.size = info.size;
  region.file_offset = info.offset;
  auto areas = mappable_areas(payload, info);
  if (!areas) return std::unexpected(areas.error());
  constexpr std::uint32_t kBoth = wire::kRegionReadable | wire::kRegionWriteable;
  region.mappable =
      mappable && (info.flags & kBoth) == kBoth && base::is_aligned(info.offset, base::kPageSize);
  if (region.mappable) region.areas = std::move(*areas);
  return region;
}

}  // namespace vfio
