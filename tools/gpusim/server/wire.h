// The vfio-user protocol as the server sees it (public specification: vfio-user.rst of QEMU and
// libvfio-user). The client in vfio/ has its own reading on purpose; tests/gpusim_server runs one
// against the other. All words are little-endian.
#pragma once

#include <cstdint>

namespace gpusim::wire {

struct Header {
  std::uint16_t id;
  std::uint16_t command;
  std::uint32_t size;  // header included
  std::uint32_t flags;
  std::uint32_t error;  // errno, when kError is set
};
static_assert(sizeof(Header) == 16);

inline constexpr std::uint32_t kTypeMask = 0xF;
inline constexpr std::uint32_t kCommand = 0;
inline constexpr std::uint32_t kReply = 1;
inline constexpr std::uint32_t kNoReply = 1u << 4;
inline constexpr std::uint32_t kError = 1u << 5;

enum Command : std::uint16_t {
  kVersion = 1,
  kDmaMap = 2,
  kDmaUnmap = 3,
  kDeviceGetInfo = 4,
  kGetRegionInfo = 5,
  kGetRegionIoFds = 6,
  kGetIrqInfo = 7,
  kSetIrqs = 8,
  kRegionRead = 9,
  kRegionWrite = 10,
  kDmaRead = 11,
  kDmaWrite = 12,
  kDeviceReset = 13,
};

inline constexpr std::uint16_t kMajor = 0;

struct Version {
  std::uint16_t major;
  std::uint16_t minor;
  // followed by JSON, NUL-terminated
};

struct DmaMap {
  std::uint32_t argsz;
  std::uint32_t flags;
  std::uint64_t offset;
  std::uint64_t address;
  std::uint64_t size;
};
inline constexpr std::uint32_t kDmaReadable = 1;
inline constexpr std::uint32_t kDmaWritable = 2;

struct DmaUnmap {
  std::uint32_t argsz;
  std::uint32_t flags;
  std::uint64_t address;
  std::uint64_t size;
};
inline constexpr std::uint32_t kUnmapDirtyBitmap = 1;
inline constexpr std::uint32_t kUnmapAll = 2;

struct DeviceInfo {
  std::uint32_t argsz;
  std::uint32_t flags;
  std::uint32_t num_regions;
  std::uint32_t num_irqs;
};
inline constexpr std::uint32_t kDeviceCanReset = 1;
inline constexpr std::uint32_t kDevicePci = 2;

struct RegionInfo {
  std::uint32_t argsz;
  std::uint32_t flags;
  std::uint32_t index;
  std::uint32_t cap_offset;
  std::uint64_t size;
  std::uint64_t offset;
};
inline constexpr std::uint32_t kRegionReadable = 1;
inline constexpr std::uint32_t kRegionWritable = 2;
inline constexpr std::uint32_t kRegionMmap = 4;
inline constexpr std::uint32_t kRegionCaps = 8;

struct SparseMmap {
  std::uint16_t id;  // 1
  std::uint16_t version;
  std::uint32_t next;
  std::uint32_t areas;
  std::uint32_t reserved;
  // followed by the areas
};
struct SparseArea {
  std::uint64_t offset;
  std::uint64_t size;
};

struct RegionIoFds {
  std::uint32_t argsz;
  std::uint32_t flags;
  std::uint32_t index;
  std::uint32_t count;
};

struct IrqInfo {
  std::uint32_t argsz;
  std::uint32_t flags;
  std::uint32_t index;
  std::uint32_t count;
};
inline constexpr std::uint32_t kIrqEventfd = 1;
inline constexpr std::uint32_t kIrqMaskable = 2;
inline constexpr std::uint32_t kIrqAutomasked = 4;
inline constexpr std::uint32_t kIrqNoResize = 8;

struct IrqSet {
  std::uint32_t argsz;
  std::uint32_t flags;
  std::uint32_t index;
  std::uint32_t start;
  std::uint32_t count;
};
inline constexpr std::uint32_t kIrqDataNone = 1;
inline constexpr std::uint32_t kIrqDataBool = 2;
inline constexpr std::uint32_t kIrqDataEventfd = 4;
inline constexpr std::uint32_t kIrqActionMask = 8;
inline constexpr std::uint32_t kIrqActionUnmask = 16;
inline constexpr std::uint32_t kIrqActionTrigger = 32;

struct RegionAccess {
  std::uint64_t offset;
  std::uint32_t region;
  std::uint32_t count;
  // followed by the data
};

struct DmaAccess {
  std::uint64_t address;
  std::uint64_t count;
  // followed by the data
};

inline constexpr std::uint32_t kRegions = 9;  // as VFIO's PCI regions
inline constexpr std::uint32_t kConfigRegion = 7;
inline constexpr std::uint32_t kIrqIndexes = 5;  // INTx, MSI, MSI-X, error, request
inline constexpr std::uint32_t kIntxIndex = 0;
inline constexpr std::uint32_t kMsixIndex = 2;

// What we accept and announce.
inline constexpr std::uint32_t kMaxTransfer = 1u << 20;
inline constexpr std::uint32_t kMaxMessage = sizeof(Header) + sizeof(RegionAccess) + kMaxTransfer;
inline constexpr unsigned kMaxFds = 16;
inline constexpr std::uint32_t kMaxDmaMaps = 65535;
// Without an announcement of the peer the specification's defaults hold.
inline constexpr std::uint64_t kDefaultTransfer = 1u << 20;

}  // namespace gpusim::wire
