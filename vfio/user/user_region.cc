#include "vfio/user/user_region.h"

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
  const bool has = (info.flags & wire::kRegionHasCapabilities) != 0;
  const auto chain = read_chain(payload, has ? info.capability_offset : 0, sizeof(info));
  if (!chain) return std::unexpected(chain.error());
  auto areas = mappable_areas(payload, *chain, info.size);
  if (!areas) return std::unexpected(areas.error());
  constexpr std::uint32_t kBoth = wire::kRegionReadable | wire::kRegionWriteable;
  region.mappable =
      mappable && (info.flags & kBoth) == kBoth && base::is_aligned(info.offset, base::kPageSize);
  if (region.mappable) region.areas = std::move(*areas);
  return region;
}

}  // namespace vfio
