#include "tools/bench/measure.h"

#include <x86intrin.h>

#include <algorithm>
#include <thread>
#include <utility>

namespace bench {
namespace {

double calibrate() {
  const auto start = Clock::now();
  const auto first = ticks();
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const auto last = ticks();
  const std::chrono::duration<double, std::nano> took = Clock::now() - start;
  return took.count() / static_cast<double>(last - first);
}

}  // namespace

std::uint64_t ticks() {
  unsigned processor = 0;
  return __rdtscp(&processor);
}

double to_ns(std::uint64_t ticks) {
  static const double ns_per_tick = calibrate();
  return static_cast<double>(ticks) * ns_per_tick;
}

void spin(std::chrono::nanoseconds time) {
  const auto end = Clock::now() + time;
  while (Clock::now() < end) _mm_pause();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return values[values.size() / 2];
}

Spread Spread::of(std::vector<double> values) {
  if (values.empty()) return {};
  std::ranges::sort(values);
  const auto at = [&](double part) {
    return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1) + 0.5)];
  };
  return {at(0.5), at(0.1), at(0.9)};
}

Block timed(unsigned count, std::function<void()> operation, std::function<void()> before) {
  return [count, operation = std::move(operation), before = std::move(before)] {
    std::vector<double> costs;
    costs.reserve(count);
    for (unsigned i = 0; i < count; ++i) {
      if (before) before();
      const auto start = ticks();
      operation();
      costs.push_back(to_ns(ticks() - start));
    }
    return median(std::move(costs));
  };
}

Pairs measure(unsigned count, std::chrono::seconds time, const Block& one, const Block& other) {
  std::vector<double> ratios, ones, others;
  // Neither pays for what is done only the first time.
  one();
  other();
  const auto end = Clock::now() + time;
  for (unsigned i = 0; i < count && Clock::now() < end; ++i) {
    double a = 0, b = 0;
    if (i % 2 != 0) {
      a = one();
      b = other();
    } else {
      b = other();
      a = one();
    }
    ratios.push_back(a / b);
    ones.push_back(a);
    others.push_back(b);
  }
  Pairs pairs;
  pairs.count = static_cast<unsigned>(ratios.size());
  pairs.ratio = Spread::of(std::move(ratios));
  pairs.one = Spread::of(std::move(ones));
  pairs.other = Spread::of(std::move(others));
  return pairs;
}

}  // namespace bench
