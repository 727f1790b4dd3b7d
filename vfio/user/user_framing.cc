#include "vfio/user/user_framing.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "base/bytes.h"

namespace vfio {
namespace {

base::Result<void> socket_error(const char* step, int error) {
  if (error == EPIPE || error == ECONNRESET || error == ENOTCONN)
    return base::fail(base::Errc::kDisconnected, step, error);
  return base::fail(base::Errc::kSystem, step, error);
}

// As many bytes as the socket takes; 0 when it is full.
base::Result<std::size_t> send_some(int socket, std::span<iovec> parts, std::span<const int> fds) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * kMaxMessageFds)> control{};
  assert(fds.size() <= kMaxMessageFds);
  msghdr header{};
  header.msg_iov = parts.data();
  header.msg_iovlen = parts.size();
  if (!fds.empty()) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_SPACE(fds.size_bytes());
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(fds.size_bytes());
    std::memcpy(CMSG_DATA(rights), fds.data(), fds.size_bytes());
  }
  for (;;) {
    const ssize_t sent = ::sendmsg(socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<std::size_t>(sent);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return std::size_t{0};
    if (errno != EINTR) return std::unexpected(socket_error("send", errno).error());
  }
}

iovec part(std::span<const std::byte> bytes) {
  return {const_cast<std::byte*>(bytes.data()), bytes.size()};
}

}  // namespace

base::Result<void> MessageReader::take_fds(msghdr& header) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      message_.fds.emplace_back(fd);
    }
  }
  if ((header.msg_flags & MSG_CTRUNC) != 0 || message_.fds.size() > kMaxMessageFds)
    return base::fail(base::Errc::kProtocol, "too many descriptors in a message");
  return {};
}

base::Result<bool> MessageReader::fill(int socket, std::span<std::byte> to, std::size_t& have) {
  while (have < to.size()) {
    // One more than we take, so that too many are seen even where the kernel pads.
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * (kMaxMessageFds + 1))> control;
    iovec rest{to.data() + have, to.size() - have};
    msghdr header{};
    header.msg_iov = &rest;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return false;
      return std::unexpected(socket_error("receive", errno).error());
    }
    if (auto taken = take_fds(header); !taken) return std::unexpected(taken.error());
    if (got == 0) return base::fail(base::Errc::kDisconnected, "connection closed by the server");
    have += static_cast<std::size_t>(got);
  }
  return true;
}

base::Result<Message*> MessageReader::next(int socket, const Admit& admit) {
  if (std::exchange(whole_, false)) {
    head_have_ = 0;
    body_have_ = 0;
    message_.fds.clear();
  }
  if (head_have_ < head_.size()) {
    auto full = fill(socket, head_, head_have_);
    if (!full) return std::unexpected(full.error());
    if (!*full) return nullptr;
    message_.header = base::load<wire::Header>(head_, 0);
    if (message_.header.size < sizeof(wire::Header))
      return base::fail(base::Errc::kProtocol, "message shorter than its header");
    if (auto ok = admit(message_.header); !ok) return std::unexpected(ok.error());
    message_.body.resize(message_.header.size - sizeof(wire::Header));
  }
  auto full = fill(socket, message_.body, body_have_);
  if (!full) return std::unexpected(full.error());
  if (!*full) return nullptr;
  whole_ = true;
  return &message_;
}

base::Result<void> Outbox::send(int socket, const wire::Header& header,
                                std::span<const std::byte> head, std::span<const std::byte> tail,
                                std::span<const int> fds) {
  const auto start = base::as_bytes(header);
  const std::size_t total = start.size() + head.size() + tail.size();
  std::size_t sent = 0;
  if (waiting_.empty()) {
    std::array<iovec, 3> parts{part(start), part(head), part(tail)};
    auto some = send_some(socket, parts, fds);
    if (!some) return std::unexpected(some.error());
    sent = *some;
    if (sent == total) return {};
  }
  Item item;
  item.data.reserve(total);
  for (const auto piece : {start, head, tail})
    item.data.insert(item.data.end(), piece.begin(), piece.end());
  item.sent = sent;
  if (sent == 0) item.fds.assign(fds.begin(), fds.end());
  bytes_ += total - sent;
  waiting_.push_back(std::move(item));
  return {};
}

base::Result<void> Outbox::flush(int socket) {
  while (!waiting_.empty()) {
    Item& item = waiting_.front();
    std::array<iovec, 1> rest{part(std::span<const std::byte>(item.data).subspan(item.sent))};
    auto some = send_some(socket, rest, item.fds);
    if (!some) return std::unexpected(some.error());
    if (*some == 0) return {};
    item.fds.clear();
    item.sent += *some;
    bytes_ -= *some;
    if (item.sent == item.data.size()) waiting_.pop_front();
  }
  return {};
}

void Outbox::clear() {
  waiting_.clear();
  bytes_ = 0;
}

}  // namespace vfio
