#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "tools/gpusim/host/control.h"

namespace gpusim {

namespace {

constexpr std::size_t kMaxClients = 16;
constexpr std::size_t kMaxLine = 64 * 1024;
constexpr std::size_t kReadAtOnce = 4096;
constexpr timeval kCallTimeout{.tv_sec = 5, .tv_usec = 0};

}  // namespace

void ControlSocket::add_poll_fds(std::vector<pollfd>& fds) {
  fds.push_back({listener_.fd(), POLLIN, 0});
  for (const Client& client : clients_)
    fds.push_back(
        {client.socket.get(), static_cast<short>(client.output.empty() ? POLLIN : POLLOUT), 0});
}

void ControlSocket::handle() {
  while (base::UniqueFd socket = listener_.accept()) {
    if (clients_.size() < kMaxClients) clients_.push_back({std::move(socket), {}, {}, false});
  }
  for (Client& client : clients_) serve(client);
  std::erase_if(clients_,
                [](const Client& client) { return client.closing && client.output.empty(); });
}

// A client that does not read its answers is not read from.
void ControlSocket::serve(Client& client) {
  while (true) {
    while (!client.output.empty()) {
      const ssize_t sent = ::send(client.socket.get(), client.output.data(), client.output.size(),
                                  MSG_DONTWAIT | MSG_NOSIGNAL);
      if (sent < 0 && errno == EAGAIN) return;
      if (sent < 0) {
        client.output.clear();
        client.closing = true;
        return;
      }
      client.output.erase(0, static_cast<std::size_t>(sent));
    }
    take_lines(client);
    if (!client.output.empty()) continue;
    if (client.closing) return;
    char bytes[kReadAtOnce];
    const ssize_t got = ::recv(client.socket.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0 || client.input.size() > kMaxLine) {
      client.closing = true;
      return;
    }
    client.input.append(bytes, static_cast<std::size_t>(got));
  }
}

void ControlSocket::take_lines(Client& client) {
  const auto end = client.input.find('\n');
  if (end == std::string::npos) return;
  client.output = control_.run(std::string_view(client.input).substr(0, end)) + "\n";
  client.input.erase(0, end + 1);
}

base::Result<std::string> control_once(const std::string& directory, const std::string& command) {
  const std::string path = directory + "/control.sock";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path)
    return base::fail(base::Errc::kInvalidArgument, "path too long: " + path);
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const base::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return base::fail(base::Errc::kNotFound, "no gpusim at " + path, errno);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &kCallTimeout, sizeof kCallTimeout);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &kCallTimeout, sizeof kCallTimeout);
  const std::string line = command + "\n";
  if (::send(socket.get(), line.data(), line.size(), MSG_NOSIGNAL) !=
      static_cast<ssize_t>(line.size()))
    return base::fail(base::Errc::kDisconnected, "control socket", errno);
  std::string answer;
  while (answer.empty() || answer.back() != '\n') {
    char bytes[kReadAtOnce];
    const ssize_t got = ::recv(socket.get(), bytes, sizeof bytes, 0);
    if (got < 0 && errno == EAGAIN)
      return base::fail(base::Errc::kTimeout, "answer of the control socket");
    if (got <= 0) return base::fail(base::Errc::kDisconnected, "control socket");
    answer.append(bytes, static_cast<std::size_t>(got));
  }
  answer.pop_back();
  return answer;
}

}  // namespace gpusim
