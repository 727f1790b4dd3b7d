// The seven messages that two drivers exchange, four dwords each (docs/hardware/nht.md,
// "Messages").
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <variant>

#include "fabric/handle.h"
#include "fabric/types.h"

namespace fabric {

using Dwords = std::array<std::uint32_t, 4>;

enum class MessageType : std::uint32_t {
  kHello = 1,
  kHelloAck = 2,
  kNpaReq = 3,
  kNpaRsp = 4,
  kNpaFail = 5,
  kNpaRevoke = 6,
  kNpaRelease = 7,
};

// What two gpuumd nodes tell each other in fields that others leave zero and ignore (U06).
struct Extension {
  std::uint32_t capabilities = 0;
  std::uint32_t nonce = 0;  // not 0
  friend bool operator==(const Extension&, const Extension&) = default;
};
inline constexpr std::uint32_t kVoluntaryRelease = 1U << 0;
inline constexpr std::uint32_t kRepeatedRequest = 1U << 1;
inline constexpr std::uint32_t kOwnCapabilities = kVoluntaryRelease | kRepeatedRequest;
// What an ACK repeats of a HELLO's nonce.
constexpr std::uint32_t echo_of(std::uint32_t nonce) { return nonce & 0x3F'FFFF; }

struct Hello {
  AccelId receiver;
  AccelId sender;
  std::optional<Extension> extension;
  friend bool operator==(const Hello&, const Hello&) = default;
};
// No ids: the sender is the vector's PASID alone (U01).
struct HelloAck {
  std::optional<Extension> extension;
  std::uint32_t echo = 0;  // means something only with an extension
  friend bool operator==(const HelloAck&, const HelloAck&) = default;
};
struct NpaReq {
  Handle handle;
  friend bool operator==(const NpaReq&, const NpaReq&) = default;
};
struct NpaRsp {
  std::uint64_t handle_lo = 0;
  std::uint32_t pages = 0;
  std::uint32_t page = 0;  // inside the exporter's window
  friend bool operator==(const NpaRsp&, const NpaRsp&) = default;
};
enum class FailReason : std::uint8_t {
  kNoSpace = 1,
  kUnknownHandle = 2,
  kDuplicate = 3,
  kOther = 4
};
struct NpaFail {
  std::uint64_t handle_lo = 0;
  FailReason reason = FailReason::kOther;
  friend bool operator==(const NpaFail&, const NpaFail&) = default;
};
struct NpaRevoke {
  Handle handle;
  friend bool operator==(const NpaRevoke&, const NpaRevoke&) = default;
};
struct NpaRelease {
  Handle handle;
  friend bool operator==(const NpaRelease&, const NpaRelease&) = default;
};
using Message = std::variant<Hello, HelloAck, NpaReq, NpaRsp, NpaFail, NpaRevoke, NpaRelease>;

Dwords encode(const Message& message);
// nullopt for an unknown type. The type covers bits 9:0 of the handle; they are put back: REQ and
// RELEASE name an export of `self`, the others one of `sender`.
std::optional<Message> decode(const Dwords& dwords, AccelId self, AccelId sender);

// What the importer makes of a FAIL.
Errc to_errc(FailReason reason);

}  // namespace fabric
