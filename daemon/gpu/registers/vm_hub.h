// Registers of a VM hub: page-table roots, TLB invalidation, faults. First reading of
// docs/hardware/vmhub.md; the model has a second one of its own (tools/gpusim), compared in
// tests/contract.
//
// MMHUB and GFXHUB have the same registers with the same fields at different places, so the types
// below name them once, without the prefix (MMVM_/GCVM_, MMMC_VM_/GCMC_VM_) that differs in the
// manual, and vm_hub::bases() says where the parts of a hub are. Registers that come once for each
// context or engine are rows: index n is the context or engine.
#pragma once

#include <array>
#include <cstdint>

#include "base/register.h"
#include "daemon/gpu/registers/register_io.h"

namespace gpuumd {

enum class HubKind : std::uint8_t { kMmhub, kGfxhub };

namespace vm_hub {

inline constexpr unsigned kContexts = 16;           // one a VMID
inline constexpr unsigned kEngines = 18;            // invalidation engines
inline constexpr unsigned kCpuEngine = 17;          // the one that the CPU uses
inline constexpr unsigned kNpaContext = 15;         // incoming remote addresses, MMHUB only
inline constexpr std::uint32_t kGfxhubL2 = 0x15A0;  // GFXHUB: from GC segment 0
inline constexpr std::uint32_t kGfxhubVm = 0x1524;

// The parts of a hub, used as segments of its RegisterBlock.
inline constexpr unsigned kL2 = 0;     // offsets 0x000-0x0FF
inline constexpr unsigned kVm = 1;     // offsets 0x100-0x1FF
inline constexpr unsigned kMmhub = 2;  // known for MMHUB alone

// The bases for a hub's RegisterBlock from those that discovery gives for its MMHUB or GC instance.
constexpr RegisterBlock::Bases bases(HubKind kind, const RegisterBlock::Bases& discovered) {
  RegisterBlock::Bases parts;
  parts.fill(RegisterBlock::kAbsent);
  if (kind == HubKind::kMmhub) {
    parts[kL2] = parts[kVm] = parts[kMmhub] = discovered[2];
  } else {
    parts[kL2] = discovered[0] + kGfxhubL2;
    parts[kVm] = discovered[0] + kGfxhubVm;
  }
  return parts;
}

template <unsigned Part, std::uint32_t Offset, base::Access Mode = base::Access::kReadWrite,
          std::uint32_t Stride = 0>
using Reg = base::Reg<Part, Offset, Mode, Stride>;
template <class Owner, unsigned High, unsigned Low, class T = std::uint64_t>
using Field = base::Field<Owner, High, Low, T>;

// Physical page of the default page: bits 31:0 of PA >> 12, then PA >> 44.
struct SYSTEM_APERTURE_DEFAULT_ADDR_LSB : Reg<kL2, 0x000> {};
struct SYSTEM_APERTURE_DEFAULT_ADDR_MSB : Reg<kL2, 0x001> {};

struct L2_CNTL : Reg<kL2, 0x024> {
  using ENABLE_L2_CACHE = Field<L2_CNTL, 0, 0, bool>;
  using ENABLE_L2_FRAGMENT_PROCESSING = Field<L2_CNTL, 1, 1, bool>;
  using L2_PDE0_CACHE_TAG_GENERATION_MODE = Field<L2_CNTL, 8, 8>;
  using ENABLE_DEFAULT_PAGE_OUT_TO_SYSTEM_MEMORY = Field<L2_CNTL, 11, 11, bool>;
  using PDE_FAULT_CLASSIFICATION = Field<L2_CNTL, 18, 18>;
  using CONTEXT1_IDENTITY_ACCESS_MODE = Field<L2_CNTL, 20, 19>;
  using IDENTITY_MODE_FRAGMENT_SIZE = Field<L2_CNTL, 25, 21>;
};
struct L2_CNTL2 : Reg<kL2, 0x025> {};
struct L2_CNTL3 : Reg<kL2, 0x026> {
  static constexpr std::uint32_t kStart = 0x80100007;  // what the sequence changes fields of
  using BANK_SELECT = Field<L2_CNTL3, 5, 0>;
  using L2_CACHE_BIGK_FRAGMENT_SIZE = Field<L2_CNTL3, 19, 15>;
};
struct L2_CNTL4 : Reg<kL2, 0x03e> {
  static constexpr std::uint32_t kStart = 0x000000C1;
  using VMC_TAP_PDE_REQUEST_PHYSICAL = Field<L2_CNTL4, 6, 6, bool>;
  using VMC_TAP_PTE_REQUEST_PHYSICAL = Field<L2_CNTL4, 7, 7, bool>;
};
struct L2_CNTL5 : Reg<kL2, 0x044> {
  static constexpr std::uint32_t kStart = 0x00003FE0;
};
struct L2_STATUS : Reg<kL2, 0x027, base::Access::kReadOnly> {};

struct DUMMY_PAGE_FAULT_CNTL : Reg<kL2, 0x028> {};
struct DUMMY_PAGE_FAULT_ADDR_LO32 : Reg<kL2, 0x029> {};
struct DUMMY_PAGE_FAULT_ADDR_HI32 : Reg<kL2, 0x02a> {};
struct INVALIDATE_CNTL : Reg<kL2, 0x02b> {};

struct L2_PROTECTION_FAULT_CNTL_LO32 : Reg<kL2, 0x02c> {
  using Self = L2_PROTECTION_FAULT_CNTL_LO32;
  // Written 1 it clears STATUS and ADDR; reads 0.
  using CLEAR_PROTECTION_FAULT_STATUS_ADDR = Field<Self, 0, 0, bool>;
  using ALLOW_SUBSEQUENT_PROTECTION_FAULT_STATUS_ADDR_UPDATES = Field<Self, 1, 1, bool>;
  // Each: a fault of this kind goes to the default page, if the context says so too.
  using RANGE_PROTECTION_FAULT_ENABLE_DEFAULT = Field<Self, 2, 2, bool>;
  using PDE0_PROTECTION_FAULT_ENABLE_DEFAULT = Field<Self, 3, 3, bool>;
  using PDE1_PROTECTION_FAULT_ENABLE_DEFAULT = Field<Self, 4, 4, bool>;
  using PDE2_PROTECTION_FAULT_ENABLE_DEFAULT = Field<Self, 5, 5, bool>;
  using PDE3_PROTECTION_FAULT_ENABLE_DEFAULT = Field<Self, 6, 6, bool>;
  using TRANSLATE_FURTHER_PROTECTION_FAULT_ENABLE_DEFAULT = Field<Self, 7, 7, bool>;
  using NACK_PROTECTION_FAULT_ENABLE_DEFAULT = Field<Self, 8, 8, bool>;
  using DUMMY_PAGE_PROTECTION_FAULT_ENABLE_DEFAULT = Field<Self, 9, 9, bool>;
  using VALID_PROTECTION_FAULT_ENABLE_DEFAULT = Field<Self, 10, 10, bool>;
  using READ_PROTECTION_FAULT_ENABLE_DEFAULT = Field<Self, 11, 11, bool>;
  using WRITE_PROTECTION_FAULT_ENABLE_DEFAULT = Field<Self, 12, 12, bool>;
  using EXECUTE_PROTECTION_FAULT_ENABLE_DEFAULT = Field<Self, 13, 13, bool>;
  using CLIENT_ID_NO_RETRY_FAULT_INTERRUPT = Field<Self, 29, 14>;
  using OTHER_CLIENT_ID_NO_RETRY_FAULT_INTERRUPT = Field<Self, 30, 30, bool>;
  using CRASH_ON_NO_RETRY_FAULT = Field<Self, 31, 31, bool>;
};
struct L2_PROTECTION_FAULT_CNTL_HI32 : Reg<kL2, 0x02d> {
  using CRASH_ON_RETRY_FAULT = Field<L2_PROTECTION_FAULT_CNTL_HI32, 0, 0, bool>;
};
struct L2_PROTECTION_FAULT_CNTL2 : Reg<kL2, 0x02e> {
  using CLIENT_ID_PRT_FAULT_INTERRUPT = Field<L2_PROTECTION_FAULT_CNTL2, 15, 0>;
  using OTHER_CLIENT_ID_PRT_FAULT_INTERRUPT = Field<L2_PROTECTION_FAULT_CNTL2, 16, 16, bool>;
  using ACTIVE_PAGE_MIGRATION_PTE = Field<L2_PROTECTION_FAULT_CNTL2, 17, 17, bool>;
  using ACTIVE_PAGE_MIGRATION_PTE_READ_RETRY = Field<L2_PROTECTION_FAULT_CNTL2, 18, 18, bool>;
  using ENABLE_RETRY_FAULT_INTERRUPT = Field<L2_PROTECTION_FAULT_CNTL2, 19, 19, bool>;
};
struct L2_PROTECTION_FAULT_MM_CNTL3 : Reg<kL2, 0x02f> {};  // no-retry interrupt, read clients
struct L2_PROTECTION_FAULT_MM_CNTL4 : Reg<kL2, 0x030> {};  // no-retry interrupt, write clients

struct L2_PROTECTION_FAULT_STATUS_LO32 : Reg<kL2, 0x031, base::Access::kReadOnly> {
  using Self = L2_PROTECTION_FAULT_STATUS_LO32;
  using MORE_FAULTS = Field<Self, 0, 0, bool>;
  using WALKER_ERROR = Field<Self, 4, 1>;
  using PERMISSION_FAULTS = Field<Self, 9, 5>;
  using MAPPING_ERROR = Field<Self, 10, 10, bool>;
  using CID = Field<Self, 19, 11>;
  using RW = Field<Self, 20, 20, bool>;  // true: a write
  using ATOMIC = Field<Self, 21, 21, bool>;
  using VMID = Field<Self, 25, 22>;
  using VF = Field<Self, 26, 26, bool>;
  using VFID = Field<Self, 31, 27>;
};
struct L2_PROTECTION_FAULT_STATUS_HI32 : Reg<kL2, 0x032, base::Access::kReadOnly> {
  using PRT = Field<L2_PROTECTION_FAULT_STATUS_HI32, 0, 0, bool>;
  using UCE = Field<L2_PROTECTION_FAULT_STATUS_HI32, 1, 1, bool>;
  using FED = Field<L2_PROTECTION_FAULT_STATUS_HI32, 2, 2, bool>;
};
// Virtual page: bits 31:0, then 44:32.
struct L2_PROTECTION_FAULT_ADDR_LO32 : Reg<kL2, 0x033, base::Access::kReadOnly> {};
struct L2_PROTECTION_FAULT_ADDR_HI32 : Reg<kL2, 0x034, base::Access::kReadOnly> {
  using LOGICAL_PAGE_ADDR_HI = Field<L2_PROTECTION_FAULT_ADDR_HI32, 12, 0>;
};
// Physical page: bits 31:0, then 39:32.
struct L2_PROTECTION_FAULT_DEFAULT_ADDR_LO32 : Reg<kL2, 0x035> {};
struct L2_PROTECTION_FAULT_DEFAULT_ADDR_HI32 : Reg<kL2, 0x036> {
  using PHYSICAL_PAGE_ADDR_HI = Field<L2_PROTECTION_FAULT_DEFAULT_ADDR_HI32, 7, 0>;
};

struct L2_CONTEXT1_IDENTITY_APERTURE_LOW_ADDR_LO32 : Reg<kL2, 0x038> {};
struct L2_CONTEXT1_IDENTITY_APERTURE_LOW_ADDR_HI32 : Reg<kL2, 0x039> {};
struct L2_CONTEXT1_IDENTITY_APERTURE_HIGH_ADDR_LO32 : Reg<kL2, 0x03a> {};
struct L2_CONTEXT1_IDENTITY_APERTURE_HIGH_ADDR_HI32 : Reg<kL2, 0x03b> {};
struct L2_CONTEXT_IDENTITY_PHYSICAL_OFFSET_LO32 : Reg<kL2, 0x03c> {};
struct L2_CONTEXT_IDENTITY_PHYSICAL_OFFSET_HI32 : Reg<kL2, 0x03d> {};
struct L2_BANK_SELECT_RESERVED_CID : Reg<kL2, 0x040> {};
struct L2_BANK_SELECT_RESERVED_CID2 : Reg<kL2, 0x041> {
  using RESERVED_CACHE_PRIVATE_INVALIDATION = Field<L2_BANK_SELECT_RESERVED_CID2, 25, 25, bool>;
};

// Where VMID 0 sees VRAM: address bits 55:24, then bit 56. TOP is inclusive.
struct FB_LOCATION_BASE_LO32 : Reg<kVm, 0x100> {};
struct FB_LOCATION_BASE_HI32 : Reg<kVm, 0x101> {
  using FB_BASE_HI = Field<FB_LOCATION_BASE_HI32, 0, 0>;
};
struct FB_LOCATION_TOP_LO32 : Reg<kVm, 0x102> {};
struct FB_LOCATION_TOP_HI32 : Reg<kVm, 0x103> {
  using FB_TOP_HI = Field<FB_LOCATION_TOP_HI32, 0, 0>;
};
// In units of 16 MiB.
struct AGP_TOP_LO32 : Reg<kVm, 0x104> {};
struct AGP_TOP_HI32 : Reg<kVm, 0x105> {};
struct AGP_BOT_LO32 : Reg<kVm, 0x106> {};
struct AGP_BOT_HI32 : Reg<kVm, 0x107> {};
struct AGP_BASE_LO32 : Reg<kVm, 0x108> {};
struct AGP_BASE_HI32 : Reg<kVm, 0x109> {};
// In units of 256 KiB.
struct SYSTEM_APERTURE_LOW_ADDR_LO32 : Reg<kVm, 0x10a> {};
struct SYSTEM_APERTURE_LOW_ADDR_HI32 : Reg<kVm, 0x10b> {};
struct SYSTEM_APERTURE_HIGH_ADDR_LO32 : Reg<kVm, 0x10c> {};
struct SYSTEM_APERTURE_HIGH_ADDR_HI32 : Reg<kVm, 0x10d> {};

struct MX_L1_TLB_CNTL : Reg<kVm, 0x10e> {
  using ENABLE_L1_TLB = Field<MX_L1_TLB_CNTL, 0, 0, bool>;
  using SYSTEM_ACCESS_MODE = Field<MX_L1_TLB_CNTL, 4, 3>;
  using SYSTEM_APERTURE_UNMAPPED_ACCESS = Field<MX_L1_TLB_CNTL, 5, 5>;
  using ENABLE_ADVANCED_DRIVER_MODEL = Field<MX_L1_TLB_CNTL, 6, 6, bool>;
  using MTYPE = Field<MX_L1_TLB_CNTL, 12, 11>;
};

struct CONTEXT_CNTL : Reg<kVm, 0x110, base::Access::kReadWrite, 1> {
  using ENABLE_CONTEXT = Field<CONTEXT_CNTL, 0, 0, bool>;
  using PAGE_TABLE_DEPTH = Field<CONTEXT_CNTL, 3, 1>;       // 0 flat .. 4 five levels
  using PAGE_TABLE_BLOCK_SIZE = Field<CONTEXT_CNTL, 7, 4>;  // log2(entries) - 9
  using RETRY_PERMISSION_OR_INVALID_PAGE_FAULT = Field<CONTEXT_CNTL, 8, 8, bool>;
  using RETRY_OTHER_FAULT = Field<CONTEXT_CNTL, 9, 9, bool>;
  using RANGE_PROTECTION_FAULT_ENABLE_INTERRUPT = Field<CONTEXT_CNTL, 10, 10, bool>;
  using RANGE_PROTECTION_FAULT_ENABLE_DEFAULT = Field<CONTEXT_CNTL, 11, 11, bool>;
  using DUMMY_PAGE_PROTECTION_FAULT_ENABLE_INTERRUPT = Field<CONTEXT_CNTL, 12, 12, bool>;
  using DUMMY_PAGE_PROTECTION_FAULT_ENABLE_DEFAULT = Field<CONTEXT_CNTL, 13, 13, bool>;
  using PDE0_PROTECTION_FAULT_ENABLE_INTERRUPT = Field<CONTEXT_CNTL, 14, 14, bool>;
  using PDE0_PROTECTION_FAULT_ENABLE_DEFAULT = Field<CONTEXT_CNTL, 15, 15, bool>;
  using VALID_PROTECTION_FAULT_ENABLE_INTERRUPT = Field<CONTEXT_CNTL, 16, 16, bool>;
  using VALID_PROTECTION_FAULT_ENABLE_DEFAULT = Field<CONTEXT_CNTL, 17, 17, bool>;
  using READ_PROTECTION_FAULT_ENABLE_INTERRUPT = Field<CONTEXT_CNTL, 18, 18, bool>;
  using READ_PROTECTION_FAULT_ENABLE_DEFAULT = Field<CONTEXT_CNTL, 19, 19, bool>;
  using WRITE_PROTECTION_FAULT_ENABLE_INTERRUPT = Field<CONTEXT_CNTL, 20, 20, bool>;
  using WRITE_PROTECTION_FAULT_ENABLE_DEFAULT = Field<CONTEXT_CNTL, 21, 21, bool>;
  using EXECUTE_PROTECTION_FAULT_ENABLE_INTERRUPT = Field<CONTEXT_CNTL, 22, 22, bool>;
  using EXECUTE_PROTECTION_FAULT_ENABLE_DEFAULT = Field<CONTEXT_CNTL, 23, 23, bool>;
  using SECURE_PROTECTION_FAULT_ENABLE_INTERRUPT = Field<CONTEXT_CNTL, 24, 24, bool>;
  using SECURE_PROTECTION_FAULT_ENABLE_DEFAULT = Field<CONTEXT_CNTL, 25, 25, bool>;
};
struct CONTEXTS_DISABLE : Reg<kVm, 0x120> {};

// A read that gives 1 has taken it; writing 0 releases it. MMHUB only: GFXHUB needs none.
struct INVALIDATE_ENG_SEM : Reg<kVm, 0x121, base::Access::kReadWrite, 1> {
  using SEMAPHORE = Field<INVALIDATE_ENG_SEM, 0, 0, bool>;
};
enum class FlushType : std::uint8_t { kLegacy = 0, kLight = 1, kHeavy = 2 };
struct INVALIDATE_ENG_REQ : Reg<kVm, 0x133, base::Access::kReadWrite, 1> {
  using PER_VMID_INVALIDATE_REQ = Field<INVALIDATE_ENG_REQ, 15, 0>;
  using FLUSH_TYPE = Field<INVALIDATE_ENG_REQ, 18, 16, FlushType>;
  using INVALIDATE_L2_PTES = Field<INVALIDATE_ENG_REQ, 19, 19, bool>;
  using INVALIDATE_L2_PDE0 = Field<INVALIDATE_ENG_REQ, 20, 20, bool>;
  using INVALIDATE_L2_PDE1 = Field<INVALIDATE_ENG_REQ, 21, 21, bool>;
  using INVALIDATE_L2_PDE2 = Field<INVALIDATE_ENG_REQ, 22, 22, bool>;
  using INVALIDATE_L1_PTES = Field<INVALIDATE_ENG_REQ, 23, 23, bool>;
  using CLEAR_PROTECTION_FAULT_STATUS_ADDR = Field<INVALIDATE_ENG_REQ, 24, 24, bool>;
  using LOG_REQUEST = Field<INVALIDATE_ENG_REQ, 25, 25, bool>;
  using INVALIDATE_4K_PAGES_ONLY = Field<INVALIDATE_ENG_REQ, 26, 26, bool>;
  using INVALIDATE_L2_PDE3 = Field<INVALIDATE_ENG_REQ, 27, 27, bool>;
};
struct INVALIDATE_ENG_ACK : Reg<kVm, 0x145, base::Access::kReadOnly, 1> {
  using PER_VMID_INVALIDATE_ACK = Field<INVALIDATE_ENG_ACK, 15, 0>;
  using SEMAPHORE = Field<INVALIDATE_ENG_ACK, 16, 16, bool>;
};
// Whole space: LO 0xFFFF_FFFF, HI 0x3FFF.
struct INVALIDATE_ENG_ADDR_RANGE_LO32 : Reg<kVm, 0x157, base::Access::kReadWrite, 2> {
  using S_BIT = Field<INVALIDATE_ENG_ADDR_RANGE_LO32, 0, 0, bool>;
  using LOGICAL_PAGE_ADDR_RANGE_LO31 = Field<INVALIDATE_ENG_ADDR_RANGE_LO32, 31, 1>;
};
struct INVALIDATE_ENG_ADDR_RANGE_HI32 : Reg<kVm, 0x158, base::Access::kReadWrite, 2> {
  using LOGICAL_PAGE_ADDR_RANGE_HI14 = Field<INVALIDATE_ENG_ADDR_RANGE_HI32, 13, 0>;
};

// BASE is a physical address with the flag bits of a PDE; START and END are page numbers, END
// inclusive.
struct CONTEXT_PAGE_TABLE_BASE_ADDR_LO32 : Reg<kVm, 0x17b, base::Access::kReadWrite, 2> {};
struct CONTEXT_PAGE_TABLE_BASE_ADDR_HI32 : Reg<kVm, 0x17c, base::Access::kReadWrite, 2> {};
struct CONTEXT_PAGE_TABLE_START_ADDR_LO32 : Reg<kVm, 0x19b, base::Access::kReadWrite, 2> {};
struct CONTEXT_PAGE_TABLE_START_ADDR_HI32 : Reg<kVm, 0x19c, base::Access::kReadWrite, 2> {};
struct CONTEXT_PAGE_TABLE_END_ADDR_LO32 : Reg<kVm, 0x1bb, base::Access::kReadWrite, 2> {};
struct CONTEXT_PAGE_TABLE_END_ADDR_HI32 : Reg<kVm, 0x1bc, base::Access::kReadWrite, 2> {};
struct L2_PER_PFVF_PTE_CACHE_FRAGMENT_SIZES : Reg<kVm, 0x1dc, base::Access::kReadWrite, 1> {};
struct PCIE_ATOMIC_SUPPORTED : Reg<kVm, 0x1f0> {};

struct XGMI_LFB_CNTL : Reg<kMmhub, 0x202> {};
struct XGMI_LFB_SIZE : Reg<kMmhub, 0x203> {};
// Physical base of this GPU's VRAM, in units of 16 MiB.
struct FB_OFFSET : Reg<kMmhub, 0x2ec, base::Access::kReadOnly> {};

}  // namespace vm_hub

// One hub of the GPU. `instance` counts MMHUBs by MID and GFXHUBs by XCC.
struct VmHub {
  HubKind kind = HubKind::kMmhub;
  unsigned instance = 0;
  RegisterBlock registers;  // at vm_hub::bases()
};

}  // namespace gpuumd
