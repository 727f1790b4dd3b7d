#include "raw_client.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstring>
#include <random>
#include <thread>

namespace gpusim::testing {

namespace {

constexpr auto kPatience = std::chrono::seconds(10);

}  // namespace

bool RawClient::send_bytes(std::span<const std::byte> bytes, std::span<const int> fds) {
  while (!bytes.empty()) {
    iovec vector{const_cast<std::byte*>(bytes.data()), bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 64)];
    msghdr header{};
    header.msg_iov = &vector;
    header.msg_iovlen = 1;
    if (!fds.empty()) {
      header.msg_control = control;
      header.msg_controllen = CMSG_SPACE(sizeof(int) * fds.size());
      std::memset(control, 0, header.msg_controllen);
      cmsghdr* rights = CMSG_FIRSTHDR(&header);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
      std::memcpy(CMSG_DATA(rights), fds.data(), sizeof(int) * fds.size());
    }
    const ssize_t sent = ::sendmsg(fd(), &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EAGAIN) {
      pump();
      if (!pump_) std::this_thread::yield();
      continue;
    }
    if (sent <= 0) return false;
    fds = {};
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return true;
}

std::uint16_t RawClient::send(std::uint16_t command, std::span<const std::byte> body,
                              std::span<const int> fds, std::uint32_t flags) {
  wire::Header header{};
  header.id = next_id_++;
  header.command = command;
  header.size = static_cast<std::uint32_t>(sizeof header + body.size());
  header.flags = flags;
  send_bytes(join(base::as_bytes(header), body), fds);
  return header.id;
}

bool RawClient::reply(const Received& to, std::span<const std::byte> body, int error) {
  wire::Header header = to.header;
  header.size = static_cast<std::uint32_t>(sizeof header + body.size());
  header.flags = wire::kReply | (error != 0 ? wire::kError : 0);
  header.error = static_cast<std::uint32_t>(error);
  return send_bytes(join(base::as_bytes(header), body));
}

std::optional<Received> RawClient::receive() {
  Received message;
  std::vector<std::byte> bytes(sizeof(wire::Header));
  std::size_t have = 0;
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < deadline) {
    pump();
    iovec vector{bytes.data() + have, bytes.size() - have};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * 64)];
    msghdr header{};
    header.msg_iov = &vector;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(fd(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EAGAIN) {
      pollfd entry{fd(), POLLIN, 0};
      if (!pump_) ::poll(&entry, 1, 100);
      continue;
    }
    if (got <= 0) return std::nullopt;
    for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
      for (std::size_t i = 0; i < (c->cmsg_len - CMSG_LEN(0)) / sizeof(int); ++i) {
        int fd = -1;
        std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
        message.fds.emplace_back(fd);
      }
    }
    have += static_cast<std::size_t>(got);
    if (have == sizeof(wire::Header)) {
      message.header = base::load<wire::Header>(bytes, 0);
      bytes.resize(message.header.size);
    }
    if (have >= sizeof(wire::Header) && have == bytes.size()) {
      message.body.assign(bytes.begin() + sizeof(wire::Header), bytes.end());
      return message;
    }
  }
  return std::nullopt;
}

bool RawClient::ended() {
  while (true) {
    const auto message = receive();
    if (message) continue;
    char byte = 0;
    const ssize_t got = ::recv(fd(), &byte, 1, MSG_DONTWAIT);
    return got == 0 || (got < 0 && errno != EAGAIN);
  }
}

Received RawClient::call(std::uint16_t command, std::span<const std::byte> body,
                         std::span<const int> fds) {
  const std::uint16_t id = send(command, body, fds);
  auto answer = receive();
  if (!answer) {
    ADD_FAILURE() << "no reply to command " << command;
    return {};
  }
  EXPECT_EQ(answer->header.id, id);
  EXPECT_EQ(answer->header.command, command);
  EXPECT_EQ(answer->header.flags & wire::kTypeMask, wire::kReply);
  return std::move(*answer);
}

Received RawClient::negotiate(const std::string& json) {
  return call(wire::kVersion, version_body(0, 1, json));
}

Received RawClient::negotiate_with_wake() {
  return negotiate(R"({"capabilities":{"max_msg_fds":8,"gpuumd.wake":{"version":1}}})");
}

int RawClient::map(std::uint64_t at, std::uint64_t size, int fd, std::uint64_t offset,
                   std::uint32_t flags) {
  const wire::DmaMap request{sizeof request, flags, offset, at, size};
  return call(wire::kDmaMap, request, fd < 0 ? std::span<const int>{} : std::span(&fd, 1)).error();
}

int RawClient::unmap(std::uint64_t at, std::uint64_t size, std::uint32_t flags) {
  return call(wire::kDmaUnmap, wire::DmaUnmap{sizeof(wire::DmaUnmap), flags, at, size}).error();
}

Received RawClient::read(std::uint32_t region, std::uint64_t offset, std::uint32_t count) {
  return call(wire::kRegionRead, wire::RegionAccess{offset, region, count});
}

Received RawClient::write(std::uint32_t region, std::uint64_t offset,
                          std::span<const std::byte> data) {
  const wire::RegionAccess access{offset, region, static_cast<std::uint32_t>(data.size())};
  return call(wire::kRegionWrite, join(base::as_bytes(access), data));
}

std::uint32_t RawClient::read32(std::uint32_t region, std::uint64_t offset) {
  const Received answer = read(region, offset, 4);
  if (answer.failed() || answer.body.size() != sizeof(wire::RegionAccess) + 4) {
    ADD_FAILURE() << "read of region " << region << " at " << offset;
    return 0;
  }
  return answer.as<std::uint32_t>(sizeof(wire::RegionAccess));
}

int RawClient::write32(std::uint32_t region, std::uint64_t offset, std::uint32_t value) {
  return write(region, offset, base::as_bytes(value)).error();
}

void RawClient::set_bus_master() { EXPECT_EQ(write32(wire::kConfigRegion, 4, 0x6), 0); }

std::vector<std::byte> version_body(std::uint16_t major, std::uint16_t minor,
                                    const std::string& json) {
  const wire::Version version{major, minor};
  const auto text = std::as_bytes(std::span(json.c_str(), json.empty() ? 0 : json.size() + 1));
  return join(base::as_bytes(version), text);
}

std::vector<std::byte> join(std::span<const std::byte> first, std::span<const std::byte> second) {
  std::vector<std::byte> all(first.begin(), first.end());
  all.insert(all.end(), second.begin(), second.end());
  return all;
}

std::vector<std::byte> pattern(std::size_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace gpusim::testing
