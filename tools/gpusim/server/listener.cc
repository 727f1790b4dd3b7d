#include "tools/gpusim/server/listener.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

namespace gpusim {

namespace {

constexpr int kBacklog = 8;

base::UniqueFd open_spare() { return base::UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

base::UniqueFd stream_socket() {
  return base::UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

bool somebody_listens(const sockaddr_un& address) {
  const base::UniqueFd probe = stream_socket();
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0)
    return true;
  return errno != ECONNREFUSED && errno != ENOENT;
}

}  // namespace

base::Result<Listener> Listener::open(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path)
    return base::fail(base::Errc::kInvalidArgument, "socket path of 1 to 107 bytes: " + path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);

  struct stat status{};
  if (::lstat(path.c_str(), &status) == 0) {
    if (!S_ISSOCK(status.st_mode))
      return base::fail(base::Errc::kInvalidArgument, path + " exists and is no socket");
    if (somebody_listens(address))
      return base::fail(base::Errc::kBusy, path + " is in use by another process");
    ::unlink(path.c_str());
  }
  base::UniqueFd socket = stream_socket();
  if (!socket) return base::fail(base::Errc::kSystem, "socket", errno);
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return base::fail(errno == EADDRINUSE ? base::Errc::kBusy : base::Errc::kSystem, "bind " + path,
                      errno);
  Listener made(path, std::move(socket), open_spare());
  if (::chmod(path.c_str(), 0600) != 0 || ::listen(made.fd(), kBacklog) != 0)
    return base::fail(base::Errc::kSystem, "listen at " + path, errno);
  return made;
}

Listener::Listener(Listener&& other) noexcept
    : path_(std::exchange(other.path_, {})),
      socket_(std::move(other.socket_)),
      spare_(std::move(other.spare_)) {}

Listener::~Listener() {
  if (!path_.empty()) ::unlink(path_.c_str());
}

base::UniqueFd Listener::accept() {
  base::UniqueFd client(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!client && (errno == EMFILE || errno == ENFILE)) {
    spare_.reset();
    base::UniqueFd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    spare_ = open_spare();
  }
  return client;
}

}  // namespace gpusim
