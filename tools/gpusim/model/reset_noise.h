// Reset values of registers that mean nothing to the model: random, from a seed, so that no driver
// can rely on zeros.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "tools/gpusim/model/register_file.h"

namespace gpusim {

// SplitMix64: small, seeded, the same everywhere.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E37'79B9'7F4A'7C15);
    z = (z ^ (z >> 30)) * 0xBF58'476D'1CE4'E5B9;
    z = (z ^ (z >> 27)) * 0x94D0'49BB'1331'11EB;
    return z ^ (z >> 31);
  }
  // 0 .. limit - 1
  std::uint64_t below(std::uint64_t limit) { return next() % limit; }

 private:
  std::uint64_t state_;
};

// The value depends on the seed and on the dword only, not on the order of definitions.
inline std::uint32_t noise(std::uint64_t seed, std::uint32_t dword) {
  return static_cast<std::uint32_t>(
      Random(seed ^ (std::uint64_t{dword} * 0xD6E8'FEB8'6659'FD93)).next());
}

// A register that stores what is written and has no effect.
inline RegisterFile::Register& define_unused(RegisterFile& registers, std::uint64_t seed,
                                             std::uint32_t dword, std::string name) {
  return registers.define(dword, std::move(name), noise(seed, dword));
}

}  // namespace gpusim
