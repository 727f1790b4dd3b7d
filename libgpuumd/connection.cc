#include "libgpuumd/connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cerrno>

namespace gpuumd::client {
namespace {

std::unexpected<Failure> gone() {
  return fail(GPUUMD_DISCONNECTED, "the daemon closed the connection");
}

Outcome<void> wait_for(int socket, short events, const Wait& wait, const char* what) {
  pollfd watched{socket, events, 0};
  for (;;) {
    const int ready = ::poll(&watched, 1, poll_timeout_ms(wait.deadline));
    if (ready > 0) return {};
    if (ready < 0 && errno != EINTR) return system_failure("poll", errno);
    if (wait.over()) {
      // The control thread answers at once or not at all.
      const bool silent = Clock::now() - wait.start >= kSilence;
      return fail(silent ? GPUUMD_DISCONNECTED : GPUUMD_TIMEOUT,
                  std::string(what) + ": no answer from the daemon");
    }
  }
}

void take_rights(msghdr& message, std::vector<base::UniqueFd>& descriptors) {
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
}

Outcome<base::UniqueFd> connect_to(const std::string& path, const Wait& wait) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return invalid("socket path too long: " + path);
  std::memcpy(address.sun_path, path.data(), path.size());
  base::UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return system_failure("socket", errno);
  for (;;) {
    if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0)
      return socket;
    if (errno == EINTR) continue;
    // The queue of connections that the daemon has not accepted is full.
    if (errno == EAGAIN && !wait.over()) {
      const timespec nap{0, 1'000'000};
      ::nanosleep(&nap, nullptr);
      continue;
    }
    if (errno == EAGAIN) return fail(GPUUMD_DISCONNECTED, "daemon at " + path + " accepts nobody");
    if (errno == ENOENT || errno == ECONNREFUSED || errno == ENOTDIR)
      return fail(GPUUMD_NOT_FOUND, "no gpuumd at " + path);
    return system_failure("connect to " + path, errno);
  }
}

}  // namespace

class Connection::Turn {
 public:
  explicit Turn(Connection& connection) : connection_(connection) {}
  Outcome<void> take(const Wait& wait) {
    std::unique_lock lock(connection_.mutex_);
    if (!connection_.turn_over_.wait_until(lock, wait.deadline,
                                           [this] { return !connection_.in_turn_; }))
      return fail(GPUUMD_TIMEOUT, "the connection is in use by another thread");
    taken_ = connection_.in_turn_ = true;
    return {};
  }
  ~Turn() {
    if (!taken_) return;
    const std::lock_guard lock(connection_.mutex_);
    connection_.in_turn_ = false;
    connection_.turn_over_.notify_one();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  Connection& connection_;
  bool taken_ = false;
};

Outcome<std::unique_ptr<Connection>> Connection::open(const std::string& path,
                                                      const std::string& name, const Wait& wait) {
  auto socket = connect_to(path, wait);
  if (!socket) return std::unexpected(socket.error());
  std::unique_ptr<Connection> connection(new Connection(std::move(*socket)));
  wire::Hello hello{};
  hello.header = {wire::MessageType::kHello, sizeof(hello), 0};
  hello.version = wire::kVersion;
  hello.min_version = wire::kMinVersion;
  name.copy(hello.name, sizeof(hello.name) - 1);
  auto reply = connection->call(hello, wire::MessageType::kWelcome, wait);
  if (!reply) return std::unexpected(reply.error());
  if (reply->bytes.size() != sizeof(wire::Welcome))
    return fail(GPUUMD_PROTOCOL, "welcome of " + std::to_string(reply->bytes.size()) + " bytes");
  const auto welcome = base::load<wire::Welcome>(reply->bytes, 0);
  if (welcome.version < wire::kMinVersion || welcome.version > wire::kVersion)
    return fail(GPUUMD_WRONG_VERSION,
                "daemon answers with protocol " + std::to_string(welcome.version));
  connection->device_count_ = welcome.device_count;
  return connection;
}

void Connection::shut_down() { ::shutdown(socket_.get(), SHUT_RDWR); }

Outcome<void> Connection::send(std::span<const std::byte> bytes, int descriptor, const Wait& wait) {
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  for (;;) {
    if (::sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0) return {};
    if (errno == EINTR) continue;
    if (errno == EBADF) return invalid("descriptor " + std::to_string(descriptor));
    if (errno != EAGAIN) return gone();
    auto ready = wait_for(socket_.get(), POLLOUT, wait, "send");
    if (!ready) return ready;
  }
}

Outcome<std::vector<SocketReply>> Connection::receive() {
  std::array<std::byte, wire::kMaxMessage> buffer;
  alignas(cmsghdr) char control[CMSG_SPACE(wire::kMaxDescriptors * sizeof(int))];
  iovec part{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  // Closed with something of ours unread: the kernel says that first, once, and then gives what the
  // daemon sent before, which is why it closed.
  if (got < 0 && errno == ECONNRESET)
    got = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::vector<SocketReply>();
  if (got <= 0) return gone();
  SocketReply reply;
  take_rights(message, reply.descriptors);
  const auto bytes = std::span(buffer).first(static_cast<std::size_t>(got));
  if ((message.msg_flags & MSG_CTRUNC) != 0)
    return fail(GPUUMD_NO_MEMORY, "no descriptor left for what the daemon sent");
  if ((message.msg_flags & MSG_TRUNC) != 0 || bytes.size() < sizeof(wire::MessageHeader) ||
      base::load<wire::MessageHeader>(bytes, 0).size != bytes.size())
    return fail(GPUUMD_PROTOCOL, "message of the daemon with a wrong size");
  reply.bytes.assign(bytes.begin(), bytes.end());
  std::vector<SocketReply> one;
  one.push_back(std::move(reply));
  return one;
}

bool Connection::keep_descriptors(SocketReply& message) {
  if (message.bytes.size() != sizeof(wire::Descriptors)) return false;
  const auto in = base::load<wire::Descriptors>(message.bytes, 0);
  if (in.header.type != wire::MessageType::kDescriptors) return false;
  arrived_[{in.session, in.tag}] = std::move(message.descriptors);
  return true;
}

Outcome<SocketReply> Connection::call_bytes(std::span<std::byte> request,
                                            wire::MessageType expected, const Wait& wait) {
  Turn turn(*this);
  if (auto taken = turn.take(wait); !taken) return std::unexpected(taken.error());
  auto header = base::load<wire::MessageHeader>(request, 0);
  header.id = next_id_++;
  base::store(request, 0, header);
  // A daemon that refuses us says so and closes: its words are worth more than a failed send.
  const auto sent = send(request, -1, wait);
  for (;;) {
    auto messages = receive();
    if (!messages) return std::unexpected(messages.error());
    if (messages->empty()) {
      if (!sent) return std::unexpected(sent.error());
      if (auto ready = wait_for(socket_.get(), POLLIN, wait, "request"); !ready)
        return std::unexpected(ready.error());
      continue;
    }
    SocketReply& message = messages->front();
    if (keep_descriptors(message)) continue;
    const auto answer = base::load<wire::MessageHeader>(message.bytes, 0);
    // Id 0: the daemon refuses the connection before it has read anything.
    if (answer.type == wire::MessageType::kError && (answer.id == header.id || answer.id == 0)) {
      if (message.bytes.size() != sizeof(wire::ErrorMessage))
        return fail(GPUUMD_PROTOCOL, "error message with a wrong size");
      const auto error = base::load<wire::ErrorMessage>(message.bytes, 0);
      return fail(static_cast<gpuumd_status>(error.status),
                  std::string(error.text, ::strnlen(error.text, sizeof(error.text))));
    }
    if (answer.id == header.id && answer.type == expected) return std::move(message);
    late_answer(message, wait);
  }
}

// The answer to a call that gave up. A session that nobody waits for is closed again.
void Connection::late_answer(const SocketReply& message, const Wait& wait) {
  if (message.bytes.size() != sizeof(wire::SessionOpened)) return;
  const auto opened = base::load<wire::SessionOpened>(message.bytes, 0);
  if (opened.header.type != wire::MessageType::kSessionOpened) return;
  wire::CloseSession out{};
  out.header = {wire::MessageType::kCloseSession, sizeof(out), next_id_++};
  out.session = opened.session;
  (void)send(base::as_bytes(out), -1, wait);
}

void Connection::close_session(std::uint64_t session) {
  Wait wait;
  wait.start = Clock::now();
  wait.deadline = wait.start + std::chrono::seconds(1);
  Turn turn(*this);
  if (!turn.take(wait)) return;
  wire::CloseSession out{};
  out.header = {wire::MessageType::kCloseSession, sizeof(out), next_id_++};
  out.session = session;
  (void)send(base::as_bytes(out), -1, wait);
}

Outcome<void> Connection::send_descriptor(std::uint64_t session, std::uint32_t tag, int descriptor,
                                          const Wait& wait) {
  Turn turn(*this);
  if (auto taken = turn.take(wait); !taken) return taken;
  wire::Descriptors out{};
  out.header = {wire::MessageType::kDescriptors, sizeof(out), 0};
  out.session = session;
  out.tag = tag;
  out.count = 1;
  return send(base::as_bytes(out), descriptor, wait);
}

Outcome<std::vector<base::UniqueFd>> Connection::take_descriptors(std::uint64_t session,
                                                                  std::uint32_t tag,
                                                                  std::size_t count,
                                                                  const Wait& wait) {
  Turn turn(*this);
  if (auto taken = turn.take(wait); !taken) return std::unexpected(taken.error());
  for (;;) {
    const auto found = arrived_.find({session, tag});
    if (found != arrived_.end()) {
      auto descriptors = std::move(found->second);
      arrived_.erase(found);
      if (descriptors.size() != count)
        return fail(GPUUMD_PROTOCOL, std::to_string(descriptors.size()) + " descriptors, not " +
                                         std::to_string(count));
      return descriptors;
    }
    auto messages = receive();
    if (!messages) return std::unexpected(messages.error());
    // Sent before the reply: an empty socket says that they will never come.
    if (messages->empty()) return fail(GPUUMD_PROTOCOL, "descriptors of a reply did not come");
    if (!keep_descriptors(messages->front())) late_answer(messages->front(), wait);
  }
}

}  // namespace gpuumd::client
