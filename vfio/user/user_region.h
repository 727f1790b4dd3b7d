// The reply to DEVICE_GET_REGION_INFO, checked. Pure: bytes in, facts out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "vfio/capability_chain.h"
#include "vfio/user/user_wire.h"

namespace vfio {

struct Region {
  std::uint64_t size = 0;  // 0: the device does not have it
  bool mappable = false;   // readable, writeable and with a descriptor
  std::uint64_t file_offset = 0;
  std::vector<SparseArea> areas;  // what may be mapped: in order, whole pages, apart, inside
};

// Bytes that the whole reply needs, when they are more than `payload` holds: ask again with so much
// room. 0 when the reply is whole. `payload` holds at least a wire::RegionInfo.
std::size_t region_info_needs(std::span<const std::byte> payload);

// kProtocol, with what is wrong, for a reply that contradicts itself: another region than `index`,
// a capability outside the reply or in a loop, an area outside the region, misaligned or
// overlapping, a descriptor too many or too few.
base::Result<Region> parse_region_info(std::span<const std::byte> payload, std::uint32_t index,
                                       std::size_t fd_count);

}  // namespace vfio
