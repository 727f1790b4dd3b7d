// SDMA packets, as this driver builds them (docs/hardware/sdma.md, "Packets"). First reading:
// the model decodes with definitions of its own, and tests/contract compares the two.
//
// Addresses are those of the VMID that executes the packet. Each function appends one packet.
#pragma once

#include <cassert>
#include <cstdint>
#include <span>
#include <vector>

namespace gpuumd::sdma {

// Appends dwords to a vector that its owner reuses, so that building a packet allocates nothing
// once the vector has grown.
class PacketWriter {
 public:
  explicit PacketWriter(std::vector<std::uint32_t>& out) : out_(out) {}

  void dword(std::uint32_t value) { out_.push_back(value); }
  void address(std::uint64_t value) {
    dword(static_cast<std::uint32_t>(value));
    dword(static_cast<std::uint32_t>(value >> 32));
  }
  std::size_t size() const { return out_.size(); }

 private:
  std::vector<std::uint32_t>& out_;
};

enum class Op : std::uint32_t {
  kNop = 0,
  kCopy = 1,
  kWrite = 2,
  kIndirect = 4,
  kFence = 5,
  kTrap = 6,
  kPollRegmem = 8,
  kAtomic = 10,
  kConstFill = 11,
  kPtePde = 12,
  kTimestamp = 13,
};

constexpr std::uint32_t header(Op op, std::uint32_t sub_op = 0) {
  return static_cast<std::uint32_t>(op) | sub_op << 8;
}

inline constexpr std::uint64_t kMaxCopyBytes = std::uint64_t{1} << 30;  // of one COPY or CONST_FILL
inline constexpr std::uint32_t kMaxNopDwords = (1u << 14) - 1;
inline constexpr std::uint32_t kMtypeUncached = 3;

// A packet of `extra` + 1 dwords that does nothing; also the barrier between two COPYs that must
// not overlap (docs/hardware/choices.md D34).
inline void nop(PacketWriter& out, std::uint32_t extra = 0) {
  assert(extra <= kMaxNopDwords);
  out.dword(header(Op::kNop) | extra << 16);
  for (std::uint32_t i = 0; i < extra; ++i) out.dword(0);
}

inline void copy_linear(PacketWriter& out, std::uint64_t from, std::uint64_t to,
                        std::uint64_t bytes) {
  assert(bytes > 0 && bytes <= kMaxCopyBytes);
  out.dword(header(Op::kCopy));
  out.dword(static_cast<std::uint32_t>(bytes - 1));
  out.dword(0);
  out.address(from);
  out.address(to);
}

inline void write_linear(PacketWriter& out, std::uint64_t to, std::span<const std::uint32_t> data) {
  assert(!data.empty() && to % 4 == 0);
  out.dword(header(Op::kWrite));
  out.address(to);
  out.dword(static_cast<std::uint32_t>(data.size() - 1));
  for (const auto word : data) out.dword(word);
}

enum class FillSize : std::uint32_t { kByte = 0, kWord = 1, kDword = 2 };

inline void const_fill(PacketWriter& out, std::uint64_t to, std::uint32_t value, FillSize size,
                       std::uint64_t bytes) {
  assert(bytes > 0 && bytes <= kMaxCopyBytes);
  assert(bytes % (std::uint64_t{1} << static_cast<unsigned>(size)) == 0);
  out.dword(header(Op::kConstFill) | static_cast<std::uint32_t>(size) << 30);
  out.address(to);
  out.dword(value);
  out.dword(static_cast<std::uint32_t>(bytes - 1));
}

inline void fence(PacketWriter& out, std::uint64_t at, std::uint32_t value) {
  assert(at % 4 == 0);
  out.dword(header(Op::kFence) | kMtypeUncached << 16);
  out.address(at);
  out.dword(value);
}

// The low half first: every value seen in between is at most the new one, but for the moment of a
// carry, when the word falls (readers keep the largest value they have seen).
inline void fence64(PacketWriter& out, std::uint64_t at, std::uint64_t value) {
  assert(at % 8 == 0);
  fence(out, at, static_cast<std::uint32_t>(value));
  fence(out, at + 4, static_cast<std::uint32_t>(value >> 32));
}

inline void trap(PacketWriter& out, std::uint32_t context) {
  assert(context < (1u << 28));
  out.dword(header(Op::kTrap));
  out.dword(context);
}

enum class AtomicCode : std::uint32_t {  // docs/hardware/choices.md D31
  kSwap32 = 7,
  kCompareSwap32 = 8,
  kAdd32 = 15,
  kSwap64 = 39,
  kCompareSwap64 = 40,
  kAdd64 = 47,
};

inline void atomic(PacketWriter& out, std::uint64_t at, AtomicCode code, std::uint64_t operand,
                   std::uint64_t compare) {
  out.dword(header(Op::kAtomic) | static_cast<std::uint32_t>(code) << 25);
  out.address(at);
  out.address(operand);
  out.address(compare);
  out.dword(0);
}

// The 100 MHz counter common to all engines of the device.
inline void timestamp_global(PacketWriter& out, std::uint64_t at) {
  assert(at % 8 == 0);
  out.dword(header(Op::kTimestamp, 2));
  out.address(at);
}

inline constexpr std::uint32_t kIndirectDwords = 6;

// `ib` in the space of `vmid`, 32-byte aligned; the packet must end on an 8-dword boundary of the
// ring, for which `ring_dwords` is where it starts.
inline void indirect(PacketWriter& out, std::uint64_t ring_dwords, std::uint8_t vmid,
                     std::uint64_t ib, std::uint32_t ib_dwords) {
  assert(ib % 32 == 0 && vmid < 16);
  for (auto pad = (2 - (ring_dwords + out.size())) & 7; pad > 0; --pad) nop(out);
  out.dword(header(Op::kIndirect) | std::uint32_t{vmid} << 16);
  out.address(ib);
  out.dword(ib_dwords);
  out.address(0);
}

// Writes `entries` table entries from `table` on: entry i is (first + i * increment) | flags.
// Uncached and snooped (docs/hardware/errata.md C7).
inline void pte_pde_generate(PacketWriter& out, std::uint64_t table, std::uint64_t flags,
                             std::uint64_t first, std::uint32_t increment, std::uint32_t entries) {
  assert(entries > 0);
  out.dword(header(Op::kPtePde) | kMtypeUncached << 16 | 1u << 22);
  out.address(table);
  out.address(flags);
  out.address(first);
  out.dword(increment);
  out.dword(0);
  out.dword(entries - 1);
}

inline void pad_to(PacketWriter& out, std::size_t dwords) {
  while (out.size() % dwords != 0) nop(out);
}

}  // namespace gpuumd::sdma
