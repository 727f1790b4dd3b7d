// A set of small integers that answers "the first member at or after n" in O(log64 size): a bitmap
// with a summary bit for each 64 bits below. Never allocates after construction.
#pragma once

#include <bit>
#include <cassert>
#include <cstdint>
#include <optional>
#include <vector>

namespace base {

class BitTree {
 public:
  BitTree() = default;
  // An empty set of members below `size`.
  explicit BitTree(std::uint64_t size) : size_(size) {
    do {
      size = (size + 63) / 64;
      levels_.emplace_back(size);
    } while (size > 1);
  }

  std::uint64_t size() const { return size_; }
  bool contains(std::uint64_t n) const {
    return n < size_ && (levels_[0][n / 64] >> (n % 64) & 1) != 0;
  }

  void insert(std::uint64_t n) {
    assert(n < size_);
    for (auto& level : levels_) {
      level[n / 64] |= bit(n);
      n /= 64;
    }
  }

  void erase(std::uint64_t n) {
    assert(n < size_);
    for (auto& level : levels_) {
      level[n / 64] &= ~bit(n);
      if (level[n / 64] != 0) return;
      n /= 64;
    }
  }

  // The smallest member that is at least `n`.
  std::optional<std::uint64_t> next(std::uint64_t n) const {
    if (n >= size_) return std::nullopt;
    for (std::size_t level = 0; level < levels_.size(); ++level) {
      if (n / 64 >= levels_[level].size()) return std::nullopt;
      const std::uint64_t rest = levels_[level][n / 64] & (~std::uint64_t{0} << (n % 64));
      if (rest != 0) {
        return descend(level, n / 64 * 64 + static_cast<unsigned>(std::countr_zero(rest)));
      }
      n = n / 64 + 1;  // the word was empty from n on: look behind it, one level up
    }
    return std::nullopt;
  }

 private:
  static std::uint64_t bit(std::uint64_t n) { return std::uint64_t{1} << (n % 64); }

  std::uint64_t descend(std::size_t level, std::uint64_t n) const {
    for (; level > 0; --level) {
      n = n * 64 + static_cast<unsigned>(std::countr_zero(levels_[level - 1][n]));
    }
    return n;
  }

  std::uint64_t size_ = 0;
  std::vector<std::vector<std::uint64_t>> levels_;  // [0] has the members
};

}  // namespace base
