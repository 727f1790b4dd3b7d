// One ring of the interrupt handler as its registers describe it, and the 32-byte image of a vector
// (docs/hardware/ih.md).
#pragma once

#include <array>
#include <cstdint>

#include "tools/gpusim/model/types.h"

namespace gpusim {

inline constexpr std::uint32_t kIvBytes = 32;
using IvImage = std::array<std::uint32_t, 8>;

// `ticks`: the 100 MHz counter at the time of the event (D36).
IvImage encode(const Iv& iv, std::uint64_t ticks);

// 100 MHz ticks since the device started, 48 bits.
std::uint64_t ticks_of(ModelTime time);

enum class McSpace : std::uint8_t { kBus = 2, kGpuVirtual = 4 };

// The registers of one ring, and the arithmetic on its pointers. Ring 1 has no write-back word and
// no MSI.
struct InterruptRing {
  std::uint32_t cntl = 0;
  std::uint32_t rptr = 0;  // byte offsets
  std::uint32_t wptr = 0;
  std::uint32_t base = 0;
  std::uint32_t base_hi = 0;
  std::uint32_t wptr_addr_lo = 0;
  std::uint32_t wptr_addr_hi = 0;
  std::uint32_t doorbell = 0;
  bool overflow = false;

  bool enabled() const;  // RB_ENABLE, and a size that holds at least two vectors
  std::uint32_t bytes() const;
  bool overflow_enabled() const { return (cntl >> 16 & 1) != 0; }
  bool write_back_enabled() const { return (cntl >> 8 & 1) != 0; }
  bool interrupt_enabled() const { return (cntl >> 17 & 1) != 0; }
  bool rearm() const { return (cntl >> 21 & 1) != 0; }
  bool overflow_clear() const { return (cntl >> 31 & 1) != 0; }
  std::uint8_t vmid() const { return cntl >> 24 & 0xF; }
  unsigned mc_space() const { return cntl >> 28 & 7; }
  std::uint64_t address() const;
  std::uint64_t write_back_address() const;
  std::uint32_t wptr_register() const { return wptr | (overflow ? 1u : 0u); }

  bool empty() const { return rptr == wptr; }
  bool full() const;  // the next vector would make wptr equal to rptr
  // The write pointer moves past one vector; sets `overflow` where it meets the read pointer.
  void advance();
  // True when `value` is a multiple of 32.
  bool set_rptr(std::uint32_t value);
  // Whether an enabled doorbell register names this dword.
  static bool doorbell_matches(std::uint32_t doorbell, std::uint32_t dword) {
    return (doorbell >> 28 & 1) != 0 && (doorbell & 0x03FF'FFFF) == dword;
  }
};

}  // namespace gpusim
