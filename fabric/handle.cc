#include "fabric/handle.h"

#include <array>

namespace fabric {
namespace {

constexpr std::uint64_t kIdBits = 0x3FF;
constexpr int kDraws = 64;
constexpr std::size_t kHalfDigits = 16;

void append_half(std::string& text, std::uint64_t half) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  for (int shift = 60; shift >= 0; shift -= 4) text += kDigits[(half >> shift) & 0xF];
}

std::optional<std::uint64_t> parse_half(std::string_view digits) {
  std::uint64_t half = 0;
  for (char c : digits) {
    unsigned digit = 0;
    if (c >= '0' && c <= '9') {
      digit = static_cast<unsigned>(c - '0');
    } else if (c >= 'a' && c <= 'f') {
      digit = static_cast<unsigned>(c - 'a') + 10;
    } else if (c >= 'A' && c <= 'F') {
      digit = static_cast<unsigned>(c - 'A') + 10;
    } else {
      return std::nullopt;
    }
    half = half << 4 | digit;
  }
  return half;
}

}  // namespace

std::string to_string(const Handle& handle) {
  std::string text;
  text.reserve(2 * kHalfDigits);
  append_half(text, handle.hi);
  append_half(text, handle.lo);
  return text;
}

base::Result<Handle> parse_handle(std::string_view text) {
  const auto bad = [] {
    return base::fail(Errc::kInvalidArgument, "handle: want 32 hexadecimal digits");
  };
  if (text.size() != 2 * kHalfDigits) return bad();
  const auto hi = parse_half(text.substr(0, kHalfDigits));
  const auto lo = parse_half(text.substr(kHalfDigits));
  if (!hi || !lo) return bad();
  return Handle{.lo = *lo, .hi = *hi};
}

base::Result<Handle> make_handle(AccelId exporter, RandomSource& random,
                                 const std::function<bool(std::uint64_t lo)>& taken) {
  for (int draw = 0; draw < kDraws; ++draw) {
    const std::uint64_t lo = (random.next() & ~kIdBits) | (exporter.value() & kIdBits);
    const std::uint64_t hi = random.next();
    if (lo != 0 && !taken(lo)) return Handle{.lo = lo, .hi = hi};
  }
  return base::fail(Errc::kNoSpace, "random numbers for a handle");
}

}  // namespace fabric
