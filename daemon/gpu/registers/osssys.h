// Registers of OSSSYS, the interrupt handler. First reading of docs/hardware/ih.md.
#pragma once

#include <cstdint>

#include "base/register.h"

namespace gpuumd::osssys {

// Rows of two: index 0 is ring 0, index 1 ring 1, 0xC dwords further on.
template <std::uint32_t Offset, base::Access Mode = base::Access::kReadWrite>
using RingReg = base::Reg<0, Offset, Mode, 0x00C>;

// PASID of each VMID, of the hub kind that the name says, on the die that VMID_LUT_INDEX selects.
struct IH_VMID_LUT : base::Reg<0, 0x000, base::Access::kReadWrite, 1> {  // GFXHUB
  using PASID = base::Field<IH_VMID_LUT, 15, 0>;
};
struct IH_VMID_LUT_MM : base::Reg<0, 0x010, base::Access::kReadWrite, 1> {  // MMHUB
  using PASID = base::Field<IH_VMID_LUT_MM, 15, 0>;
};
struct IH_COOKIE : base::Reg<0, 0x020, base::Access::kReadOnly, 1> {};
struct IH_VMID_LUT_INDEX : base::Reg<0, 0x028> {
  using DIE = base::Field<IH_VMID_LUT_INDEX, 3, 0>;
};

enum class McSpace : std::uint8_t { kBus = 2, kVmid0 = 4 };

struct IH_RB_CNTL : RingReg<0x080> {
  using RB_ENABLE = base::Field<IH_RB_CNTL, 0, 0, bool>;
  using RB_SIZE = base::Field<IH_RB_CNTL, 5, 1>;                      // log2(bytes / 4)
  using WPTR_WRITEBACK_ENABLE = base::Field<IH_RB_CNTL, 8, 8, bool>;  // ring 0 only
  using RB_FULL_DRAIN_ENABLE = base::Field<IH_RB_CNTL, 9, 9, bool>;
  using RB_USED_INT_THRESHOLD = base::Field<IH_RB_CNTL, 15, 12>;
  using WPTR_OVERFLOW_ENABLE = base::Field<IH_RB_CNTL, 16, 16, bool>;
  using ENABLE_INTR = base::Field<IH_RB_CNTL, 17, 17, bool>;  // ring 0 only
  using MC_SNOOP = base::Field<IH_RB_CNTL, 20, 20, bool>;
  using RPTR_REARM = base::Field<IH_RB_CNTL, 21, 21, bool>;
  using MC_RO = base::Field<IH_RB_CNTL, 22, 22, bool>;
  using MC_VMID = base::Field<IH_RB_CNTL, 27, 24>;
  using MC_SPACE = base::Field<IH_RB_CNTL, 30, 28, McSpace>;
  using WPTR_OVERFLOW_CLEAR = base::Field<IH_RB_CNTL, 31, 31, bool>;
};
struct IH_RB_RPTR : RingReg<0x081> {
  using OFFSET = base::Field<IH_RB_RPTR, 17, 2>;  // dwords; the raw value is bytes
};
struct IH_RB_WPTR : RingReg<0x082> {
  using RB_OVERFLOW = base::Field<IH_RB_WPTR, 0, 0, bool>;
  using OFFSET = base::Field<IH_RB_WPTR, 17, 2>;
  using RB_LEFT_NONE = base::Field<IH_RB_WPTR, 18, 18, bool>;
  using RB_MAY_OVERFLOW = base::Field<IH_RB_WPTR, 19, 19, bool>;
};
struct IH_RB_BASE : RingReg<0x083> {};  // address bits 39:8
struct IH_RB_BASE_HI : RingReg<0x084> {
  using ADDR = base::Field<IH_RB_BASE_HI, 16, 0>;  // address bits 56:40, all 17 (errata C2)
};
struct IH_RB_WPTR_ADDR_HI : base::Reg<0, 0x085> {
  using ADDR = base::Field<IH_RB_WPTR_ADDR_HI, 24, 0>;  // address bits 56:32, all 25 (errata C2)
};
struct IH_RB_WPTR_ADDR_LO : base::Reg<0, 0x086> {};
struct IH_DOORBELL_RPTR : RingReg<0x087> {
  using OFFSET = base::Field<IH_DOORBELL_RPTR, 25, 0>;  // dword index in the doorbell BAR
  using ENABLE = base::Field<IH_DOORBELL_RPTR, 28, 28, bool>;
};
struct IH_DOORBELL_RETRY_CAM : base::Reg<0, 0x088> {
  using OFFSET = base::Field<IH_DOORBELL_RETRY_CAM, 25, 0>;
  using ENABLE = base::Field<IH_DOORBELL_RETRY_CAM, 28, 28, bool>;
};

struct IH_RETRY_CAM_ACK : base::Reg<0, 0x0a4> {
  using INDEX = base::Field<IH_RETRY_CAM_ACK, 9, 0>;
};
struct IH_VERSION : base::Reg<0, 0x0a5, base::Access::kReadOnly> {
  using MINVER = base::Field<IH_VERSION, 6, 0>;
  using MAJVER = base::Field<IH_VERSION, 14, 8>;
  using REV = base::Field<IH_VERSION, 21, 16>;
};
struct IH_CNTL : base::Reg<0, 0x0a8> {};
struct IH_STORM_CLIENT_LIST_CNTL : base::Reg<0, 0x0aa> {};  // bit n: client n is a storm client
struct IH_LIMIT_INT_RATE_CNTL : base::Reg<0, 0x0ab> {
  using LIMIT_ENABLE = base::Field<IH_LIMIT_INT_RATE_CNTL, 0, 0, bool>;
  using PERF_INTERVAL = base::Field<IH_LIMIT_INT_RATE_CNTL, 4, 1>;
  using PERF_THRESHOLD = base::Field<IH_LIMIT_INT_RATE_CNTL, 15, 5>;
  using RETURN_DELAY = base::Field<IH_LIMIT_INT_RATE_CNTL, 20, 17>;
};
struct IH_RETRY_INT_CAM_CNTL : base::Reg<0, 0x0ac> {
  using CAM_SIZE = base::Field<IH_RETRY_INT_CAM_CNTL, 4, 0>;  // 64 x (CAM_SIZE + 1) entries
  using BACK_PRESSURE_SKID_VALUE = base::Field<IH_RETRY_INT_CAM_CNTL, 13, 8>;
  using ENABLE = base::Field<IH_RETRY_INT_CAM_CNTL, 16, 16, bool>;
  using MM_BACK_PRESSURE_ENABLE = base::Field<IH_RETRY_INT_CAM_CNTL, 17, 17, bool>;
  using GC_BACK_PRESSURE_ENABLE = base::Field<IH_RETRY_INT_CAM_CNTL, 18, 18, bool>;
  using PER_VF_ENTRY_SIZE = base::Field<IH_RETRY_INT_CAM_CNTL, 21, 20>;
  static constexpr unsigned kLargest = 0xF;  // the 1,024 entries that 10 index bits can name
};
inline constexpr unsigned kCamEntries = 1024;

struct IH_CNTL2 : base::Reg<0, 0x0c1> {
  using SELF_IV_FORCE_WPTR_UPDATE_TIMEOUT = base::Field<IH_CNTL2, 4, 0>;
  using SELF_IV_FORCE_WPTR_UPDATE_ENABLE = base::Field<IH_CNTL2, 8, 8, bool>;
};
struct IH_STATUS : base::Reg<0, 0x0c2, base::Access::kReadOnly> {
  using IDLE = base::Field<IH_STATUS, 0, 0, bool>;
  using RB_FULL = base::Field<IH_STATUS, 3, 3, bool>;
  using RB_OVERFLOW = base::Field<IH_STATUS, 5, 5, bool>;
  using RB1_FULL = base::Field<IH_STATUS, 12, 12, bool>;
  using RB1_OVERFLOW = base::Field<IH_STATUS, 14, 14, bool>;
  using RETRY_INT_CAM_IDLE = base::Field<IH_STATUS, 19, 19, bool>;
};
struct IH_INT_FLOOD_CNTL : base::Reg<0, 0x0d5> {
  using HIGHWATER = base::Field<IH_INT_FLOOD_CNTL, 2, 0>;
  using FLOOD_CNTL_ENABLE = base::Field<IH_INT_FLOOD_CNTL, 3, 3, bool>;
};
struct IH_MSI_STORM_CTRL : base::Reg<0, 0x0f1> {
  using DELAY = base::Field<IH_MSI_STORM_CTRL, 11, 0>;
};
struct IH_RING1_CLIENT_CFG_INDEX : base::Reg<0, 0x122> {
  using INDEX = base::Field<IH_RING1_CLIENT_CFG_INDEX, 2, 0>;
};
struct IH_RING1_CLIENT_CFG_DATA : base::Reg<0, 0x123> {
  using CLIENT_ID = base::Field<IH_RING1_CLIENT_CFG_DATA, 7, 0>;
  using SOURCE_ID = base::Field<IH_RING1_CLIENT_CFG_DATA, 15, 8>;
  using SOURCE_ID_MATCH_ENABLE = base::Field<IH_RING1_CLIENT_CFG_DATA, 16, 16, bool>;
};
struct IH_CHICKEN : base::Reg<0, 0x129> {
  using MC_SPACE_FBPA_ENABLE = base::Field<IH_CHICKEN, 3, 3, bool>;
  using MC_SPACE_GPA_ENABLE = base::Field<IH_CHICKEN, 4, 4, bool>;
};

}  // namespace gpuumd::osssys
