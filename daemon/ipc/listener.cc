#include "daemon/ipc/listener.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <thread>

#include "gpuumd/wire.h"

namespace gpuumd {
namespace {

using base::Errc;
using base::fail;
using base::Result;
using base::UniqueFd;

constexpr std::chrono::milliseconds kLockPause{20};

std::unexpected<base::Error> system_error(const std::string& what) {
  switch (errno) {
    case ENOENT:
    case ENOTDIR:
      return fail(Errc::kNotFound, what, errno);
    case EACCES:
    case EPERM:
    case EROFS:
      return fail(Errc::kPermission, what, errno);
    default:
      return fail(Errc::kSystem, what, errno);
  }
}

// The lock is flock()'s, which goes with the process however it ends; the pid in the file is for
// the message alone.
Result<UniqueFd> take_lock(const std::string& runtime_dir, std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  const std::string path = runtime_dir + "/" + wire::kLockName;
  UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!lock) return system_error("lock file " + path);
  while (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return system_error("lock file " + path);
    if (std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(kLockPause);
      continue;
    }
    std::array<char, 16> pid{};
    const ssize_t got = ::pread(lock.get(), pid.data(), pid.size() - 1, 0);
    std::string holder(pid.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
    holder = holder.substr(0, holder.find('\n'));
    return fail(Errc::kBusy, "runtime directory " + runtime_dir +
                                 " belongs to the gpuumd with pid " +
                                 (holder.empty() ? "unknown" : holder));
  }
  const std::string text = std::to_string(::getpid()) + "\n";
  if (::ftruncate(lock.get(), 0) != 0 ||
      ::pwrite(lock.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    return system_error("lock file " + path);
  return lock;
}

}  // namespace

Result<Listener> Listener::open(const std::string& runtime_dir, unsigned mode,
                                std::chrono::milliseconds patience) {
  const std::string path = runtime_dir + "/" + wire::kSocketName;
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path))
    return fail(Errc::kInvalidArgument,
                "socket path of " + std::to_string(path.size()) + " bytes is too long: " + path);
  std::memcpy(address.sun_path, path.data(), path.size());
  auto lock = take_lock(runtime_dir, patience);
  if (!lock) return std::unexpected(lock.error());
  // We hold the lock, so that a socket that is there is left over from a daemon that died.
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return system_error("old socket " + path);
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return system_error("socket");
  if (::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
    return system_error("socket " + path);
  if (::chmod(path.c_str(), mode) != 0 || ::listen(socket.get(), 128) != 0)
    return system_error("socket " + path);
  UniqueFd spare(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return Listener(std::move(*lock), std::move(socket), std::move(spare), path);
}

Listener::~Listener() {
  if (socket_) ::unlink(path_.c_str());
}

Result<UniqueFd> Listener::accept() {
  UniqueFd client(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (client) return client;
  if (errno != EMFILE && errno != ENFILE) return fail(Errc::kAgain, "accept", errno);
  const int why = errno;
  spare_.reset();
  client.reset(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  client.reset();
  spare_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return fail(Errc::kLimit, "descriptors of the daemon", why);
}

}  // namespace gpuumd
