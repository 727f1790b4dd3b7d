#include "daemon/gpu/memory/iova_space.h"

#include <algorithm>
#include <bit>
#include <random>

namespace gpuumd {
namespace {

// Small ranges: rings, firmware buffers, single table pages.
constexpr std::uint64_t kSmallRegion = 4 * base::kGiB;
// Where there is room, bus addresses start above everything that VMID 0 maps, so that no GART
// address is ever the IOVA behind it.
constexpr std::uint64_t kAvoidBelow = base::kGiB;
constexpr std::uint64_t kPlenty = std::uint64_t{1} << 36;

base::IntervalSet<base::Iova> usable(const vfio::IovaLimits& limits, unsigned dma_bits) {
  const std::uint64_t end = std::uint64_t{1} << dma_bits;
  base::IntervalSet<base::Iova> set;
  for (const auto& range : limits.usable) {
    if (range.first.value() >= end || range.last < range.first) continue;
    const std::uint64_t first = base::align_up(range.first.value(), IovaSpace::kChunk);
    const std::uint64_t last = std::min(range.last.value(), end - 1);
    const std::uint64_t stop = base::align_down(last + 1, IovaSpace::kChunk);
    if (first < stop) set.insert(base::Iova(first), base::Iova(stop));
  }
  if (set.size() >= kPlenty) set.erase(base::Iova(0), base::Iova(kAvoidBelow));
  return set;
}

}  // namespace

base::Result<IovaSpace> IovaSpace::create(const vfio::IovaLimits& limits, std::uint64_t seed,
                                          unsigned dma_bits) {
  if ((limits.page_sizes & base::kPageSize) == 0)
    return base::fail(base::Errc::kUnsupported, "IOMMU without 4 KiB pages");
  if (limits.usable.empty())
    return base::fail(base::Errc::kUnsupported,
                      "DMA without an IOMMU: no address would be the device's alone");
  IovaSpace space;
  space.chunks_.free = usable(limits, dma_bits);
  base::Iova largest, largest_end;
  space.chunks_.free.for_each([&](base::Iova first, base::Iova end) {
    if (end - first > largest_end - largest) {
      largest = first;
      largest_end = end;
    }
  });
  const std::uint64_t room = largest_end - largest;
  if (room < 2 * kChunk)
    return base::fail(base::Errc::kUnsupported, "IOVA ranges of the device's IOMMU are too small");

  std::mt19937_64 random(seed);
  const auto somewhere = [&random](std::uint64_t bytes) {
    return base::align_down(random() % bytes, kChunk);
  };
  const std::uint64_t small =
      std::max(kChunk, base::align_down(std::min(kSmallRegion, room / 8), kChunk));
  space.small_first_ = largest + somewhere(room - small + kChunk);
  space.small_end_ = space.small_first_ + small;
  space.chunks_.free.erase(space.small_first_, space.small_end_);
  space.chunks_.cursor = largest + somewhere(room);
  space.small_.free.insert(space.small_first_, space.small_end_);
  space.small_.cursor = space.small_first_ + somewhere(small);
  return space;
}

base::Result<base::Iova> IovaSpace::allocate_small(std::uint64_t bytes) {
  bytes = base::align_up(bytes, base::kPageSize);
  if (bytes == 0 || bytes >= kChunk)
    return base::fail(base::Errc::kInvalidArgument, "size of a small IOVA range");
  return allocate(small_, bytes, std::bit_floor(bytes));
}

base::Result<base::Iova> IovaSpace::allocate(Region& region, std::uint64_t bytes,
                                             std::uint64_t alignment) {
  constexpr base::Iova kNowhere(~std::uint64_t{0});
  base::Iova found = kNowhere;
  const auto look = [&](base::Iova from, base::Iova to) {
    region.free.for_each(from, to, [&](base::Iova first, base::Iova end) {
      const base::Iova at(base::align_up(std::max(first, from).value(), alignment));
      if (at > end || end - at < bytes) return true;
      found = at;
      return false;
    });
  };
  look(region.cursor, kNowhere);
  if (found == kNowhere) look(base::Iova(0), region.cursor);  // once round
  if (found == kNowhere)
    return base::fail(base::Errc::kNoSpace, "no free IOVAs: " + std::to_string(used_) +
                                                " bytes of the device's IOMMU ranges are mapped");
  region.free.erase(found, found + bytes);
  region.cursor = found + bytes;
  used_ += bytes;
  return found;
}

void IovaSpace::release(base::Iova at, std::uint64_t bytes) {
  bytes = base::align_up(bytes, base::kPageSize);
  Region& region = at >= small_first_ && at < small_end_ ? small_ : chunks_;
  assert(!region.free.overlaps(at, at + bytes));  // released twice
  region.free.insert(at, at + bytes);
  used_ -= bytes;
}

}  // namespace gpuumd
