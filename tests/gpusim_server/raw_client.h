// The client's side of vfio-user, byte by byte: what a test sends is what arrives.
#pragma once

#include <concepts>
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/fd.h"
#include "tools/gpusim/server/wire.h"

namespace gpusim::testing {

struct Received {
  wire::Header header{};
  std::vector<std::byte> body;
  std::vector<base::UniqueFd> fds;

  bool failed() const { return (header.flags & wire::kError) != 0; }
  int error() const { return failed() ? static_cast<int>(header.error) : 0; }
  template <class T>
  T as(std::size_t offset = 0) const {
    return base::load<T>(body, offset);
  }
};

class RawClient {
 public:
  // `pump` is called while the client waits: it gives the server its turns. Empty for a server on
  // another thread.
  RawClient(base::UniqueFd socket, std::function<void()> pump)
      : socket_(std::move(socket)), pump_(std::move(pump)) {}

  int fd() const { return socket_.get(); }
  void close() { socket_.reset(); }
  void pump() const {
    if (pump_) pump_();
  }

  bool send_bytes(std::span<const std::byte> bytes, std::span<const int> fds = {});
  // Returns the id.
  std::uint16_t send(std::uint16_t command, std::span<const std::byte> body,
                     std::span<const int> fds = {}, std::uint32_t flags = wire::kCommand);
  bool reply(const Received& to, std::span<const std::byte> body, int error = 0);
  // The next message, whatever it is; nothing when the connection ended or ten seconds passed.
  std::optional<Received> receive();
  // Whether the server closed the connection.
  bool ended();

  // A command and its reply; fails the test without one.
  Received call(std::uint16_t command, std::span<const std::byte> body = {},
                std::span<const int> fds = {});
  template <class T>
    requires(!std::convertible_to<const T&, std::span<const std::byte>>)
  Received call(std::uint16_t command, const T& body, std::span<const int> fds = {}) {
    return call(command, base::as_bytes(body), fds);
  }

  Received negotiate(const std::string& json = "");
  Received negotiate_with_wake();
  int map(std::uint64_t at, std::uint64_t size, int fd = -1, std::uint64_t offset = 0,
          std::uint32_t flags = wire::kDmaReadable | wire::kDmaWritable);
  int unmap(std::uint64_t at, std::uint64_t size, std::uint32_t flags = 0);
  Received read(std::uint32_t region, std::uint64_t offset, std::uint32_t count);
  Received write(std::uint32_t region, std::uint64_t offset, std::span<const std::byte> data);
  std::uint32_t read32(std::uint32_t region, std::uint64_t offset);
  int write32(std::uint32_t region, std::uint64_t offset, std::uint32_t value);
  void set_bus_master();

 private:
  base::UniqueFd socket_;
  std::function<void()> pump_;
  std::uint16_t next_id_ = 100;
};

std::vector<std::byte> version_body(std::uint16_t major, std::uint16_t minor,
                                    const std::string& json);
std::vector<std::byte> join(std::span<const std::byte> first, std::span<const std::byte> second);
std::vector<std::byte> pattern(std::size_t size, unsigned seed = 1);

}  // namespace gpusim::testing
