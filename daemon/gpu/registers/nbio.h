// Registers of NBIO, the bus interface: access windows, doorbell routing, interrupt and memory
// gates. First reading of docs/hardware/pci.md. Prefixes that depend on the function (BIF_BX0_,
// RCC_DEV0_EPF0_, GDC_S2A0_) are left out.
#pragma once

#include <cstdint>

#include "base/register.h"
#include "daemon/gpu/registers/register_io.h"

namespace gpuumd::nbio {

// The windows below work before discovery: segment 0 starts at dword 0 of BAR 5 on every part.
// Access to VRAM: MM_INDEX_HI = address >> 31, MM_INDEX = low 31 bits and bit 31, then MM_DATA.
struct MM_INDEX : base::Reg<0, 0x000> {
  using MM_OFFSET = base::Field<MM_INDEX, 30, 0>;
  using MM_APER = base::Field<MM_INDEX, 31, 31, bool>;  // true: VRAM, false: registers
};
struct MM_DATA : base::Reg<0, 0x001> {};
struct MM_INDEX_HI : base::Reg<0, 0x006> {};

// Access to SMN, by byte address: index high (if not 0), index, then data.
struct PCIE_INDEX2 : base::Reg<0, 0x00E> {};
struct PCIE_DATA2 : base::Reg<0, 0x00F> {};
struct PCIE_INDEX2_HI : base::Reg<0, 0x011> {};

struct BIOS_SCRATCH : base::Reg<1, 0x038, base::Access::kReadWrite, 1> {};
struct DRIVER_SCRATCH : base::Reg<1, 0x080, base::Access::kReadWrite, 1> {};

struct RCC_STRAP0 : base::Reg<2, 0x021, base::Access::kReadOnly> {};
struct RCC_DOORBELL_APER_EN : base::Reg<2, 0x0C0> {
  using BIF_DOORBELL_APER_EN = base::Field<RCC_DOORBELL_APER_EN, 0, 0, bool>;
};
struct RCC_CONFIG_MEMSIZE : base::Reg<2, 0x0C3, base::Access::kReadOnly> {};  // MiB

struct INTERRUPT_CNTL : base::Reg<2, 0x0F1> {
  using IH_DUMMY_RD_OVERRIDE = base::Field<INTERRUPT_CNTL, 0, 0, bool>;
  using IH_DUMMY_RD_EN = base::Field<INTERRUPT_CNTL, 1, 1, bool>;
  using IH_REQ_NONSNOOP_EN = base::Field<INTERRUPT_CNTL, 3, 3, bool>;
};
struct INTERRUPT_CNTL2 : base::Reg<2, 0x0F2> {};  // bus address of the dummy page >> 8

struct DOORBELL_SELFRING_GPA_APER_BASE_HIGH : base::Reg<2, 0x0F3> {};
struct DOORBELL_SELFRING_GPA_APER_BASE_LOW : base::Reg<2, 0x0F4> {};
struct DOORBELL_SELFRING_GPA_APER_CNTL : base::Reg<2, 0x0F5> {
  using EN = base::Field<DOORBELL_SELFRING_GPA_APER_CNTL, 0, 0, bool>;
  using MODE = base::Field<DOORBELL_SELFRING_GPA_APER_CNTL, 1, 1>;
  using SIZE = base::Field<DOORBELL_SELFRING_GPA_APER_CNTL, 19, 8>;
};

struct HDP_REG_COHERENCY_FLUSH_CNTL : base::Reg<2, 0x0F6> {};
struct HDP_MEM_COHERENCY_FLUSH_CNTL : base::Reg<2, 0x0F7> {};
struct BIF_DOORBELL_CNTL : base::Reg<2, 0x0FD> {};
struct BIF_DOORBELL_INT_CNTL : base::Reg<2, 0x0FE> {};
struct BIF_FB_EN : base::Reg<2, 0x100> {
  using FB_READ_EN = base::Field<BIF_FB_EN, 0, 0, bool>;
  using FB_WRITE_EN = base::Field<BIF_FB_EN, 1, 1, bool>;
};
struct GPU_HDP_FLUSH_REQ : base::Reg<2, 0x106> {};
struct GPU_HDP_FLUSH_DONE : base::Reg<2, 0x107, base::Access::kReadOnly> {};
struct BIF_TRANS_PENDING : base::Reg<2, 0x108, base::Access::kReadOnly> {};
struct PARTITION_COMPUTE_CAP : base::Reg<2, 0x161, base::Access::kReadOnly> {};
struct PARTITION_MEM_CAP : base::Reg<2, 0x162, base::Access::kReadOnly> {};
struct PARTITION_COMPUTE_STATUS : base::Reg<2, 0x163> {};
struct PARTITION_MEM_STATUS : base::Reg<2, 0x164> {};

// Doorbell routing: entry n sends [FIRST, FIRST + SIZE) of the doorbell BAR's dwords to a consumer.
enum class DoorbellConsumer : std::uint8_t {
  kInterruptHandler = 0x0,
  kGraphics = 0x3,
  kSdma = 0xE
};
inline constexpr unsigned kIhEntry = 1;
inline constexpr unsigned kSdmaEntry = 6;
inline constexpr unsigned kS2aEntries = 7;

struct S2A_DOORBELL_ENTRY_CTRL : base::Reg<2, 0x1CB, base::Access::kReadWrite, 2> {
  using ENABLE = base::Field<S2A_DOORBELL_ENTRY_CTRL, 0, 0, bool>;
  using AWID = base::Field<S2A_DOORBELL_ENTRY_CTRL, 5, 1, DoorbellConsumer>;
  using FENCE_ENABLE = base::Field<S2A_DOORBELL_ENTRY_CTRL, 6, 6, bool>;
  using RANGE_OFFSET = base::Field<S2A_DOORBELL_ENTRY_CTRL, 16, 7>;  // first dword
  using RANGE_SIZE = base::Field<S2A_DOORBELL_ENTRY_CTRL, 24, 17>;   // dwords
  using NO_64BIT = base::Field<S2A_DOORBELL_ENTRY_CTRL, 25, 25, bool>;
  using SUBTRACT_OFFSET = base::Field<S2A_DOORBELL_ENTRY_CTRL, 26, 26, bool>;
  using DROP = base::Field<S2A_DOORBELL_ENTRY_CTRL, 27, 27, bool>;
  using AWADDR_31_28 = base::Field<S2A_DOORBELL_ENTRY_CTRL, 31, 28>;
};
struct S2A_DOORBELL_ENTRY_CTRL1 : base::Reg<2, 0x1CC, base::Access::kReadWrite, 2> {
  using TARGET_PORT_TYPE = base::Field<S2A_DOORBELL_ENTRY_CTRL1, 1, 0>;
  static constexpr unsigned kPortType = 3;  // the one in use for every consumer
};
struct DOORBELL_ACCESS_EN_PF : base::Reg<2, 0x1F7> {
  static constexpr std::uint32_t kAll = 0x000FFFFF;
};

// Where doorbells lie in their BAR, in dwords (docs/hardware/pci.md, "Doorbells").
inline constexpr std::uint32_t kIhRing0Doorbell = 0x340;
inline constexpr std::uint32_t kIhRing1Doorbell = 0x342;
inline constexpr std::uint32_t kRetryCamDoorbell = 0x344;
inline constexpr std::uint32_t kIhDoorbells = 8;
inline constexpr std::uint32_t kSdmaDoorbells = 0x200;    // of engine 0
inline constexpr std::uint32_t kSdmaDoorbellStep = 20;    // dwords an engine
inline constexpr std::uint32_t kSdmaDoorbellsMax = 0xFF;  // what RANGE_SIZE can say

// `engine` counts SDMA instances through all XCCs.
constexpr std::uint32_t sdma_doorbell(unsigned engine, unsigned queue) {
  return kSdmaDoorbells + engine * kSdmaDoorbellStep + queue * 2;
}

constexpr base::Value<S2A_DOORBELL_ENTRY_CTRL> doorbell_route(DoorbellConsumer consumer,
                                                              std::uint32_t first,
                                                              std::uint32_t dwords) {
  using C = S2A_DOORBELL_ENTRY_CTRL;
  return base::Value<C>()
      .with<C::ENABLE>(true)
      .with<C::AWID>(consumer)
      .with<C::RANGE_OFFSET>(first)
      .with<C::RANGE_SIZE>(dwords)
      .with<C::AWADDR_31_28>(static_cast<std::uint64_t>(consumer));
}

}  // namespace gpuumd::nbio
