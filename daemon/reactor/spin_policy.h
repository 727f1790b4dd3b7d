// When a reactor may go on polling instead of sleeping.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>

#include "daemon/reactor/reactor.h"

namespace gpuumd {

// How many threads of this machine are known to poll right now: reactors, the model in a thread,
// and clients that said so in their rings. One object a daemon, shared by all who count.
class SpinCensus {
 public:
  void enter() { spinners_.fetch_add(1, std::memory_order_relaxed); }
  void leave() { spinners_.fetch_sub(1, std::memory_order_relaxed); }
  int count() const { return spinners_.load(std::memory_order_relaxed); }

 private:
  std::atomic<int> spinners_{0};
};

// Waking a sleeper costs 40-90 us where an idle core halts, so polling about that long before
// sleeping costs at most as much again (docs/performance.md).
inline constexpr Duration kSpinLimit = std::chrono::microseconds(50);

// The whole rule. `idle` is the time since the last piece of work, `budget` what adaptation allows,
// `spinners` all that poll now, this one included.
constexpr bool keep_spinning(Duration idle, Duration budget, int spinners, int cores) {
  // Two pollers on one core wait for the scheduler's tick (4 ms) instead of for each other.
  if (spinners > cores || (spinners == cores && cores == 1)) return false;
  return idle < std::min(budget, kSpinLimit);
}

// Halves the budget each time that spinning was in vain and doubles it each time it found work, so
// that a reactor with rare events costs little. Never below a tenth of the limit.
constexpr Duration adapt_budget(Duration budget, bool found_work) {
  return found_work ? std::min(budget * 2, kSpinLimit) : std::max(budget / 2, kSpinLimit / 10);
}

}  // namespace gpuumd
