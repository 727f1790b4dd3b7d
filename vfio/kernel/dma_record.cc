#include "vfio/kernel/dma_record.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <charconv>
#include <utility>

namespace vfio {
namespace {

std::string hex(std::uint64_t value) {
  std::array<char, 16> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value, 16).ptr;
  return "0x" + std::string(digits.data(), end);
}

}  // namespace

std::string text_of(const std::vector<IovaRange>& ranges) {
  std::string text;
  for (const IovaRange& range : ranges) {
    if (!text.empty()) text += ", ";
    text += "[" + hex(range.first.value()) + ", " + hex(range.last.value()) + "]";
  }
  return text;
}

base::Result<void> DmaRecord::check(std::uint64_t offset, std::uint64_t size, base::Iova at) const {
  // A mask of 0 says nothing of pages.
  const std::uint64_t smallest =
      limits_.page_sizes == 0 ? 0 : std::uint64_t{1} << std::countr_zero(limits_.page_sizes);
  const std::uint64_t page = std::max(base::kPageSize, smallest);
  if (size == 0 || !base::is_aligned(size, page) || !at.aligned(page) ||
      !base::is_aligned(offset, base::kPageSize))
    return base::fail(base::Errc::kInvalidArgument,
                      "DMA mapping is not whole pages of " + std::to_string(page) + " bytes");
  const bool inside = std::ranges::any_of(limits_.usable, [&](const IovaRange& range) {
    return range.first <= at && at <= range.last && size - 1 <= range.last - at;
  });
  if (!inside)
    return base::fail(base::Errc::kOutOfRange,
                      "IOVA " + hex(at.value()) + " + " + hex(size) +
                          " is not what the IOMMU translates: " + text_of(limits_.usable));
  return {};
}

base::Result<void> DmaRecord::reserve(std::uint64_t offset, std::uint64_t size, base::Iova at) {
  if (auto ok = check(offset, size, at); !ok) return ok;
  const std::lock_guard lock(mutex_);
  if (stopped_) return base::fail(base::Errc::kDeviceLost, "DMA mapping");
  const auto next = ranges_.upper_bound(at.value());
  const bool hits_next = next != ranges_.end() && next->first - at.value() < size;
  const bool hits_last =
      next != ranges_.begin() && at.value() - std::prev(next)->first < std::prev(next)->second.size;
  if (hits_next || hits_last)
    return base::fail(base::Errc::kExists, "part of the DMA range is mapped");
  if (ranges_.size() >= limits_.max_mappings)
    return base::fail(base::Errc::kLimit, "the kernel takes " +
                                              std::to_string(limits_.max_mappings) +
                                              " DMA mappings (vfio_iommu_type1.dma_entry_limit)");
  ranges_.emplace(at.value(), Range{size, true});
  ++under_way_;
  return {};
}

base::Result<void> DmaRecord::claim(base::Iova at, std::uint64_t size) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return base::fail(base::Errc::kDeviceLost, "DMA unmapping");
  const auto found = ranges_.find(at.value());
  if (found == ranges_.end() || found->second.size != size || found->second.under_way)
    return base::fail(base::Errc::kNotFound, "no such DMA mapping");
  found->second.under_way = true;
  ++under_way_;
  return {};
}

void DmaRecord::commit(base::Iova at) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(at.value());
  assert(found != ranges_.end() && found->second.under_way);
  found->second.under_way = false;
  if (--under_way_ == 0) idle_.notify_all();
}

void DmaRecord::drop(base::Iova at) {
  const std::lock_guard lock(mutex_);
  const auto found = ranges_.find(at.value());
  assert(found != ranges_.end() && found->second.under_way);
  ranges_.erase(found);
  if (--under_way_ == 0) idle_.notify_all();
}

void DmaRecord::stop() {
  std::unique_lock lock(mutex_);
  stopped_ = true;
  idle_.wait(lock, [this] { return under_way_ == 0; });
}

std::size_t DmaRecord::count() const {
  const std::lock_guard lock(mutex_);
  return ranges_.size();
}

}  // namespace vfio
