// What crosses the socket of the vfio-user protocol, as this client speaks it (docs/vfio-user.md).
// All words are of the host's endianness, which is little-endian here (base/bytes.h). Structures
// are copied to and from byte buffers, never cast onto them. Payload offsets count from the end of
// the header.
#pragma once

#include <cstdint>
#include <string_view>

#include "vfio/capability_chain.h"

namespace vfio::wire {

enum class Command : std::uint16_t {
  kVersion = 1,
  kDmaMap = 2,
  kDmaUnmap = 3,
  kDeviceGetInfo = 4,
  kDeviceGetRegionInfo = 5,
  kDeviceGetIrqInfo = 7,
  kDeviceSetIrqs = 8,
  kRegionRead = 9,
  kRegionWrite = 10,
  kDmaRead = 11,   // server to client
  kDmaWrite = 12,  // server to client
  kDeviceReset = 13,
};

constexpr std::string_view to_string(Command command) {
  switch (command) {
    case Command::kVersion:
      return "VERSION";
    case Command::kDmaMap:
      return "DMA_MAP";
    case Command::kDmaUnmap:
      return "DMA_UNMAP";
    case Command::kDeviceGetInfo:
      return "DEVICE_GET_INFO";
    case Command::kDeviceGetRegionInfo:
      return "DEVICE_GET_REGION_INFO";
    case Command::kDeviceGetIrqInfo:
      return "DEVICE_GET_IRQ_INFO";
    case Command::kDeviceSetIrqs:
      return "DEVICE_SET_IRQS";
    case Command::kRegionRead:
      return "REGION_READ";
    case Command::kRegionWrite:
      return "REGION_WRITE";
    case Command::kDmaRead:
      return "DMA_READ";
    case Command::kDmaWrite:
      return "DMA_WRITE";
    case Command::kDeviceReset:
      return "DEVICE_RESET";
  }
  return "unknown command";
}

inline constexpr std::uint32_t kTypeMask = 0xf;
inline constexpr std::uint32_t kTypeCommand = 0;
inline constexpr std::uint32_t kTypeReply = 1;
inline constexpr std::uint32_t kNoReply = 1u << 4;
inline constexpr std::uint32_t kError = 1u << 5;

struct Header {
  std::uint16_t id;  // the sender's; echoed in the reply
  std::uint16_t command;
  std::uint32_t size;   // of the whole message, header included
  std::uint32_t flags;  // type, kNoReply, kError
  std::uint32_t error;  // errno in a reply with kError; may be 0 even then
};
static_assert(sizeof(Header) == 16);

inline constexpr std::uint16_t kMajor = 0;
inline constexpr std::uint16_t kMinor = 1;  // the highest that we speak

// Followed by JSON text with a terminating NUL, or by nothing.
struct Version {
  std::uint16_t major;
  std::uint16_t minor;
};
static_assert(sizeof(Version) == 4);

inline constexpr std::uint32_t kDmaReadable = 1;
inline constexpr std::uint32_t kDmaWriteable = 2;

struct DmaMap {
  std::uint32_t argsz;
  std::uint32_t flags;
  std::uint64_t offset;  // in the descriptor that comes with the message
  std::uint64_t address;
  std::uint64_t size;
};
static_assert(sizeof(DmaMap) == 32);

struct DmaUnmap {  // the reply repeats it
  std::uint32_t argsz;
  std::uint32_t flags;
  std::uint64_t address;
  std::uint64_t size;
};
static_assert(sizeof(DmaUnmap) == 24);

inline constexpr std::uint32_t kDeviceCanReset = 1;
inline constexpr std::uint32_t kDeviceIsPci = 2;

struct DeviceInfo {
  std::uint32_t argsz;
  std::uint32_t flags;
  std::uint32_t region_count;
  std::uint32_t irq_count;
};
static_assert(sizeof(DeviceInfo) == 16);

// Regions 0-5 are the BARs.
inline constexpr std::uint32_t kConfigRegion = 7;

inline constexpr std::uint32_t kRegionReadable = 1;
inline constexpr std::uint32_t kRegionWriteable = 2;
inline constexpr std::uint32_t kRegionMappable = 4;  // a descriptor comes with the reply
inline constexpr std::uint32_t kRegionHasCapabilities = 8;

struct RegionInfo {
  std::uint32_t argsz;  // request: room for the reply; reply: what the whole reply needs
  std::uint32_t flags;
  std::uint32_t index;
  std::uint32_t capability_offset;  // from the start of this structure
  std::uint64_t size;
  std::uint64_t offset;  // of the region in the descriptor
};
static_assert(sizeof(RegionInfo) == 32);

// Capabilities follow, as the kernel's VFIO has them.
using vfio::CapabilityHeader;
using vfio::kCapabilitySparseMmap;
using vfio::SparseArea;
using vfio::SparseMmap;

inline constexpr std::uint32_t kIntxIndex = 0;
inline constexpr std::uint32_t kMsixIndex = 2;

inline constexpr std::uint32_t kIrqEventfd = 1;
inline constexpr std::uint32_t kIrqNoResize = 8;

struct IrqInfo {
  std::uint32_t argsz;
  std::uint32_t flags;
  std::uint32_t index;
  std::uint32_t count;
};
static_assert(sizeof(IrqInfo) == 16);

inline constexpr std::uint32_t kIrqDataNone = 1;
inline constexpr std::uint32_t kIrqDataEventfd = 4;
inline constexpr std::uint32_t kIrqActionUnmask = 16;
inline constexpr std::uint32_t kIrqActionTrigger = 32;

struct IrqSet {
  std::uint32_t argsz;
  std::uint32_t flags;
  std::uint32_t index;
  std::uint32_t start;
  std::uint32_t count;
};
static_assert(sizeof(IrqSet) == 20);

struct RegionAccess {  // data follows in a write and in the reply to a read
  std::uint64_t offset;
  std::uint32_t region;
  std::uint32_t count;
};
static_assert(sizeof(RegionAccess) == 16);

struct DmaAccess {  // data follows in a write and in the reply to a read
  std::uint64_t address;
  std::uint64_t count;
};
static_assert(sizeof(DmaAccess) == 16);

}  // namespace vfio::wire
