// The pages of one NPA window: free ranges, next-fit (docs/hardware/ualink.md U18, U43).
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "fabric/types.h"

namespace fabric {

// Alias mode: [0x800, 2^29 - 1); the last page of the window stays unused.
inline constexpr std::uint64_t kAliasFirstPage = 0x800;
inline constexpr std::uint64_t kAliasEndPage = (1ULL << 29) - 1;

// Disjoint, merged page ranges.
class PageSet {
 public:
  // `range` must be wholly outside (insert) or inside (erase); otherwise nothing changes, false.
  bool insert(NpaRange range);
  bool erase(NpaRange range);
  // The first place at or after `from` where `pages` fit inside one range, aligned.
  std::optional<std::uint64_t> find(std::uint64_t from, std::uint64_t pages,
                                    std::uint64_t alignment) const;
  std::uint64_t pages() const { return total_; }

 private:
  std::map<std::uint64_t, std::uint64_t> ranges_;  // first page -> end
  std::uint64_t total_ = 0;
};

// Next-fit from `start`, so that what one life of the exporter gave out is not what the next one
// gives out first. A range of 512 pages or more is aligned to 512.
class NpaAllocator {
 public:
  NpaAllocator(std::uint64_t first, std::uint64_t end, std::uint64_t start);

  // nullopt: no range that large is free, or `pages` is 0.
  std::optional<NpaRange> allocate(std::uint64_t pages);
  // false, and nothing changes, for what was not allocated.
  bool free(NpaRange range);
  std::uint64_t free_pages() const { return free_.pages(); }

 private:
  std::uint64_t first_;
  std::uint64_t cursor_;
  PageSet free_;
};

}  // namespace fabric
