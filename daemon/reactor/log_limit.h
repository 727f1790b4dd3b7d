// Lets so many lines through in ten seconds and counts those that it holds back: what a client or a
// broken device can bring about must not fill the log. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "daemon/reactor/reactor.h"

namespace gpuumd {

class LogLimit {
 public:
  static constexpr Duration kPause = std::chrono::seconds(10);

  explicit LogLimit(unsigned lines = 1) : lines_(lines) {}

  // Nothing: hold it back. Else how many were held back since the last that was let through.
  std::optional<std::uint64_t> admit(TimePoint now) {
    if (now >= next_) {
      next_ = now + kPause;
      left_ = lines_;
    }
    if (left_ == 0) {
      ++held_back_;
      return std::nullopt;
    }
    --left_;
    return std::exchange(held_back_, 0);
  }

 private:
  unsigned lines_;
  unsigned left_ = 0;
  TimePoint next_{};  // when the count begins anew
  std::uint64_t held_back_ = 0;
};

}  // namespace gpuumd
