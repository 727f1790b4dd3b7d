// Lets a line through once in a while and counts those that it holds back: what a client or a
// broken device can bring about must not fill the log.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "daemon/reactor/reactor.h"

namespace gpuumd {

class LogLimit {
 public:
  static constexpr Duration kPause = std::chrono::seconds(10);

  // Nothing: hold it back. Else how many were held back since the last that was let through.
  std::optional<std::uint64_t> admit(TimePoint now) {
    if (last_ && now - *last_ < kPause) {
      ++held_back_;
      return std::nullopt;
    }
    last_ = now;
    return std::exchange(held_back_, 0);
  }

 private:
  std::optional<TimePoint> last_;
  std::uint64_t held_back_ = 0;
};

}  // namespace gpuumd
