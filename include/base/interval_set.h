// A set of addresses as disjoint, never touching, half-open ranges.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <variant>

#include "base/interval_map.h"

namespace base {

template <class Key = std::uint64_t>
class IntervalSet {
 public:
  bool empty() const { return map_.empty(); }
  std::size_t count() const { return map_.count(); }  // ranges
  std::uint64_t size() const { return size_; }        // addresses
  void clear() {
    map_.clear();
    size_ = 0;
  }

  // Adds [first, end); parts may be members already.
  void insert(Key first, Key end) {
    erase(first, end);
    map_.insert(first, end, {});
    size_ += end - first;
  }
  void erase(Key first, Key end) {
    map_.erase(first, end, [this](auto&& piece) { size_ -= piece.size(); });
  }

  bool contains(Key key) const { return map_.find(key) != nullptr; }
  bool contains(Key first, Key end) const {
    Key found_end{};
    return map_.find(first, nullptr, &found_end) != nullptr && !(found_end < end);
  }
  bool overlaps(Key first, Key end) const { return map_.overlaps(first, end); }

  // visit(first, end) for each range, until it returns false, if it returns something.
  template <class F>
  void for_each(F visit) const {
    map_.for_each([&](Key first, Key end, const std::monostate&) { return visit(first, end); });
  }
  // visit(first, end) for each range that meets [first, end), not cut to it.
  template <class F>
  void for_each(Key first, Key end, F visit) const {
    map_.for_each(first, end, [&](Key a, Key b, const std::monostate&) { return visit(a, b); });
  }

 private:
  IntervalMap<std::monostate, Key> map_;
  std::uint64_t size_ = 0;
};

}  // namespace base
