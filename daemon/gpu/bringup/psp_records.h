// What the security processor and the driver write for each other. First reading of
// docs/hardware/psp.md. Pure: bytes in, values out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/address.h"
#include "base/result.h"
#include "daemon/gpu/registers/iv.h"

namespace gpuumd::psp {

enum class CommandId : std::uint32_t {
  kGetInterfaceVersion = 0x53,
  kGetConfig = 0x54,
  kSetPhysicalPod = 0x55,
  kSetVirtualPod = 0x56,
  kSetStation = 0x57,
  kSetNpa = 0x59,
  kSendCompletion = 0x5A,
};

// Ring frame: byte offsets.
namespace frame {
inline constexpr std::size_t kBytes = 64;
inline constexpr std::size_t kCommandLo = 0, kCommandHi = 4, kCommandSize = 8;
inline constexpr std::size_t kFenceLo = 12, kFenceHi = 16, kFenceValue = 20;
inline constexpr std::size_t kSessionLo = 24, kSessionHi = 28, kVmid = 32, kType = 33;
}  // namespace frame

// Command buffer: byte offsets.
namespace command {
inline constexpr std::size_t kBytes = 1024;
inline constexpr std::size_t kSize = 0, kVersion = 4, kId = 8, kBody = 28;
inline constexpr std::size_t kBodyBytes = 864 - kBody;
inline constexpr std::size_t kStatus = 864, kResponse = 864 + 64;
inline constexpr std::size_t kResponseBytes = kBytes - kResponse;
inline constexpr std::uint32_t kVersionValue = 1;
}  // namespace command

inline constexpr std::uint32_t kNewestInterface = 0x0001FFFF;  // that the driver speaks
inline constexpr std::size_t kConfigBytes = 180;
inline constexpr unsigned kMaxAccelerators = 1024;
inline constexpr unsigned kLocalAccelerators = 16;  // docs/hardware/errata.md C10

enum class LinkType : std::uint32_t { kUaloe = 0, kUalink = 1 };
enum class ConfigState : std::uint32_t {
  kIdle = 0,
  kPhysicalPod = 1,
  kVirtualPod = 2,
  kPause = 3,
  kStation = 4,
  kComplete = 5,
  kInvalid = 0xFF,
};

struct PhysicalPod {
  std::array<std::byte, 16> id{};
  std::uint32_t size = 0;
  std::uint32_t bandwidth = 0;
  std::uint32_t latency = 0;
};
struct VirtualPod {
  std::uint32_t id = 0;
  std::uint32_t size = 0;
  std::array<std::uint32_t, 32> active{};  // bit a: accelerator a is a member
  std::uint32_t address_mode = 0;

  bool member(base::AccelId id) const {
    return id.value() < kMaxAccelerators && (active[id.value() / 32] >> (id.value() % 32) & 1) != 0;
  }
};

// The record that kGetConfig returns.
struct Config {
  LinkType link_type{};
  std::optional<base::AccelId> accel_id;  // none while unconfigured
  PhysicalPod ppod;
  std::optional<VirtualPod> vpod;  // none by either sentinel (docs/hardware/errata.md C11)
  std::uint32_t address_mode = 0;
  ConfigState state{};
};

// kProtocol names the field that makes no sense: a link type, state or accelerator id that does not
// exist. `record` may be shorter than a record.
base::Result<Config> parse_config(std::span<const std::byte> record);

struct InterfaceVersion {
  std::uint16_t major = 0, minor = 0;
};

// What the processor asks by an interrupt.
struct Request {
  enum class Category : std::uint8_t { kCommand = 1, kNotification = 2 };
  enum class Kind : std::uint8_t { kConfigUpdate = 1, kPause = 2, kResume = 3 };
  Category category{};
  Kind kind{};
};
// Nothing for a vector of another client or source, or with an unknown category or command.
std::optional<Request> decode_request(const InterruptVector& vector);

}  // namespace gpuumd::psp
