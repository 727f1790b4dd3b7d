// How one call waits: until when, and whether by polling or sleeping.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>

#include "gpuumd/gpuumd.h"
#include "libgpuumd/error.h"

namespace gpuumd::client {

using Clock = std::chrono::steady_clock;
using TimePoint = Clock::time_point;
using std::chrono::nanoseconds;

inline constexpr std::chrono::microseconds kSpin{50};
// A daemon that has not even looked at a request for this long does not run (it is stopped, or
// stuck). Less says nothing: a sleeping daemon takes its time to wake on a busy machine.
inline constexpr std::chrono::milliseconds kSilence{200};
// Between two looks at whether the daemon is still there, while polling.
inline constexpr std::chrono::milliseconds kLiveness{1};
inline constexpr std::int64_t kMaxTimeout = 365LL * 24 * 3600 * 1'000'000'000;

struct Wait {
  std::uint32_t mode = GPUUMD_WAIT_ADAPTIVE;
  TimePoint start;
  TimePoint deadline;

  // Polls until this, then sleeps.
  TimePoint spin_end() const {
    if (mode == GPUUMD_WAIT_POLL) return deadline;
    if (mode == GPUUMD_WAIT_SLEEP) return start;
    return Clock::now() + kSpin < deadline ? Clock::now() + kSpin : deadline;
  }
  nanoseconds left() const { return deadline - Clock::now(); }
  bool over() const { return Clock::now() >= deadline; }
};

inline Outcome<Wait> make_wait(const gpuumd_wait* in, nanoseconds default_timeout) {
  gpuumd_wait defaults{sizeof(gpuumd_wait), GPUUMD_WAIT_ADAPTIVE, GPUUMD_TIMEOUT_DEFAULT};
  const auto options = read_options(in, defaults, "gpuumd_wait");
  if (!options) return std::unexpected(options.error());
  if (options->mode > GPUUMD_WAIT_SLEEP)
    return invalid("wait mode " + std::to_string(options->mode));
  std::int64_t timeout = options->timeout_ns;
  if (timeout < GPUUMD_TIMEOUT_DEFAULT)
    return invalid("timeout " + std::to_string(timeout) + " ns");
  if (timeout == GPUUMD_TIMEOUT_DEFAULT) timeout = default_timeout.count();
  if (timeout > kMaxTimeout) timeout = kMaxTimeout;
  Wait wait;
  wait.mode = options->mode;
  wait.start = Clock::now();
  wait.deadline = wait.start + nanoseconds(timeout);
  return wait;
}

// For poll(): rounded up, so that it does not end before the deadline.
inline int poll_timeout_ms(TimePoint deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  if (left <= 0) return 0;
  return left > 1'000'000 ? 1'000'000 : static_cast<int>(left);
}

inline void relax() { __builtin_ia32_pause(); }

}  // namespace gpuumd::client
