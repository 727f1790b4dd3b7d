// Errors are values: Result<T> is either a T or an Error that says what failed, at which step, and
// with which errno. Asserts are for mistakes of our own, never for what a client, a peer or a
// device sent.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace base {

// What went wrong, in terms of what the caller can do about it. The public codes of gpuumd.h are
// made from these in one place (daemon/ipc).
enum class Errc : std::uint8_t {
  kInvalidArgument = 1,  // the request itself is wrong: size 0, misaligned, unknown flag
  kOutOfRange,           // past the end of a buffer, of the address space, of a table
  kExists,               // the range or name is taken
  kNotFound,             // no such object
  kPermission,           // the caller may not
  kBusy,                 // somebody else holds it
  kNoMemory,             // host memory, descriptors or a kernel limit
  kNoSpace,              // VRAM, NPA or address space is used up
  kLimit,                // the caller's own limit is reached
  kTimeout,              // not done by its deadline
  kDisconnected,         // the other process is gone
  kDeviceLost,           // the device does not answer any more, or answers nonsense
  kDeviceError,          // the device answered that it failed
  kProtocol,             // the other side broke the protocol
  kUnsupported,          // the device or the build cannot do this
  kRevoked,              // the exporter took the memory back
  kPeerLost,             // the remote accelerator is gone
  kRefused,              // the remote accelerator refused the access
  kFault,                // the GPU touched an address without a mapping or a right
  kReset,                // the engine was reset while the work was in flight
  kAgain,                // try again later: a transient shortage
  kSystem,               // a system call failed; errno says how
};

constexpr std::string_view to_string(Errc code) {
  switch (code) {
    case Errc::kInvalidArgument:
      return "invalid argument";
    case Errc::kOutOfRange:
      return "out of range";
    case Errc::kExists:
      return "exists";
    case Errc::kNotFound:
      return "not found";
    case Errc::kPermission:
      return "no permission";
    case Errc::kBusy:
      return "busy";
    case Errc::kNoMemory:
      return "out of host memory";
    case Errc::kNoSpace:
      return "out of space";
    case Errc::kLimit:
      return "limit reached";
    case Errc::kTimeout:
      return "timed out";
    case Errc::kDisconnected:
      return "disconnected";
    case Errc::kDeviceLost:
      return "device lost";
    case Errc::kDeviceError:
      return "device error";
    case Errc::kProtocol:
      return "protocol error";
    case Errc::kUnsupported:
      return "not supported";
    case Errc::kRevoked:
      return "revoked";
    case Errc::kPeerLost:
      return "peer lost";
    case Errc::kRefused:
      return "refused by the peer";
    case Errc::kFault:
      return "GPU fault";
    case Errc::kReset:
      return "reset";
    case Errc::kAgain:
      return "try again";
    case Errc::kSystem:
      return "system call failed";
  }
  return "unknown error";
}

// `step` names the thing that failed in words a user can act on ("VERSION reply", "VRAM buffer of
// 3 GiB"); `sys` is an errno or 0.
struct Error {
  Errc code;
  int sys = 0;
  std::string step;

  // "VERSION reply: timed out" or "open /dev/vfio/7: system call failed (errno 13)".
  std::string message() const {
    std::string text = step;
    if (!text.empty()) text += ": ";
    text += to_string(code);
    if (sys != 0) text += " (errno " + std::to_string(sys) + ")";
    return text;
  }
};

// [[nodiscard]] over std::expected, which GCC 12's is not.
template <class T>
class [[nodiscard]] Result : public std::expected<T, Error> {
 public:
  using std::expected<T, Error>::expected;
  // Lets `return value;` work for a T that is itself built from something convertible.
  Result(std::expected<T, Error> other) : std::expected<T, Error>(std::move(other)) {}
  Result()
    requires std::is_void_v<T> || std::is_default_constructible_v<T>
  = default;
};

inline std::unexpected<Error> fail(Errc code, std::string step, int sys = 0) {
  return std::unexpected(Error{code, sys, std::move(step)});
}

// Passes an error on, with the step that was being done put in front of it.
inline std::unexpected<Error> fail_within(std::string_view step, Error error) {
  error.step = error.step.empty() ? std::string(step) : std::string(step) + ": " + error.step;
  return std::unexpected(std::move(error));
}

}  // namespace base
