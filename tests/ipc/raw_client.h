// A client that speaks the wire by hand, well or badly.
#pragma once

#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/fd.h"
#include "base/shared_memory.h"
#include "gpuumd/ring.h"
#include "gpuumd/wire.h"

namespace gpuumd::fake {

struct RawMessage {
  std::vector<std::byte> bytes;
  std::vector<base::UniqueFd> descriptors;
  wire::MessageType type() const { return base::load<wire::MessageHeader>(bytes, 0).type; }
  template <class T>
  T as() const {
    return bytes.size() >= sizeof(T) ? base::load<T>(bytes, 0) : T{};
  }
  std::int32_t status() const {
    return type() == wire::MessageType::kError ? as<wire::ErrorMessage>().status : 0;
  }
  std::string text() const { return as<wire::ErrorMessage>().text; }
};

class RawClient {
 public:
  explicit RawClient(const std::string& directory) {
    const std::string path = directory + "/" + wire::kSocketName;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    socket_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
      socket_.reset();
  }

  int fd() const { return socket_.get(); }
  void hang_up() { socket_.reset(); }

  bool send_bytes(std::span<const std::byte> bytes, const std::vector<int>& descriptors = {},
                  int flags = 0) {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) std::array<char, CMSG_SPACE(253 * sizeof(int))> control{};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (!descriptors.empty()) {
      message.msg_control = control.data();
      message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
      std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
    }
    return ::sendmsg(socket_.get(), &message, MSG_NOSIGNAL | flags) >= 0;
  }
  template <class T>
  bool send(T message, const std::vector<int>& descriptors = {}) {
    if (message.header.size == 0) message.header.size = sizeof(T);
    return send_bytes(base::as_bytes(message), descriptors);
  }

  // Nothing: the daemon closed the connection, or says nothing for 20 s.
  std::optional<RawMessage> receive(int timeout_ms = 20000) {
    pollfd watched{socket_.get(), POLLIN, 0};
    if (::poll(&watched, 1, timeout_ms) <= 0) return std::nullopt;
    std::array<std::byte, wire::kMaxMessage> buffer;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(16 * sizeof(int))> control;
    iovec part{buffer.data(), buffer.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t got = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    if (got <= 0) return std::nullopt;
    RawMessage result;
    result.bytes.assign(buffer.begin(), buffer.begin() + got);
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
         header = CMSG_NXTHDR(&message, header)) {
      for (std::size_t i = 0; i < (header->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int fd;
        std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
        result.descriptors.emplace_back(fd);
      }
    }
    return result;
  }
  // Whether the daemon closes the connection (in 20 s), whatever it says before.
  bool closed() {
    pollfd watched{socket_.get(), POLLIN, 0};
    std::array<char, wire::kMaxMessage> buffer;
    for (;;) {
      if (::poll(&watched, 1, 20000) <= 0) return false;
      if (::recv(socket_.get(), buffer.data(), buffer.size(), 0) <= 0) return true;
    }
  }

  static wire::Hello hello() {
    wire::Hello hello{};
    hello.header = {wire::MessageType::kHello, sizeof(hello), 1};
    hello.version = wire::kVersion;
    hello.min_version = wire::kMinVersion;
    std::strcpy(hello.name, "raw");
    return hello;
  }
  bool shake_hands() {
    if (!send(hello())) return false;
    const auto answer = receive();
    return answer && answer->type() == wire::MessageType::kWelcome;
  }
  std::optional<RawMessage> open_session(std::uint32_t device = 0, const char* name = "") {
    wire::OpenSession open{};
    open.header = {wire::MessageType::kOpenSession, sizeof(open), 2};
    open.device = device;
    std::strncpy(open.name, name, sizeof(open.name) - 1);
    if (!send(open)) return std::nullopt;
    return receive();
  }

 private:
  base::UniqueFd socket_;
};

// A session's memory as the client has it.
class RawSession {
 public:
  explicit RawSession(RawMessage opened)
      : info(opened.as<wire::SessionOpened>()), descriptors(std::move(opened.descriptors)) {
    control = std::move(base::Mapping::map(descriptors.at(0).get(), 0, info.layout.control_bytes,
                                           PROT_READ | PROT_WRITE)
                            .value());
    page = control.at<wire::SessionPage>();
    requests = RingProducer(&page->requests, info.layout.request_slots);
    replies = RingConsumer(&page->replies, info.layout.reply_slots);
  }

  int doorbell() const { return descriptors[2].get(); }
  int reply_wake() const { return descriptors[3].get(); }
  int event_wake() const { return descriptors[4].get(); }
  void ring() {
    const std::uint64_t one = 1;
    (void)!::write(doorbell(), &one, sizeof(one));
  }
  std::byte* next_slot() {
    return control.at<wire::RequestSlot>(info.layout.requests_offset)[requests.slot()].bytes;
  }
  void publish() {
    requests.fill(1);
    requests.publish();
    ring();
  }
  template <class Request>
  void send(wire::RequestType type, Request request, std::uint32_t size = sizeof(Request),
            std::uint32_t tag = 0) {
    request.header.type = type;
    request.header.size = size;
    request.header.id = next_id++;
    request.header.descriptor_tag = tag;
    store_shared(next_slot(), &request, sizeof(request));
    publish();
  }
  std::optional<wire::ReplySlot> receive(int timeout_ms = 20000) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    while (replies.filled() == 0u) {
      if (std::chrono::steady_clock::now() > end || over()) return std::nullopt;
      ::sched_yield();
    }
    wire::ReplySlot slot;
    copy_shared(&slot, control.at<wire::ReplySlot>(info.layout.replies_offset) + replies.slot(),
                sizeof(slot));
    replies.release(1);
    return slot;
  }
  template <class Request>
  std::optional<wire::ReplySlot> call(wire::RequestType type, Request request,
                                      std::uint32_t size = sizeof(Request)) {
    send(type, request, size);
    return receive();
  }
  // The daemon has ended the session.
  bool over() const {
    pollfd watched{reply_wake(), 0, 0};
    return ::poll(&watched, 1, 0) > 0 && (watched.revents & POLLHUP) != 0;
  }

  wire::SessionOpened info;
  std::vector<base::UniqueFd> descriptors;
  base::Mapping control;
  wire::SessionPage* page;
  RingProducer requests;
  RingConsumer replies;
  std::uint64_t next_id = 1;
};

}  // namespace gpuumd::fake
