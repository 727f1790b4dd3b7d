#include "daemon/ipc/share_table.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>

namespace gpuumd {
namespace {

template <class T>
bool socket_option(int descriptor, int name, T& value) {
  socklen_t size = sizeof(value);
  return ::getsockopt(descriptor, SOL_SOCKET, name, &value, &size) == 0 && size == sizeof(value);
}

std::optional<ShareKey> cookie(int descriptor) {
  std::uint64_t value = 0;
  if (!socket_option(descriptor, SO_COOKIE, value)) return std::nullopt;
  return ShareKey(value);
}

}  // namespace

std::optional<ShareKey> identify_share(int descriptor) {
  // Not fstat(): on a file of a FUSE server it waits for that server. The credentials of a pair are
  // those of the process that made it, so that no socket of a client's own making passes.
  int domain = 0;
  ucred maker{};
  if (!socket_option(descriptor, SO_DOMAIN, domain) || domain != AF_UNIX) return std::nullopt;
  if (!socket_option(descriptor, SO_PEERCRED, maker) || maker.pid != ::getpid())
    return std::nullopt;
  return cookie(descriptor);
}

base::Result<std::unique_ptr<ShareTable>> ShareTable::create(
    Reactor& reactor, std::move_only_function<void(ShareKey)> closed) {
  base::UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return base::fail(base::Errc::kSystem, "epoll for buffer descriptors", errno);
  std::unique_ptr<ShareTable> table(new ShareTable(std::move(epoll), std::move(closed)));
  table->watch_ = reactor.watch(table->epoll_.get(), "buffer descriptors", false,
                                [raw = table.get()] { raw->hang_ups(); });
  return table;
}

base::Result<std::pair<ShareKey, base::UniqueFd>> ShareTable::make() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return base::fail(base::Errc::kSystem, "socketpair for a buffer descriptor", errno);
  base::UniqueFd ours(ends[0]), theirs(ends[1]);
  const auto key = cookie(theirs.get());
  if (!key || ::shutdown(ours.get(), SHUT_RD) != 0)
    return base::fail(base::Errc::kSystem, "buffer descriptor", errno);
  epoll_event event{};
  event.events = 0;  // EPOLLHUP comes unasked, and nothing else is wanted
  event.data.u64 = key->value();
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, ours.get(), &event) != 0)
    return base::fail(base::Errc::kSystem, "watch a buffer descriptor", errno);
  pairs_.emplace(key->value(), std::move(ours));
  return std::pair(*key, std::move(theirs));
}

void ShareTable::drop(ShareKey key) { pairs_.erase(key.value()); }

void ShareTable::hang_ups() {
  std::array<epoll_event, 32> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), 0);
  for (int i = 0; i < count; ++i) {
    const std::uint64_t key = events[i].data.u64;  // a copy: the kernel's struct is packed
    if (pairs_.erase(key) != 0) closed_(ShareKey(key));
  }
}

}  // namespace gpuumd
