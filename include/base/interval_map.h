// Values over disjoint half-open ranges of an address space: what a range tree of mappings, of
// arenas or of free space needs, and nothing of what stands behind a value. One thread.
#pragma once

#include <cassert>
#include <cstdint>
#include <iterator>
#include <map>
#include <type_traits>
#include <utility>

namespace base {

// How a value follows its range when that is cut or joined. The default is for values that are the
// same all over their range.
template <class V>
struct SameAllOver {
  // The value of what starts `offset` bytes after the start of a range with `value`.
  static V tail(const V& value, std::uint64_t /*offset*/) { return value; }
  // Whether `right`, directly behind `left` (`size` bytes long), goes on where that ends.
  static bool joins(const V& left, std::uint64_t /*size*/, const V& right) { return left == right; }
};

// `Key` is std::uint64_t or a base::Address.
template <class V, class Key = std::uint64_t, class Policy = SameAllOver<V>>
class IntervalMap {
 public:
  struct Interval {
    Key first;
    Key end;  // one past the last
    V value;
    std::uint64_t size() const { return end - first; }
  };

  bool empty() const { return map_.empty(); }
  std::size_t count() const { return map_.size(); }
  void clear() { map_.clear(); }

  // False, and nothing done, when any part of [first, end) has a value already. Joined with its
  // neighbours where Policy says so.
  bool insert(Key first, Key end, V value) {
    assert(first < end);
    if (overlaps(first, end)) return false;
    auto at = map_.emplace(first, Node{end, std::move(value)}).first;
    join_with_next(at);
    if (at != map_.begin()) join_with_next(std::prev(at));
    return true;
  }

  // Whatever was in [first, end) goes; the value takes its place.
  void assign(Key first, Key end, V value) {
    erase(first, end);
    insert(first, end, std::move(value));
  }

  // Takes [first, end) out, cutting what sticks out of it; `removed(Interval&&)` sees each piece.
  template <class F>
  void erase(Key first, Key end, F removed) {
    assert(first < end);
    split(first);
    split(end);
    for (auto at = map_.lower_bound(first); at != map_.end() && at->first < end;) {
      Interval piece{at->first, at->second.end, std::move(at->second.value)};
      at = map_.erase(at);
      removed(std::move(piece));
    }
  }
  void erase(Key first, Key end) {
    erase(first, end, [](Interval&&) {});
  }

  bool overlaps(Key first, Key end) const {
    auto at = map_.lower_bound(first);
    if (at != map_.end() && at->first < end) return true;
    return at != map_.begin() && first < std::prev(at)->second.end;
  }

  // The value at `key` with the bounds of its whole range, or a null pointer.
  const V* find(Key key, Key* first = nullptr, Key* end = nullptr) const {
    auto at = map_.upper_bound(key);
    if (at == map_.begin() || !(key < std::prev(at)->second.end)) return nullptr;
    --at;
    if (first != nullptr) *first = at->first;
    if (end != nullptr) *end = at->second.end;
    return &at->second.value;
  }
  V* find(Key key, Key* first = nullptr, Key* end = nullptr) {
    return const_cast<V*>(std::as_const(*this).find(key, first, end));
  }

  // visit(first, end, value) for each range that meets [first, end), whole (not cut to it), in
  // rising order, until it returns false (or to the end, when it returns nothing). `visit` must not
  // change the map.
  template <class F>
  void for_each(Key first, Key end, F visit) const {
    auto at = map_.upper_bound(first);
    if (at != map_.begin() && first < std::prev(at)->second.end) --at;
    for (; at != map_.end() && at->first < end; ++at) {
      if (!go_on(visit, at->first, at->second)) return;
    }
  }
  template <class F>
  void for_each(F visit) const {
    for (const auto& [first, node] : map_) {
      if (!go_on(visit, first, node)) return;
    }
  }

  // Cuts the range that holds `at` in two there, so that each half can be changed alone.
  void split(Key at) {
    auto next = map_.upper_bound(at);
    if (next == map_.begin()) return;
    auto range = std::prev(next);
    if (!(range->first < at) || !(at < range->second.end)) return;
    V tail = Policy::tail(range->second.value, at - range->first);
    map_.emplace_hint(next, at, Node{range->second.end, std::move(tail)});
    range->second.end = at;
  }

 private:
  struct Node {
    Key end;
    V value;
  };
  using Map = std::map<Key, Node>;

  template <class F>
  static bool go_on(F& visit, Key first, const Node& node) {
    if constexpr (std::is_void_v<decltype(visit(first, node.end, node.value))>) {
      visit(first, node.end, node.value);
      return true;
    } else {
      return visit(first, node.end, node.value);
    }
  }

  void join_with_next(typename Map::iterator at) {
    auto next = std::next(at);
    if (next == map_.end() || at->second.end != next->first) return;
    if (!Policy::joins(at->second.value, at->second.end - at->first, next->second.value)) return;
    at->second.end = next->second.end;
    map_.erase(next);
  }

  Map map_;
};

}  // namespace base
