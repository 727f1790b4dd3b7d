// How long something took, in buckets of a quarter of an octave: a median or p99 is right to 19 %.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdint>

namespace gpuumd {

class Histogram {
 public:
  void add(std::chrono::nanoseconds took) {
    const auto ns = static_cast<std::uint64_t>(std::max<std::int64_t>(took.count(), 1));
    ++counts_[bucket(ns)];
    ++total_;
    sum_ += ns;
  }
  std::uint64_t count() const { return total_; }
  std::uint64_t sum_ns() const { return sum_; }

  // Upper bound, in nanoseconds, of the bucket that holds the `part` (0..1) smallest; 0 when empty.
  std::uint64_t quantile(double part) const {
    if (total_ == 0) return 0;
    auto left = static_cast<std::uint64_t>(part * static_cast<double>(total_ - 1)) + 1;
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      if (counts_[i] >= left) return upper(i);
      left -= counts_[i];
    }
    return upper(counts_.size() - 1);
  }

 private:
  static constexpr unsigned kOctaves = 40;  // up to 18 minutes
  static std::size_t bucket(std::uint64_t ns) {
    const unsigned octave = std::bit_width(ns) - 1;
    const auto quarter = octave < 2 ? 0 : (ns >> (octave - 2)) & 3;
    return std::min<std::size_t>(octave * 4 + quarter, kOctaves * 4 - 1);
  }
  static std::uint64_t upper(std::size_t bucket) {
    const auto octave = bucket / 4, quarter = bucket % 4;
    if (octave < 2) return (std::uint64_t{2} << octave) - 1;
    return ((4 + quarter + 1) << (octave - 2)) - 1;
  }
  std::array<std::uint64_t, kOctaves * 4> counts_{};
  std::uint64_t total_ = 0;
  std::uint64_t sum_ = 0;
};

}  // namespace gpuumd
