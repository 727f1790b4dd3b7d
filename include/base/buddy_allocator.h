// Buddy allocator over pages 0..pages-1, blocks of 2^order pages, order 0 (4 KiB) to 18 (1 GiB).
// Hands out numbers and knows nothing of the memory behind them. Every operation is O(orders x
// log64 pages) and allocates nothing. One thread.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstdint>
#include <optional>

#include "base/bit_tree.h"

namespace base {

class BuddyAllocator {
 public:
  static constexpr unsigned kMaxOrder = 18;

  // All pages free.
  explicit BuddyAllocator(std::uint64_t pages) : pages_(pages), free_pages_(pages) {
    for (unsigned order = 0; order <= kMaxOrder; ++order) {
      free_[order] = BitTree(std::max<std::uint64_t>(pages >> order, 1));
      used_[order] = BitTree(std::max<std::uint64_t>(pages >> order, 1));
    }
    for_each_block(0, pages, [this](std::uint64_t page, unsigned order) {
      free_[order].insert(page >> order);
    });
  }

  std::uint64_t pages() const { return pages_; }
  std::uint64_t free_pages() const { return free_pages_; }

  // The lowest block of 2^order pages inside [first, end), taken out of the smallest free block
  // that has one. Aligned to its size.
  std::optional<std::uint64_t> allocate(unsigned order, std::uint64_t first, std::uint64_t end) {
    assert(order <= kMaxOrder);
    end = std::min(end, pages_);
    for (unsigned from = order; from <= kMaxOrder; ++from) {
      if (const auto page = find(order, from, first, end)) {
        take(*page, order, from);
        return page;
      }
    }
    return std::nullopt;
  }
  std::optional<std::uint64_t> allocate(unsigned order) { return allocate(order, 0, pages_); }

  // Gives back a block that allocate() or reserve() made, joined with its free buddies.
  void free(std::uint64_t page, unsigned order) {
    assert(order <= kMaxOrder && used_[order].contains(page >> order) &&
           page % size(order) == 0);  // a double free, or a wrong size
    used_[order].erase(page >> order);
    free_pages_ += size(order);
    while (order < kMaxOrder) {
      const std::uint64_t buddy = (page >> order) ^ 1;
      if (!free_[order].contains(buddy)) break;
      free_[order].erase(buddy);
      page &= ~size(order);
      ++order;
    }
    free_[order].insert(page >> order);
  }

  // Takes exactly [first, first + count), as blocks of the largest orders that fit. False, and
  // nothing taken, when a page of it is in use or does not exist.
  bool reserve(std::uint64_t first, std::uint64_t count) {
    if (count > pages_ || first > pages_ - count) return false;
    bool all_free = true;
    for_each_block(first, count, [&](std::uint64_t page, unsigned order) {
      all_free = all_free && free_order(page, order).has_value();
    });
    if (!all_free) return false;
    for_each_block(first, count, [this](std::uint64_t page, unsigned order) {
      take(page, order, *free_order(page, order));
    });
    return true;
  }

  // The largest order that allocate() could give now in [first, end).
  std::optional<unsigned> largest_free(std::uint64_t first, std::uint64_t end) const {
    end = std::min(end, pages_);
    for (unsigned order = kMaxOrder + 1; order-- > 0;) {
      for (unsigned from = order; from <= kMaxOrder; ++from) {
        if (find(order, from, first, end)) return order;
      }
    }
    return std::nullopt;
  }

  // Conservation: every page is in exactly one block, free or used; no two free buddies stand
  // unjoined; the free blocks add up to free_pages(). O(pages).
  bool check() const {
    std::uint64_t page = 0;
    std::uint64_t free_seen = 0;
    while (page < pages_) {
      unsigned owners = 0;
      unsigned found = 0;
      bool is_free = false;
      for (unsigned order = 0; order <= kMaxOrder; ++order) {
        if (page % size(order) != 0) break;
        for (const auto* set : {&free_[order], &used_[order]}) {
          if (!set->contains(page >> order)) continue;
          ++owners;
          found = order;
          is_free = set == &free_[order];
        }
      }
      if (owners != 1 || page + size(found) > pages_) return false;
      if (is_free) {
        free_seen += size(found);
        if (found < kMaxOrder && free_[found].contains((page >> found) ^ 1)) return false;
      }
      page += size(found);
    }
    return page == pages_ && free_seen == free_pages_;
  }

  // Calls f(page, order) for the fewest naturally aligned blocks that make up [first, first +
  // count), in rising order.
  template <class F>
  static void for_each_block(std::uint64_t first, std::uint64_t count, F f) {
    while (count != 0) {
      unsigned order = std::min<unsigned>(kMaxOrder, std::bit_width(count) - 1);
      if (first != 0) order = std::min<unsigned>(order, std::countr_zero(first));
      f(first, order);
      first += size(order);
      count -= size(order);
    }
  }

 private:
  static constexpr std::uint64_t size(unsigned order) { return std::uint64_t{1} << order; }

  // Where a block of `order` fits into [first, end) inside a free block of order `from`.
  std::optional<std::uint64_t> find(unsigned order, unsigned from, std::uint64_t first,
                                    std::uint64_t end) const {
    const std::uint64_t aligned = (first + size(order) - 1) & ~(size(order) - 1);
    const auto index = free_[from].next(aligned >> from);
    if (!index) return std::nullopt;
    const std::uint64_t page = std::max(*index << from, aligned);
    // If the first one ends too late, all later ones do.
    return page + size(order) <= end ? std::optional(page) : std::nullopt;
  }

  // The order of the free block that holds the whole of (page, order).
  std::optional<unsigned> free_order(std::uint64_t page, unsigned order) const {
    for (; order <= kMaxOrder; ++order) {
      if (free_[order].contains(page >> order)) return order;
    }
    return std::nullopt;
  }

  // Cuts (page, order) out of the free block of order `from` round it.
  void take(std::uint64_t page, unsigned order, unsigned from) {
    free_[from].erase(page >> from);
    while (from > order) {
      --from;
      free_[from].insert((page >> from) ^ 1);
    }
    used_[order].insert(page >> order);
    free_pages_ -= size(order);
  }

  std::uint64_t pages_;
  std::uint64_t free_pages_;
  std::array<BitTree, kMaxOrder + 1> free_;  // by order, in units of the order's size
  std::array<BitTree, kMaxOrder + 1> used_;
};

}  // namespace base
