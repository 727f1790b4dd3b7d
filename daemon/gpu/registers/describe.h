// Registers in error texts, spelled alike everywhere: "C2PMSG_33 reads 0x00000000".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gpuumd {

inline std::string hex(std::uint64_t value, unsigned digits = 8) {
  std::string text(digits + 2, '0');
  text[1] = 'x';
  for (unsigned i = digits; i > 0; --i, value >>= 4) text[i + 1] = "0123456789abcdef"[value & 0xF];
  return text;
}

inline std::string reads(std::string_view name, std::uint32_t value) {
  return std::string(name) + " reads " + hex(value);
}

}  // namespace gpuumd
