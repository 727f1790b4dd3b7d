// The 128-bit name of exported memory: what an application hands to another node. Bits 9:0 of the
// low half are the exporter's accelerator id, the rest is random; whoever knows all 128 bits may
// import (docs/hardware/nht.md, "Handles"; UAL-3).
#pragma once

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "fabric/types.h"

namespace fabric {

struct Handle {
  std::uint64_t lo = 0;
  std::uint64_t hi = 0;

  AccelId exporter() const { return AccelId(static_cast<std::uint16_t>(lo & 0x3FF)); }
  // Always over all 128 bits: half a capability opens nothing (errata A2).
  friend auto operator<=>(const Handle&, const Handle&) = default;
};

// 32 lower-case hexadecimal digits, hi before lo: {.lo = 0xfedcba9876543210, .hi =
// 0x0123456789abcdef} is 0123456789abcdeffedcba9876543210. This is the one text form of the
// project, that of gpuumd_handle_format(); as 16 bytes a handle is lo, then hi, little-endian
// (U34).
std::string to_string(const Handle& handle);

// Accepts exactly what to_string() writes, in either case of letters, like gpuumd_handle_parse().
// kInvalidArgument otherwise.
base::Result<Handle> parse_handle(std::string_view text);

// A new handle of `exporter`: lo is not 0 and `taken(lo)` is false, since RSP and FAIL carry the
// low half alone (errata A8). kNoSpace after 64 draws that were all taken: the random source is
// broken.
base::Result<Handle> make_handle(AccelId exporter, RandomSource& random,
                                 const std::function<bool(std::uint64_t lo)>& taken);

struct HandleHash {
  std::size_t operator()(const Handle& handle) const {
    return std::hash<std::uint64_t>()(handle.lo ^ (handle.hi * 0x9E3779B97F4A7C15ULL));
  }
};

}  // namespace fabric
