// Somebody between a client and its daemon who changes the first message of each way: how the
// library meets a daemon of another version, or one that breaks the protocol.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gpuumd/wire.h"
#include "tests/ipc/raw_client.h"

namespace whole {

class Relay {
 public:
  using Change = std::function<void(std::vector<std::byte>&)>;

  // Serves one client at `directory`, which it makes, for the daemon at `runtime_dir`.
  Relay(std::string directory, std::string runtime_dir, Change hello, Change answer)
      : directory_(std::move(directory)), hello_(std::move(hello)), answer_(std::move(answer)) {
    std::filesystem::create_directory(directory_);
    const auto path = directory_ + "/" + gpuumd::wire::kSocketName;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    listener_.reset(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(::listen(listener_.get(), 1), 0);
    thread_ = std::thread([this, runtime_dir = std::move(runtime_dir)] { serve(runtime_dir); });
  }
  ~Relay() { thread_.join(); }
  Relay(const Relay&) = delete;
  const std::string& directory() const { return directory_; }

 private:
  void serve(const std::string& runtime_dir) {
    pollfd watched{listener_.get(), POLLIN, 0};
    if (::poll(&watched, 1, 20000) <= 0) return;
    base::UniqueFd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    std::vector<std::byte> bytes(gpuumd::wire::kMaxMessage);
    const auto got = ::recv(client.get(), bytes.data(), bytes.size(), 0);
    if (got <= 0) return;
    bytes.resize(static_cast<std::size_t>(got));
    hello_(bytes);
    gpuumd::fake::RawClient daemon(runtime_dir);
    if (!daemon.send_bytes(bytes)) return;
    auto answer = daemon.receive();
    if (!answer) return;
    answer_(answer->bytes);
    (void)!::send(client.get(), answer->bytes.data(), answer->bytes.size(), MSG_NOSIGNAL);
  }

  std::string directory_;
  Change hello_, answer_;
  base::UniqueFd listener_;
  std::thread thread_;
};

// What a library of a later protocol would say.
inline void from_the_future(std::vector<std::byte>& hello) {
  auto message = base::load<gpuumd::wire::Hello>(hello, 0);
  message.version = message.min_version = 99;
  base::store(std::span(hello), 0, message);
}

}  // namespace whole
