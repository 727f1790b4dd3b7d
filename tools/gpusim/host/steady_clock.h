#pragma once

#include <chrono>

#include "tools/gpusim/model/types.h"

namespace gpusim {

// The model's time as the machine counts it, from the making of this clock.
class SteadyClock final : public ModelClock {
 public:
  ModelTime now() const override { return std::chrono::steady_clock::now() - start_; }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace gpusim
