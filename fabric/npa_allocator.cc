#include "fabric/npa_allocator.h"

#include <algorithm>
#include <iterator>

#include "base/address.h"

namespace fabric {

bool PageSet::insert(NpaRange range) {
  if (range.pages == 0 || range.end() < range.page) return false;
  auto next = ranges_.lower_bound(range.page);
  if (next != ranges_.end() && next->first < range.end()) return false;
  std::uint64_t first = range.page;
  std::uint64_t end = range.end();
  if (next != ranges_.begin()) {
    auto before = std::prev(next);
    if (before->second > range.page) return false;
    if (before->second == range.page) {
      first = before->first;
      ranges_.erase(before);
    }
  }
  if (next != ranges_.end() && next->first == end) {
    end = next->second;
    ranges_.erase(next);
  }
  ranges_.emplace(first, end);
  total_ += range.pages;
  return true;
}

bool PageSet::erase(NpaRange range) {
  if (range.pages == 0 || range.end() < range.page) return false;
  auto it = ranges_.upper_bound(range.page);
  if (it == ranges_.begin()) return false;
  --it;
  const auto [first, end] = *it;
  if (range.end() > end) return false;
  ranges_.erase(it);
  if (first < range.page) ranges_.emplace(first, range.page);
  if (range.end() < end) ranges_.emplace(range.end(), end);
  total_ -= range.pages;
  return true;
}

std::optional<std::uint64_t> PageSet::find(std::uint64_t from, std::uint64_t pages,
                                           std::uint64_t alignment) const {
  auto it = ranges_.upper_bound(from);
  if (it != ranges_.begin()) --it;
  for (; it != ranges_.end(); ++it) {
    const std::uint64_t at = base::align_up(std::max(from, it->first), alignment);
    if (at < it->second && pages <= it->second - at) return at;
  }
  return std::nullopt;
}

NpaAllocator::NpaAllocator(std::uint64_t first, std::uint64_t end, std::uint64_t start)
    : first_(first), cursor_(start) {
  free_.insert({first, end - first});
}

std::optional<NpaRange> NpaAllocator::allocate(std::uint64_t pages) {
  constexpr std::uint64_t kLarge = 512;
  if (pages == 0) return std::nullopt;
  const std::uint64_t alignment = pages >= kLarge ? kLarge : 1;
  auto at = free_.find(cursor_, pages, alignment);
  if (!at) at = free_.find(first_, pages, alignment);
  if (!at) return std::nullopt;
  const NpaRange range{*at, pages};
  free_.erase(range);
  cursor_ = range.end();
  return range;
}

bool NpaAllocator::free(NpaRange range) { return free_.insert(range); }

}  // namespace fabric
