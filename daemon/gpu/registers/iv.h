// The interrupt vector: 8 dwords that the device writes to the interrupt ring. First reading of
// docs/hardware/ih.md. Everything in it is input from the device.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "base/address.h"
#include "base/register.h"

namespace gpuumd {

namespace iv {

struct DW0 : base::Record<std::uint32_t> {
  using CLIENT_ID = base::Field<DW0, 7, 0>;
  using SOURCE_ID = base::Field<DW0, 15, 8>;
  using RING_ID = base::Field<DW0, 23, 16>;
  using VMID = base::Field<DW0, 27, 24>;
  using VMID_SRC = base::Field<DW0, 31, 31>;  // 0 GFXHUB, 1 MMHUB
};
struct DW2 : base::Record<std::uint32_t> {
  using TIMESTAMP_HI = base::Field<DW2, 15, 0>;
  using TIMESTAMP_SRC = base::Field<DW2, 31, 31>;
};
struct DW3 : base::Record<std::uint32_t> {
  using PASID = base::Field<DW3, 15, 0>;
  using NODE_ID = base::Field<DW3, 23, 16>;
  using FORCE_PF = base::Field<DW3, 30, 30, bool>;
  using PASID_SRC = base::Field<DW3, 31, 31>;
};

// Page faults of 12.1 (earlier parts have these bits elsewhere: docs/hardware/errata.md C5).
struct FAULT_SRC1 : base::Record<std::uint32_t> {
  using PAGE_56_44 = base::Field<FAULT_SRC1, 12, 0>;  // virtual address bits 56:44
  using EXECUTE = base::Field<FAULT_SRC1, 20, 20, bool>;
  using WRITE = base::Field<FAULT_SRC1, 21, 21, bool>;
  using READ = base::Field<FAULT_SRC1, 22, 22, bool>;
};
struct FAULT_SRC3 : base::Record<std::uint32_t> {
  using CAM_INDEX = base::Field<FAULT_SRC3, 9, 0>;
};

}  // namespace iv

enum class IvClient : std::uint8_t {
  kIh = 0x00,
  kAthub = 0x02,
  kBif = 0x03,
  kRlc = 0x07,
  kGfx = 0x0a,
  kImu = 0x0b,
  kVmc = 0x12,
  kGrbmCp = 0x14,
  kGcAid = 0x15,
  kDf = 0x17,
  kLsdma = 0x1a,
  kGcUtcl2 = 0x1b,
  kNht = 0x1c,
  kMp0 = 0x1e,
  kMp1 = 0x1f,
};

// Source ids, by client.
namespace iv {
inline constexpr std::uint8_t kSelf = 0;           // kIh: ring 1 moved on
inline constexpr std::uint8_t kFault = 0;          // kVmc, kGcUtcl2
inline constexpr std::uint8_t kRetryFault = 1;     // kVmc, kGcUtcl2
inline constexpr std::uint8_t kRemote = 0;         // kNht
inline constexpr std::uint8_t kPspRequest = 0xFF;  // kMp0
inline constexpr std::uint8_t kMemoryError = 0;    // kDf
// kGfx:
inline constexpr std::uint8_t kSdmaAtomicReturn = 0x30;
inline constexpr std::uint8_t kSdmaTrap = 0x31;
inline constexpr std::uint8_t kSdmaProtectedWrite = 0x32;
inline constexpr std::uint8_t kSdmaContextEmpty = 0x33;
inline constexpr std::uint8_t kSdmaBadDoorbell = 0x36;
inline constexpr std::uint8_t kSdmaQueueHang = 0x37;
inline constexpr std::uint8_t kSdmaAtomicTimeout = 0x38;
inline constexpr std::uint8_t kSdmaPollTimeout = 0x39;
inline constexpr std::uint8_t kSdmaPageRetryTimeout = 0x3A;
inline constexpr std::uint8_t kSdmaPageNull = 0x3B;
inline constexpr std::uint8_t kSdmaPageFault = 0x3C;
inline constexpr std::uint8_t kSdmaVmHole = 0x3D;
inline constexpr std::uint8_t kSdmaEcc = 0x3E;
inline constexpr std::uint8_t kSdmaFrozen = 0x3F;
inline constexpr std::uint8_t kSdmaSramEcc = 0x40;
inline constexpr std::uint8_t kSdmaWptrBehind = 0x43;
inline constexpr std::uint8_t kSdmaBadCommand = 0x44;
inline constexpr std::uint8_t kSdmaUserFence = 0x46;
inline constexpr std::uint8_t kRemoteError = 0xE7;  // src_data[0] bit 0: of nHT
}  // namespace iv

// A copy of one vector, made once out of the ring.
struct InterruptVector {
  static constexpr std::uint32_t kBytes = 32;
  std::array<std::uint32_t, 8> dwords{};

  base::Value<iv::DW0> dw0() const { return base::Value<iv::DW0>(dwords[0]); }
  base::Value<iv::DW3> dw3() const { return base::Value<iv::DW3>(dwords[3]); }

  // May be a number that IvClient has no name for.
  IvClient client() const { return IvClient(dw0().get<iv::DW0::CLIENT_ID>()); }
  std::uint8_t source() const { return static_cast<std::uint8_t>(dw0().get<iv::DW0::SOURCE_ID>()); }
  std::uint8_t ring_id() const { return static_cast<std::uint8_t>(dw0().get<iv::DW0::RING_ID>()); }
  base::Vmid vmid() const {
    return base::Vmid(static_cast<std::uint8_t>(dw0().get<iv::DW0::VMID>()));
  }
  base::Pasid pasid() const {
    return base::Pasid(static_cast<std::uint16_t>(dw3().get<iv::DW3::PASID>()));
  }
  std::uint8_t node() const { return static_cast<std::uint8_t>(dw3().get<iv::DW3::NODE_ID>()); }
  std::uint64_t timestamp() const {  // 100 MHz, 48 bits
    const auto high = base::Value<iv::DW2>(dwords[2]).get<iv::DW2::TIMESTAMP_HI>();
    return high << 32 | dwords[1];
  }
  std::uint32_t source_data(unsigned n) const { return dwords[4 + n]; }
};
static_assert(sizeof(InterruptVector) == InterruptVector::kBytes);
static_assert(std::is_trivially_copyable_v<InterruptVector>);

}  // namespace gpuumd
