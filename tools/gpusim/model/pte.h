// Page-table entries as the walker reads them (docs/hardware/gpuvm.md). The model's own reading of
// the format; the daemon has another one (daemon/gpu), and tests/contract/ compares them.
#pragma once

#include <cstdint>

#include "base/register.h"

namespace gpusim {

struct PTE : base::Record<std::uint64_t> {
  using V = base::Field<PTE, 0, 0, bool>;
  using S = base::Field<PTE, 1, 1, bool>;
  using C = base::Field<PTE, 2, 2, bool>;
  using X = base::Field<PTE, 4, 4, bool>;
  using R = base::Field<PTE, 5, 5, bool>;
  using W = base::Field<PTE, 6, 6, bool>;
  using FRAGMENT = base::Field<PTE, 11, 7, unsigned>;
  using ADDRESS = base::Field<PTE, 51, 12>;
  using T = base::Field<PTE, 56, 56, bool>;
  using B = base::Field<PTE, 59, 59, bool>;
  using P = base::Field<PTE, 63, 63, bool>;
};

// A directory entry that is no leaf; V, S and P are where a PTE has them.
struct PDE : base::Record<std::uint64_t> {
  using V = base::Field<PDE, 0, 0, bool>;
  using S = base::Field<PDE, 1, 1, bool>;
  using TABLE = base::Field<PDE, 51, 12>;
};

// What an entry says, before its address is looked at (D12).
enum class EntryKind : std::uint8_t {
  kDirectory,  // leads to the next table
  kLeaf,       // V = 1, P = 1: VRAM or system memory
  kRemote,     // NPA
  kSparse,     // PRT
  kRetryable,  // plain invalid
  kFinal,      // 0x6
  kMalformed,  // V = 1 and P = 0 where only a leaf can stand
};

constexpr EntryKind classify(base::Value<PTE> entry, unsigned level) {
  const bool leaf = entry.get<PTE::P>();
  if (entry.get<PTE::V>()) {
    if (leaf) return EntryKind::kLeaf;
    return level == 0 ? EntryKind::kMalformed : EntryKind::kDirectory;
  }
  const bool system = entry.get<PTE::S>();
  const bool coherent = entry.get<PTE::C>();
  const bool sparse = entry.get<PTE::T>();
  if (system && coherent) return sparse ? EntryKind::kSparse : EntryKind::kFinal;
  if (coherent && sparse && leaf) return EntryKind::kRemote;
  return EntryKind::kRetryable;
}

// log2 of the pages that one entry of `level` covers; `block` is PAGE_TABLE_BLOCK_SIZE.
constexpr unsigned level_shift(unsigned level, unsigned block) {
  return level == 0 ? 0 : 9 * level + block;
}

// NPA byte addresses: the accelerator id (docs/hardware/ualink.md).
inline constexpr unsigned kNpaIdShift = 41;
inline constexpr std::uint64_t kNpaIdMask = std::uint64_t{0x3FF} << kNpaIdShift;
constexpr std::uint16_t npa_accel(std::uint64_t npa) {
  return static_cast<std::uint16_t>((npa & kNpaIdMask) >> kNpaIdShift);
}

}  // namespace gpusim
