// Page-table entries of GFX 12.1 (docs/hardware/gpuvm.md). First reading; the model has its own,
// compared in tests/contract.
#pragma once

#include <cassert>
#include <cstdint>

#include "base/address.h"
#include "base/register.h"
#include "daemon/gpu/memory/phys_run.h"
#include "daemon/gpu/memory/vram_map.h"

namespace gpuumd {

enum class Mtype : std::uint8_t { kNc = 0, kRw = 2, kUc = 3 };

// A leaf, at any level.
struct PTE : base::Record<std::uint64_t> {
  using VALID = base::Field<PTE, 0, 0, bool>;
  using SYSTEM = base::Field<PTE, 1, 1, bool>;
  using SNOOPED = base::Field<PTE, 2, 2, bool>;
  using TMZ = base::Field<PTE, 3, 3, bool>;
  // In a client's VM: may be executed. In the exporter's NPA VM: answer "retry" (errata C8).
  using EXECUTABLE = base::Field<PTE, 4, 4, bool>;
  using READABLE = base::Field<PTE, 5, 5, bool>;
  using WRITEABLE = base::Field<PTE, 6, 6, bool>;
  using FRAGMENT = base::Field<PTE, 11, 7>;  // log2 of contiguous 4 KiB pages
  using ADDRESS = base::Field<PTE, 51, 12>;  // page number
  using MTYPE = base::Field<PTE, 55, 54, Mtype>;
  using PRT = base::Field<PTE, 56, 56, bool>;
  using DCC = base::Field<PTE, 58, 58, bool>;
  using BUS_ATOMICS = base::Field<PTE, 59, 59, bool>;
  using IS_PTE = base::Field<PTE, 63, 63, bool>;
};

// A directory entry that points to the next table, and the value of a context's BASE.
struct PDE : base::Record<std::uint64_t> {
  using VALID = base::Field<PDE, 0, 0, bool>;
  using SYSTEM = base::Field<PDE, 1, 1, bool>;
  using SNOOPED = base::Field<PDE, 2, 2, bool>;
  using ADDRESS = base::Field<PDE, 51, 12>;  // page number: tables are 4 KiB aligned
  using MTYPE = base::Field<PDE, 55, 54, Mtype>;
  using BLOCK_FRAGMENT_SIZE = base::Field<PDE, 62, 58>;
  using IS_PTE = base::Field<PDE, 63, 63, bool>;
};

using Pte = base::Value<PTE>;
using Pde = base::Value<PDE>;

inline constexpr std::uint64_t kPhysicalBits = 52;  // of an address in an entry, and of the bus
inline constexpr std::uint64_t kPhysicalEnd = std::uint64_t{1} << kPhysicalBits;

// What an entry without a translation says (docs/hardware/gpuvm.md "What an entry says"; at every
// level, docs/hardware/choices.md D12).
inline constexpr std::uint64_t kRetryEntry = 0;      // retried while the context allows it
inline constexpr std::uint64_t kNoRetryEntry = 0x6;  // S + C: the fault is final

struct PteFlags {
  bool read = false;
  bool write = false;
  bool execute = false;   // shader fetch; in VMID 15 "answer retry"; must be false for NPA
  bool uncached = false;  // MTYPE UC for local memory too
  friend constexpr bool operator==(PteFlags, PteFlags) = default;
};

// How this device's entries are made: what does not change after bring-up.
struct PteFormat {
  VramMap vram;
  // Stepping A1 wants RW for local memory and NC for remote (docs/hardware/gpuvm.md).
  bool stepping_a1 = false;
  // PCIe atomics work: entries of host memory permit them.
  bool host_atomics = false;

  // Whether all of `run` can stand in an entry: aligned, inside VRAM or 52 bits (errata C4). The
  // caller checks this before leaf(), which asserts it.
  bool can_encode(const PhysRun& run) const;
  // The address that entries for `run` carry: physical, IOVA or NPA.
  std::uint64_t target(const PhysRun& run) const;
  // A leaf for the first page of `run`, FRAGMENT 0. Entries of later pages add 4 KiB each.
  Pte leaf(const PhysRun& run, PteFlags flags) const;
};

inline bool PteFormat::can_encode(const PhysRun& run) const {
  const std::uint64_t limit = run.kind() == RunKind::kVram ? vram.size() : kPhysicalEnd;
  const std::uint64_t at = run.kind() == RunKind::kSystem ? run.iova().value()
                           : run.kind() == RunKind::kVram ? run.vram_offset().value()
                                                          : run.npa().value();
  if (run.pages() == 0 || run.pages() > kPhysicalEnd / base::kPageSize) return false;
  return base::is_aligned(at, base::kPageSize) && base::fits(at, run.bytes(), limit);
}

inline std::uint64_t PteFormat::target(const PhysRun& run) const {
  switch (run.kind()) {
    case RunKind::kSystem:
      return run.iova().value();
    case RunKind::kVram:
      return vram.physical(run.vram_offset()).value();
    case RunKind::kNpa:
      return run.npa().value();
  }
  return 0;
}

inline Pte PteFormat::leaf(const PhysRun& run, PteFlags flags) const {
  assert(can_encode(run) && !(run.kind() == RunKind::kNpa && flags.execute));
  const Pte entry = Pte()
                        .with<PTE::IS_PTE>(true)
                        .with<PTE::SNOOPED>(true)
                        .with<PTE::READABLE>(flags.read)
                        .with<PTE::WRITEABLE>(flags.write)
                        .with<PTE::EXECUTABLE>(flags.execute)
                        .with<PTE::ADDRESS>(target(run) / base::kPageSize);
  switch (run.kind()) {
    case RunKind::kSystem:
      return entry.with<PTE::VALID>(true)
          .with<PTE::SYSTEM>(true)
          .with<PTE::MTYPE>(Mtype::kUc)
          .with<PTE::BUS_ATOMICS>(host_atomics);
    case RunKind::kVram:
      return entry.with<PTE::VALID>(true)
          .with<PTE::MTYPE>(flags.uncached ? Mtype::kUc
                            : stepping_a1  ? Mtype::kRw
                                           : Mtype::kNc)
          .with<PTE::BUS_ATOMICS>(true);
    case RunKind::kNpa:  // VALID stays 0: "VSCT = 0011" is the mark of a remote page (errata C9)
      return entry.with<PTE::PRT>(true)
          .with<PTE::MTYPE>(stepping_a1 && !flags.uncached ? Mtype::kNc : Mtype::kUc)
          .with<PTE::BUS_ATOMICS>(true);
  }
  return entry;
}

// Whether an entry translates: a leaf of this device, of the host or of a remote accelerator.
constexpr bool is_leaf(std::uint64_t entry) { return Pte(entry).get<PTE::IS_PTE>(); }

// Points to a table at `address`: physical for VRAM, an IOVA with `system`. The same value, without
// more, is what CONTEXTn_PAGE_TABLE_BASE_ADDR wants.
inline Pde directory_entry(std::uint64_t address, bool system) {
  assert(base::is_aligned(address, base::kPageSize) && address < kPhysicalEnd);
  return Pde()
      .with<PDE::VALID>(true)
      .with<PDE::SYSTEM>(system)
      .with<PDE::SNOOPED>(true)
      .with<PDE::ADDRESS>(address / base::kPageSize);
}

}  // namespace gpuumd
