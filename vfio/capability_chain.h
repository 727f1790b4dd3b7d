// Chains of capabilities as VFIO puts them behind its structures, in the kernel's answers and in
// vfio-user's alike: each begins with an id, a version and the offset of the next. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace vfio {

struct CapabilityHeader {
  std::uint16_t id;
  std::uint16_t version;
  std::uint32_t next;  // from the start of the reply, 0 ends the chain
};
static_assert(sizeof(CapabilityHeader) == 8);

struct Capability {
  std::uint16_t id = 0;
  std::uint16_t version = 0;
  std::size_t payload = 0;  // where what follows the header begins, from the start of the reply
};

// All capabilities of `reply`, in order. `first` is the offset of the first one (0: none), `fixed`
// the size of what lies before any. kProtocol for one outside the reply, or a chain in a loop.
base::Result<std::vector<Capability>> read_chain(std::span<const std::byte> reply,
                                                 std::size_t first, std::size_t fixed);

inline constexpr std::uint16_t kCapabilitySparseMmap = 1;

// Follows its CapabilityHeader; `area_count` areas follow it.
struct SparseMmap {
  std::uint32_t area_count;
  std::uint32_t reserved;
};
static_assert(sizeof(SparseMmap) == 8);

struct SparseArea {
  std::uint64_t offset;  // in the region
  std::uint64_t size;
  friend bool operator==(const SparseArea&, const SparseArea&) = default;
};
static_assert(sizeof(SparseArea) == 16);

// What of a region may be mapped: the areas of its sparse mmap capability, in order, or one area of
// all its whole pages when there is none. kProtocol for areas outside the reply or the region, that
// overlap or are not whole pages, and for two such capabilities.
base::Result<std::vector<SparseArea>> mappable_areas(std::span<const std::byte> reply,
                                                     std::span<const Capability> chain,
                                                     std::uint64_t region_size);

}  // namespace vfio
