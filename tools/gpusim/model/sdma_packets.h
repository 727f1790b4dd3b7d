// SDMA packets as the engine reads them (docs/hardware/sdma.md).
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/register.h"
#include "tools/gpusim/model/types.h"

namespace gpusim {

enum class SdmaOp : std::uint8_t {
  kNop = 0,
  kCopy = 1,
  kWrite = 2,
  kIndirect = 4,
  kFence = 5,
  kTrap = 6,
  kPollRegmem = 8,
  kCondExe = 9,
  kAtomic = 10,
  kConstFill = 11,
  kPtePde = 12,
  kTimestamp = 13,
  kRegisterWrite = 14,
};

// The first dword. Fields after SUB_OP belong to the packets named.
struct SDMA_HEADER : base::Record<std::uint32_t> {
  using OP = base::Field<SDMA_HEADER, 7, 0, SdmaOp>;
  using SUB_OP = base::Field<SDMA_HEADER, 15, 8, unsigned>;
  using NOP_COUNT = base::Field<SDMA_HEADER, 29, 16, unsigned>;
  using COPY_BACKWARDS = base::Field<SDMA_HEADER, 25, 25, bool>;
  using COPY_BROADCAST = base::Field<SDMA_HEADER, 27, 27, bool>;
  using FILL_SIZE = base::Field<SDMA_HEADER, 31, 30, unsigned>;  // 0 byte, 1 u16, 2 dword
  using IB_VMID = base::Field<SDMA_HEADER, 19, 16, std::uint8_t>;
  using POLL_HDP_FLUSH = base::Field<SDMA_HEADER, 26, 26, bool>;
  using POLL_FUNCTION = base::Field<SDMA_HEADER, 30, 28, unsigned>;
  using POLL_MEMORY = base::Field<SDMA_HEADER, 31, 31, bool>;
  using ATOMIC_LOOP = base::Field<SDMA_HEADER, 16, 16, bool>;
  using ATOMIC_OP = base::Field<SDMA_HEADER, 31, 25, unsigned>;
};

inline constexpr std::size_t kMaxPacketDwords = 10;  // without the data of WRITE

// Dwords of a packet that the model knows, its data apart; 0 for one it does not.
constexpr unsigned packet_dwords(SdmaOp op, unsigned sub_op) {
  switch (op) {
    case SdmaOp::kNop:
      return 1;
    case SdmaOp::kCopy:
      return sub_op == 0 ? 7 : 0;
    case SdmaOp::kWrite:
      return sub_op == 0 ? 4 : 0;
    case SdmaOp::kIndirect:
      return sub_op == 0 ? 6 : 0;
    case SdmaOp::kFence:
      return sub_op == 0 ? 4 : 0;
    case SdmaOp::kTrap:
      return sub_op == 0 ? 2 : 0;
    case SdmaOp::kPollRegmem:
      return sub_op == 0 ? 6 : 0;
    case SdmaOp::kCondExe:
      return sub_op == 0 ? 5 : 0;
    case SdmaOp::kAtomic:
      return sub_op == 0 ? 8 : 0;
    case SdmaOp::kConstFill:
      return sub_op == 0 ? 5 : 0;
    case SdmaOp::kPtePde:
      return sub_op == 0 ? 10 : 0;
    case SdmaOp::kTimestamp:
      return sub_op <= 2 ? 3 : 0;
    case SdmaOp::kRegisterWrite:
      return sub_op == 0 ? 3 : 0;
  }
  return 0;
}

// The operation of an ATOMIC packet (D31); + 64: without return.
constexpr std::optional<AtomicOp> atomic_op(unsigned field) {
  switch (field & ~64u) {
    case 7:
      return AtomicOp::kSwap32;
    case 8:
      return AtomicOp::kCompareSwap32;
    case 15:
      return AtomicOp::kAdd32;
    case 39:
      return AtomicOp::kSwap64;
    case 40:
      return AtomicOp::kCompareSwap64;
    case 47:
      return AtomicOp::kAdd64;
    default:
      return std::nullopt;
  }
}

// POLL_REGMEM: whether `value` is what is waited for; function 0 is "always".
constexpr bool poll_matches(unsigned function, std::uint32_t value, std::uint32_t reference) {
  switch (function) {
    case 0:
      return true;
    case 1:
      return value < reference;
    case 2:
      return value <= reference;
    case 3:
      return value == reference;
    case 4:
      return value != reference;
    case 5:
      return value >= reference;
    case 6:
      return value > reference;
    default:
      return false;
  }
}

// Interrupt sources of client 0x0a (docs/hardware/ih.md).
enum class SdmaSource : std::uint8_t {
  kAtomicReturn = 0x30,
  kTrap = 0x31,
  kProtectedRegister = 0x32,
  kContextEmpty = 0x33,
  kPollTimeout = 0x39,
  kPageNull = 0x3B,
  kPageFault = 0x3C,
  kWptrBehind = 0x43,
  kCommandException = 0x44,
  kRemote = 0xE7,
};

}  // namespace gpusim
