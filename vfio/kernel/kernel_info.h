// What the kernel says of a device and of an IOMMU, checked. Pure: bytes in, facts out. The bytes
// are structures of linux/vfio.h, which this header leaves to the sources.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "vfio/capability_chain.h"
#include "vfio/pci_device.h"

namespace vfio {

struct KernelRegion {
  std::uint64_t size = 0;    // 0: the device does not have it
  std::uint64_t offset = 0;  // in the device's descriptor
  bool readable = false;
  bool writable = false;
  bool msix_mappable = false;     // the page of the MSI-X table is part of what may be mapped
  std::vector<SparseArea> areas;  // what may be mapped: in order, whole pages, apart, inside
};

// `reply`: a vfio_region_info with its capabilities. kProtocol, with what is wrong, for one that
// contradicts itself.
base::Result<KernelRegion> parse_kernel_region(std::span<const std::byte> reply,
                                               std::uint32_t index);

struct Type1Info {
  std::uint64_t page_sizes = 0;  // bit mask; 0: not said
  std::vector<IovaRange> ranges;
  std::optional<std::uint32_t> mappings_left;  // absent before Linux 5.10
};

// `reply`: a vfio_iommu_type1_info with its capabilities. Without a capability of ranges (before
// Linux 5.4) all 64 bits count as usable. kProtocol as above, and for ranges that are empty.
base::Result<Type1Info> parse_type1_info(std::span<const std::byte> reply);

// Bytes that a whole reply needs, when they are more than `reply` holds: ask again. Else 0. Both
// structures begin with the size.
std::size_t needs_more(std::span<const std::byte> reply);

}  // namespace vfio
