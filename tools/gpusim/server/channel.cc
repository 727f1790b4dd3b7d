#include "tools/gpusim/server/channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/bytes.h"

namespace gpusim {

namespace {

constexpr std::size_t kHeader = sizeof(wire::Header);
// A client that sends requests and never reads the answers: serving stops while output waits, so
// the queue holds little more than one reply; beyond this it is broken.
constexpr std::size_t kMaxWaitingOutputs = 64;

}  // namespace

Channel::Channel(base::UniqueFd socket) : socket_(std::move(socket)) {
  ::fcntl(socket_.get(), F_SETFL, ::fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
}

bool Channel::keep_descriptors(const msghdr& received, Message& message) {
  for (cmsghdr* control = CMSG_FIRSTHDR(&received); control != nullptr;
       control = CMSG_NXTHDR(const_cast<msghdr*>(&received), control)) {
    if (control->cmsg_level != SOL_SOCKET || control->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (control->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(control) + i * sizeof(int), sizeof fd);
      message.fds.emplace_back(fd);
    }
  }
  return (received.msg_flags & MSG_CTRUNC) == 0 && message.fds.size() <= wire::kMaxFds;
}

Channel::Status Channel::read_part(std::span<std::byte> part, Message& message) {
  iovec vector{part.data(), part.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * wire::kMaxFds)];
  msghdr header{};
  header.msg_iov = &vector;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  ssize_t got = 0;
  do {
    got = ::recvmsg(socket_.get(), &header, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return errno == EAGAIN ? Status::kNothing : Status::kClosed;
  if (!keep_descriptors(header, message) || got == 0) return Status::kClosed;
  have_ += static_cast<std::size_t>(got);
  return static_cast<std::size_t>(got) == part.size() ? Status::kMessage : Status::kNothing;
}

Channel::Status Channel::receive(Message& message) {
  if (have_ < kHeader) {
    const auto header = base::as_writable_bytes(partial_.header);
    const Status status = read_part(header.subspan(have_), partial_);
    if (status != Status::kMessage) return status;
    if (partial_.header.size < kHeader || partial_.header.size > wire::kMaxMessage)
      return Status::kClosed;
    partial_.body.resize(partial_.header.size - kHeader);
  }
  while (have_ < partial_.header.size) {
    const std::size_t before = have_;
    const Status status = read_part(std::span(partial_.body).subspan(have_ - kHeader), partial_);
    if (status == Status::kClosed) return status;
    if (have_ == before) return Status::kNothing;
  }
  message = std::move(partial_);
  partial_ = {};
  have_ = 0;
  return Status::kMessage;
}

bool Channel::send(const wire::Header& header, std::span<const std::byte> first,
                   std::span<const std::byte> second, std::span<const int> fds) {
  if (output_.size() >= kMaxWaitingOutputs) return false;
  Output output;
  output.bytes.reserve(kHeader + first.size() + second.size());
  const auto head = base::as_bytes(header);
  output.bytes.insert(output.bytes.end(), head.begin(), head.end());
  output.bytes.insert(output.bytes.end(), first.begin(), first.end());
  output.bytes.insert(output.bytes.end(), second.begin(), second.end());
  output.fds.assign(fds.begin(), fds.end());
  output_.push_back(std::move(output));
  return flush();
}

bool Channel::flush() {
  while (!output_.empty()) {
    Output& output = output_.front();
    iovec vector{output.bytes.data() + output.sent, output.bytes.size() - output.sent};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * wire::kMaxFds)];
    msghdr header{};
    header.msg_iov = &vector;
    header.msg_iovlen = 1;
    if (!output.fds.empty()) {
      header.msg_control = control;
      header.msg_controllen = CMSG_SPACE(sizeof(int) * output.fds.size());
      std::memset(control, 0, header.msg_controllen);
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int) * output.fds.size());
      std::memcpy(CMSG_DATA(rights), output.fds.data(), sizeof(int) * output.fds.size());
    }
    const ssize_t sent = ::sendmsg(socket_.get(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return errno == EAGAIN;
    output.fds.clear();  // they went with the first byte
    output.sent += static_cast<std::size_t>(sent);
    if (output.sent == output.bytes.size()) output_.pop_front();
  }
  return true;
}

void wait_for_socket(int fd, bool output, int milliseconds) {
  pollfd entry{fd, static_cast<short>(output ? POLLIN | POLLOUT : POLLIN), 0};
  ::poll(&entry, 1, milliseconds);
}

}  // namespace gpusim
