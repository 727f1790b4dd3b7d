#include "fabric/message.h"

namespace fabric {
namespace {

constexpr std::uint32_t kTypeMask = 0x3FF;
constexpr std::uint32_t kMagic = 0x5547;
constexpr std::uint32_t kExtensionWord = kMagic << 16 | 1U << 8;

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};

std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
std::uint32_t high(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }

std::uint32_t first(MessageType type, std::uint64_t handle_lo) {
  return (low(handle_lo) & ~kTypeMask) | static_cast<std::uint32_t>(type);
}

Dwords with_handle(MessageType type, const Handle& handle) {
  return {first(type, handle.lo), high(handle.lo), low(handle.hi), high(handle.hi)};
}

Dwords with_extension(std::uint32_t dword0, const std::optional<Extension>& extension) {
  if (!extension) return {dword0, 0, 0, 0};
  return {dword0, kExtensionWord, extension->capabilities, extension->nonce};
}

// A nonce of 0 cannot be echoed, so it is none.
std::optional<Extension> extension_of(const Dwords& dwords) {
  if (dwords[1] >> 16 != kMagic || (dwords[1] >> 8 & 0xFF) == 0 || dwords[3] == 0) {
    return std::nullopt;
  }
  return Extension{.capabilities = dwords[2], .nonce = dwords[3]};
}

std::uint64_t handle_lo_of(const Dwords& dwords, AccelId exporter) {
  return static_cast<std::uint64_t>(dwords[1]) << 32 | (dwords[0] & ~kTypeMask) |
         (exporter.value() & kTypeMask);
}

Handle handle_of(const Dwords& dwords, AccelId exporter) {
  return {.lo = handle_lo_of(dwords, exporter),
          .hi = static_cast<std::uint64_t>(dwords[3]) << 32 | dwords[2]};
}

// Reasons that nobody defined count as "other" (U33).
FailReason reason_of(std::uint32_t dword2) {
  const std::uint32_t reason = dword2 & 0xFF;
  return reason >= 1 && reason <= 3 ? static_cast<FailReason>(reason) : FailReason::kOther;
}

}  // namespace

Dwords encode(const Message& message) {
  return std::visit(
      Overloaded{
          [](const Hello& m) {
            return with_extension(static_cast<std::uint32_t>(MessageType::kHello) |
                                      static_cast<std::uint32_t>(m.receiver.value()) << 10 |
                                      static_cast<std::uint32_t>(m.sender.value()) << 20,
                                  m.extension);
          },
          [](const HelloAck& m) {
            const std::uint32_t echo = m.extension ? echo_of(m.echo) << 10 : 0;
            return with_extension(static_cast<std::uint32_t>(MessageType::kHelloAck) | echo,
                                  m.extension);
          },
          [](const NpaReq& m) { return with_handle(MessageType::kNpaReq, m.handle); },
          [](const NpaRsp& m) {
            return Dwords{first(MessageType::kNpaRsp, m.handle_lo), high(m.handle_lo), m.pages,
                          m.page};
          },
          [](const NpaFail& m) {
            return Dwords{first(MessageType::kNpaFail, m.handle_lo), high(m.handle_lo),
                          static_cast<std::uint32_t>(m.reason), 0};
          },
          [](const NpaRevoke& m) { return with_handle(MessageType::kNpaRevoke, m.handle); },
          [](const NpaRelease& m) { return with_handle(MessageType::kNpaRelease, m.handle); },
      },
      message);
}

std::optional<Message> decode(const Dwords& dwords, AccelId self, AccelId sender) {
  switch (static_cast<MessageType>(dwords[0] & kTypeMask)) {
    case MessageType::kHello:
      return Hello{.receiver = AccelId(dwords[0] >> 10 & 0x3FF),
                   .sender = AccelId(dwords[0] >> 20 & 0x3FF),
                   .extension = extension_of(dwords)};
    case MessageType::kHelloAck:
      return HelloAck{.extension = extension_of(dwords), .echo = dwords[0] >> 10};
    case MessageType::kNpaReq:
      return NpaReq{handle_of(dwords, self)};
    case MessageType::kNpaRsp:
      return NpaRsp{handle_lo_of(dwords, sender), dwords[2], dwords[3]};
    case MessageType::kNpaFail:
      return NpaFail{handle_lo_of(dwords, sender), reason_of(dwords[2])};
    case MessageType::kNpaRevoke:
      return NpaRevoke{handle_of(dwords, sender)};
    case MessageType::kNpaRelease:
      return NpaRelease{handle_of(dwords, self)};
  }
  return std::nullopt;
}

Errc to_errc(FailReason reason) {
  switch (reason) {
    case FailReason::kNoSpace:
      return Errc::kNoSpace;
    case FailReason::kUnknownHandle:
      return Errc::kNotFound;
    case FailReason::kDuplicate:
      return Errc::kExists;
    case FailReason::kOther:
      break;
  }
  return Errc::kRefused;
}

}  // namespace fabric
