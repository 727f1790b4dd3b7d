// The IP discovery table: which hardware blocks there are, and where their registers lie
// (docs/hardware/discovery.md). Pure: bytes in, table out. The bytes come from the device and may
// be anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "daemon/gpu/registers/register_io.h"

namespace gpuumd::discovery {

enum class HardwareId : std::uint16_t {
  kMp1 = 1,
  kGc = 11,
  kMmhub = 34,
  kAthub = 35,
  kOsssys = 40,
  kHdp = 41,
  kSdma0 = 42,
  kSdma1 = 43,
  kSdma2 = 68,
  kSdma3 = 69,
  kLsdma = 91,
  kNbif = 108,
  kMp0 = 255,
};

struct Version {
  std::uint8_t major = 0, minor = 0, revision = 0;
  friend constexpr auto operator<=>(Version, Version) = default;
};

struct Block {
  HardwareId id{};
  std::uint8_t instance = 0;
  std::uint16_t die = 0;
  Version version;
  std::uint8_t sub_revision = 0, variant = 0;
  // Segment bases in dwords, in order. A segment beyond them, or past what RegisterIo can name, is
  // kAbsent.
  RegisterBlock::Bases bases{};
};

struct Table {
  std::uint16_t binary_major = 0, binary_minor = 0;
  std::uint16_t version = 0;  // of the IP discovery table: 3 or 4
  bool wide_bases = false;
  std::uint16_t dies = 0;
  // In table order, without those that the harvest table takes out.
  std::vector<Block> blocks;
  std::uint32_t harvested = 0;
};

inline constexpr std::size_t kHeaderBytes = 12;          // enough for total_size()
inline constexpr std::size_t kDefaultBytes = 10 * 1024;  // of the binary at the default place
inline constexpr std::uint64_t kFromTop = 64 * 1024;     // which is the size of VRAM minus this

// Whether the bytes start with the binary's signature. Fewer than 4 bytes: no.
bool has_signature(std::span<const std::byte> bytes);

// Bytes of the whole binary as its header says. kProtocol when it is no such binary, or the size is
// impossible. `header` holds at least kHeaderBytes.
base::Result<std::size_t> total_size(std::span<const std::byte> header);

// Parses a whole binary. kProtocol names what is wrong and where; kUnsupported for versions that
// the driver does not know. Never reads outside `binary`.
base::Result<Table> parse(std::span<const std::byte> binary);

}  // namespace gpuumd::discovery
