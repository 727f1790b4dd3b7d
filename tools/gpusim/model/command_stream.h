// Reads the dwords of a ring or of an indirect buffer, a few cache lines at a time.
#pragma once

#include <array>
#include <cstdint>

#include "tools/gpusim/model/vm_hub.h"

namespace gpusim {

class CommandStream {
 public:
  CommandStream() = default;
  // A ring of `bytes` (a power of two) whose positions run free, or a buffer from position 0.
  static CommandStream ring(std::uint64_t va, std::uint64_t bytes, std::uint8_t vmid);
  static CommandStream buffer(std::uint64_t va, std::uint64_t bytes, std::uint8_t vmid);

  // Reads up to this end; a ring's moves on with its write pointer.
  void set_end(std::uint64_t end) { end_ = end; }
  std::uint64_t end() const { return end_; }
  std::uint8_t vmid() const { return vmid_; }
  std::uint64_t address(std::uint64_t position) const { return va_ + (position & mask_); }

  // One dword at `position` (a multiple of 4, below end()).
  Outcome dword(VmHub& hub, const Requester& who, std::uint64_t position, std::uint32_t& value);
  // Forgets what was read ahead.
  void forget() { held_ = 0; }

 private:
  std::uint64_t va_ = 0;
  std::uint64_t mask_ = ~std::uint64_t{0};
  std::uint64_t end_ = 0;
  std::uint8_t vmid_ = 0;
  std::uint64_t at_ = 0;    // position of the first dword read ahead
  std::uint64_t held_ = 0;  // bytes
  std::array<std::uint32_t, 64> words_{};
};

}  // namespace gpusim
