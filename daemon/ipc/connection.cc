#include "daemon/ipc/connection.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace gpuumd {
namespace {

using base::Errc;
using base::fail;
using base::Result;
using base::UniqueFd;

// As many as the kernel ever passes in one message: a shorter buffer would make it close the rest
// in this thread, and closing can block (foreign_fd.h).
constexpr std::size_t kKernelMaxDescriptors = 253;

UniqueFd open_pidfd(int socket, pid_t pid) {
  int fd = -1;
  socklen_t size = sizeof(fd);
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &fd, &size) == 0) return UniqueFd(fd);
  if (pid <= 0) return UniqueFd();
  return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
}

std::vector<ForeignFd> take_descriptors(msghdr& message) {
  std::vector<ForeignFd> descriptors;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(part) + i * sizeof(int), sizeof(int));
      descriptors.emplace_back(fd);
    }
  }
  return descriptors;
}

// True: the kernel has it. False: not now.
Result<bool> send_now(int socket, std::span<const std::byte> bytes,
                      const std::vector<UniqueFd>& descriptors) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(wire::kMaxDescriptors * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    std::array<int, wire::kMaxDescriptors> fds{};
    for (std::size_t i = 0; i < descriptors.size(); ++i) fds[i] = descriptors[i].get();
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), descriptors.size() * sizeof(int));
  }
  for (;;) {
    if (::sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return true;
    if (errno == EINTR) continue;
    // ETOOMANYREFS: the descriptors in flight to clients that do not read are at the kernel's
    // limit.
    if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
    return fail(Errc::kDisconnected, "send to a client", errno);
  }
}

}  // namespace

Result<Connection> Connection::adopt(UniqueFd socket) {
  ucred credentials{};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0)
    return fail(Errc::kSystem, "credentials of a client", errno);
  UniqueFd pidfd = open_pidfd(socket.get(), credentials.pid);
  return Connection(std::move(socket), std::move(pidfd),
                    ClientIdentity{credentials.uid, credentials.gid, credentials.pid, {}});
}

Connection::~Connection() {
  for (Waiting& message : waiting_)
    if (message.sent) message.sent(false);
}

Result<Received> Connection::receive() {
  std::array<std::byte, wire::kMaxMessage> buffer;
  alignas(cmsghdr) char control[CMSG_SPACE(kKernelMaxDescriptors * sizeof(int))];
  iovec part{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return fail(Errc::kAgain, "receive");
  if (got < 0) return fail(Errc::kDisconnected, "receive from a client", errno);
  Received received;
  received.descriptors = take_descriptors(message);
  if (got == 0) return fail(Errc::kDisconnected, "client");
  if ((message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0)
    return fail(Errc::kProtocol, "message too large, or descriptors that do not fit");
  const auto bytes = std::span(buffer).first(static_cast<std::size_t>(got));
  if (bytes.size() < sizeof(wire::MessageHeader))
    return fail(Errc::kProtocol, "message of " + std::to_string(got) + " bytes");
  const auto header = base::load<wire::MessageHeader>(bytes, 0);
  if (header.size != bytes.size())
    return fail(Errc::kProtocol,
                "message of " + std::to_string(got) + " bytes says " + std::to_string(header.size));
  received.bytes.assign(bytes.begin(), bytes.end());
  return received;
}

Result<void> Connection::send(std::span<const std::byte> bytes, std::vector<UniqueFd> descriptors,
                              std::move_only_function<void(bool)> sent) {
  if (waiting_.empty()) {
    const auto now = send_now(socket_.get(), bytes, descriptors);
    if (!now || *now) {
      if (sent) sent(now.has_value());
      if (!now) return std::unexpected(now.error());
      return {};
    }
  }
  if (waiting_.size() >= kMaxWaiting) {
    if (sent) sent(false);
    return fail(Errc::kLimit, "messages that a client does not read");
  }
  waiting_.push_back({{bytes.begin(), bytes.end()}, std::move(descriptors), std::move(sent)});
  return {};
}

Result<void> Connection::flush() {
  while (!waiting_.empty()) {
    Waiting& first = waiting_.front();
    const auto now = send_now(socket_.get(), first.bytes, first.descriptors);
    if (now && !*now) return {};
    if (first.sent) std::exchange(first.sent, nullptr)(now.has_value());
    if (!now) return std::unexpected(now.error());
    waiting_.pop_front();
  }
  return {};
}

}  // namespace gpuumd
