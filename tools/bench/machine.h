// What of the machine bears on a result: cores, what the host takes, what others use, how idle
// cores sleep.
#pragma once

#include <cstdint>
#include <string>

namespace bench {

// Where things run on a machine of two cores: the one that measures on kClientCore, the one that it
// talks to on kServerCore.
inline constexpr int kClientCore = 0;
inline constexpr int kServerCore = 1;

// The calling thread stays on `core`; false when it may not, as on a machine with a single core.
bool pin(int core);

std::string machine_text();      // processor, cores, kernel
std::string idle_policy_text();  // how an idle core waits, which decides what a wake costs

// What the host took and other processes used while this object lived.
class Disturbance {
 public:
  Disturbance();
  std::string text() const;

 private:
  struct Times {
    std::uint64_t busy = 0, stolen = 0, all = 0, own = 0;
  };
  static Times read();
  Times start_;
};

}  // namespace bench
