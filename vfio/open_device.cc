#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>
#include <utility>

#include "base/fd.h"
#include "vfio/kernel/open_kernel.h"
#include "vfio/pci_device.h"
#include "vfio/user/user_device.h"

namespace vfio {
namespace {

constexpr std::string_view kUserPrefix = "vfio-user:";
constexpr auto kPatience = std::chrono::seconds(1);        // with a busy server
constexpr auto kKernelPatience = std::chrono::seconds(3);  // with a busy device

base::Errc code_of_connect(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED:  // a socket that nobody listens on any more
      return base::Errc::kNotFound;
    case EAGAIN:  // the server takes no further connection
      return base::Errc::kBusy;
    case EACCES:
    case EPERM:
      return base::Errc::kPermission;
    default:
      return base::Errc::kSystem;
  }
}

base::Result<base::UniqueFd> connect_socket(std::string_view path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof(address.sun_path))
    return base::fail(
        base::Errc::kInvalidArgument,
        "a socket path has 1 to " + std::to_string(sizeof(address.sun_path) - 1) + " characters");
  std::memcpy(address.sun_path, path.data(), path.size());
  base::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return base::fail(base::Errc::kSystem, "socket", errno);
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    const int error = errno;
    return base::fail(code_of_connect(error), "connect", error);
  }
  return socket;
}

base::Result<std::unique_ptr<PciDevice>> connect_once(const std::string& name) {
  auto socket = connect_socket(std::string_view(name).substr(kUserPrefix.size()));
  if (!socket) return std::unexpected(socket.error());
  auto device = connect_vfio_user(std::move(*socket), name);
  // A server that has a client already can only hang up: the protocol has no word for it.
  if (!device && device.error().code == base::Errc::kDisconnected)
    return base::fail(base::Errc::kBusy, "the server hangs up, as when it serves another client");
  if (!device) return std::unexpected(device.error());
  return std::unique_ptr<PciDevice>(std::move(*device));
}

base::Result<std::unique_ptr<PciDevice>> open_once(const std::string& name) {
  const auto parsed = KernelName::parse(name);
  if (!parsed) return std::unexpected(parsed.error());
  auto device = open_kernel_device(name, *parsed);
  if (!device) return std::unexpected(device.error());
  return std::unique_ptr<PciDevice>(std::move(*device));
}

}  // namespace

base::Result<std::unique_ptr<PciDevice>> open_device(const std::string& name) {
  const bool user = name.starts_with(kUserPrefix);
  if (!user && !name.starts_with(KernelName::kPrefix))
    return base::fail(base::Errc::kInvalidArgument,
                      "device name not of a known form (vfio-user:PATH, pci:0000:03:00.0)");
  // What a killed process had lives on for a moment: its socket in the kernel's io_uring, which the
  // server serves until then; its VFIO descriptor until the device is reset and its memory
  // unpinned. Who starts again at once is patient.
  const auto deadline = std::chrono::steady_clock::now() + (user ? kPatience : kKernelPatience);
  while (true) {
    auto device = user ? connect_once(name) : open_once(name);
    if (device || device.error().code != base::Errc::kBusy ||
        std::chrono::steady_clock::now() >= deadline)
      return device;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace vfio
