// Costs and ratios of costs: two operations in alternating blocks, one ratio a pair of blocks, and
// of these the median (docs/performance.md "How a speed is stated").
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace bench {

using Clock = std::chrono::steady_clock;

// The processor's clock: a reading costs a tenth of what clock_gettime() does.
std::uint64_t ticks();
double to_ns(std::uint64_t ticks);

// Busy for so long.
void spin(std::chrono::nanoseconds time);

double median(std::vector<double> values);

// The middle and the tenths at both ends of what was measured.
struct Spread {
  double median = 0, low = 0, high = 0;
  static Spread of(std::vector<double> values);
};

// Runs a number of operations and gives their median cost, in nanoseconds.
using Block = std::function<double()>;
// A block of `count` calls of `operation`, each timed alone; `before` runs untimed before each.
Block timed(unsigned count, std::function<void()> operation, std::function<void()> before = {});

struct Pairs {
  Spread ratio, one, other;  // one / other; each in nanoseconds
  unsigned count = 0;
};
// At most `count` pairs of blocks, whose order alternates too; fewer when time runs out.
Pairs measure(unsigned count, std::chrono::seconds time, const Block& one, const Block& other);

}  // namespace bench
