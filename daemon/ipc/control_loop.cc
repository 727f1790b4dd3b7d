#include "daemon/ipc/control_loop.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/random.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "daemon/ipc/status.h"

namespace gpuumd {
namespace {

// What an epoll event is about: the two fixed ones, else client id * 2, + 1 for its pidfd.
constexpr std::uint64_t kListenerTag = 0;
constexpr std::uint64_t kMailboxTag = 1;
constexpr unsigned kMessagesPerTurn = 8;  // of one client, before others have theirs

void watch(int epoll, int fd, std::uint32_t events, std::uint64_t tag, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = tag;
  if (::epoll_ctl(epoll, operation, fd, &event) != 0)
    spdlog::error("control thread: epoll_ctl: errno {}", errno);
}

std::uint64_t random_id() {
  std::uint64_t id = 0;
  while (id == 0) {
    if (::getrandom(&id, sizeof(id), 0) != sizeof(id)) id = 0;
  }
  return id;
}

}  // namespace

// Carries what reactors report to the control thread. Any thread.
class LoopObserver final : public SessionObserver {
 public:
  LoopObserver(std::shared_ptr<Mailbox> mailbox, ControlLoop& loop)
      : mailbox_(std::move(mailbox)), loop_(loop) {}

  void session_opened(SessionId id, OpenedEnds ends) override {
    mailbox_->post([this, id, ends = std::move(ends)]() mutable {
      loop_.session_opened(id, std::move(ends));
    });
  }
  void session_refused(SessionId id, base::Error why) override {
    mailbox_->post([this, id, why = std::move(why)] { loop_.session_refused(id, why); });
  }
  void session_broken(SessionId id, base::Error why) override {
    mailbox_->post([this, id, why = std::move(why)] { loop_.session_broken(id, why); });
  }
  void session_gone(SessionId id) override {
    mailbox_->post([this, id] { loop_.session_gone(id); });
  }
  void send_descriptors(SessionId id, std::uint32_t tag, std::vector<base::UniqueFd> descriptors,
                        std::move_only_function<void(bool)> sent) override {
    mailbox_->post(
        [this, id, tag, descriptors = std::move(descriptors), sent = std::move(sent)]() mutable {
          loop_.send_descriptors(id, tag, std::move(descriptors), std::move(sent));
        });
  }

 private:
  std::shared_ptr<Mailbox> mailbox_;
  ControlLoop& loop_;  // tasks run in its run() only
};

ControlLoop::ControlLoop(ControlConfig config, Listener listener, base::UniqueFd epoll,
                         std::shared_ptr<Mailbox> mailbox, std::vector<ControlDevice> devices)
    : config_(std::move(config)),
      listener_(std::move(listener)),
      epoll_(std::move(epoll)),
      mailbox_(std::move(mailbox)),
      next_session_(config_.first_session_id),
      boot_id_(config_.boot_id != 0 ? config_.boot_id : random_id()) {
  auto observer = std::make_shared<LoopObserver>(mailbox_, *this);
  for (std::uint32_t i = 0; i < devices.size(); ++i) {
    devices[i].info.index = i;
    devices_.push_back({devices[i].info, std::make_shared<DevicePort>(*devices[i].reactor,
                                                                      *devices[i].host, observer)});
  }
  watch(epoll_.get(), listener_->fd(), EPOLLIN, kListenerTag, EPOLL_CTL_ADD);
  watch(epoll_.get(), mailbox_->wake_fd(), EPOLLIN, kMailboxTag, EPOLL_CTL_ADD);
}

ControlLoop::~ControlLoop() {
  // The last reference to a port goes on its reactor: what it owns lives there.
  for (Device& device : devices_) {
    Reactor& reactor = device.port->reactor();
    reactor.post([port = std::move(device.port)] {});
  }
}

void ControlLoop::run() {
  while (!ended_) {
    std::array<epoll_event, 64> events;
    const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), timeout_ms());
    for (int i = 0; i < count; ++i) {
      const std::uint64_t tag = events[i].data.u64;
      if (tag == kListenerTag)
        accept_clients();
      else if (tag == kMailboxTag)
        mailbox_->run();
      else if (tag % 2 == 1)
        close_client(tag / 2);  // its process ended
      else
        client_ready(tag / 2, events[i].events);
    }
    expire_handshakes();
  }
}

int ControlLoop::timeout_ms() const {
  if (handshakes_.empty()) return -1;
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(handshakes_.front().first - Clock::now());
  return std::max<int>(0, static_cast<int>(left.count()));
}

// Any local user can bring these about, as often as he likes.
void ControlLoop::warn(const std::string& text) {
  if (const auto more = warnings_.admit(Clock::now()))
    spdlog::warn("{}{}", text, *more == 0 ? "" : fmt::format(" ({} more before)", *more));
}

void ControlLoop::accept_clients() {
  for (int i = 0; i < 16 && listener_; ++i) {
    auto socket = listener_->accept();
    if (!socket) {
      if (socket.error().code == base::Errc::kLimit) {
        ++counters_.refused_limit;
        warn("client refused: " + socket.error().message());
      }
      return;
    }
    auto connection = Connection::adopt(std::move(*socket));
    if (connection) admit(std::move(*connection));
  }
}

void ControlLoop::admit(Connection connection) {
  ++counters_.accepted;
  const uid_t uid = connection.client().uid;
  UidCounts& counts = uids_[uid];
  const bool full = clients_.size() >= config_.max_connections;
  if (full || counts.connections >= config_.max_connections_per_uid) {
    ++counters_.refused_limit;
    wire::ErrorMessage out{};
    out.header = {wire::MessageType::kError, sizeof(out), 0};
    out.status = GPUUMD_LIMIT;
    const std::string text =
        full ? "the daemon has " + std::to_string(clients_.size()) + " connections"
             : "uid " + std::to_string(uid) + " has " + std::to_string(counts.connections) +
                   " connections";
    std::memcpy(out.text, text.data(), std::min(text.size(), sizeof(out.text) - 1));
    (void)connection.send(base::as_bytes(out));
    return;
  }
  ++counts.connections;
  ++counters_.connections;
  const std::uint64_t id = next_client_++;
  watch(epoll_.get(), connection.fd(), EPOLLIN | EPOLLRDHUP, id * 2, EPOLL_CTL_ADD);
  if (connection.pidfd() >= 0)
    watch(epoll_.get(), connection.pidfd(), EPOLLIN, id * 2 + 1, EPOLL_CTL_ADD);
  clients_.emplace(id, std::make_unique<Client>(id, std::move(connection)));
  handshakes_.emplace_back(Clock::now() + config_.handshake_deadline, id);
}

void ControlLoop::expire_handshakes() {
  while (!handshakes_.empty() && handshakes_.front().first <= Clock::now()) {
    const Client* client = find(handshakes_.front().second);
    if (client != nullptr && !client->welcomed) {
      ++counters_.handshake_timeouts;
      close_client(client->id);
    }
    handshakes_.pop_front();
  }
}

ControlLoop::Client* ControlLoop::find(std::uint64_t id) {
  const auto found = clients_.find(id);
  return found == clients_.end() ? nullptr : found->second.get();
}

void ControlLoop::client_ready(std::uint64_t id, std::uint32_t events) {
  if ((events & EPOLLOUT) != 0) {
    Client* client = find(id);
    if (client == nullptr) return;
    if (!client->connection.flush()) return close_client(id);
    if (!client->connection.wants_to_write()) {
      client->writing = false;
      watch(epoll_.get(), client->connection.fd(), EPOLLIN | EPOLLRDHUP, id * 2, EPOLL_CTL_MOD);
    }
  }
  for (unsigned i = 0; i < kMessagesPerTurn; ++i) {
    Client* client = find(id);  // a message may have closed it
    if (client == nullptr) return;
    auto received = client->connection.receive();
    if (!received && received.error().code == base::Errc::kAgain) return;
    auto handled = received ? message(*client, std::move(*received))
                            : base::Result<void>(std::unexpected(std::move(received.error())));
    if (handled) continue;
    if (handled.error().code != base::Errc::kDisconnected) {
      ++counters_.protocol_errors;
      warn(fmt::format("client {} of uid {}: {}; connection closed",
                       client->connection.client().pid, client->connection.client().uid,
                       handled.error().message()));
    }
    return close_client(id);
  }
}

void ControlLoop::close_client(std::uint64_t id) {
  const auto found = clients_.find(id);
  if (found == clients_.end()) return;
  // Out of the map first: what closing runs must not find it.
  const std::unique_ptr<Client> client = std::move(found->second);
  clients_.erase(found);
  // A descriptor that another process shares stays in the epoll set after our close().
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, client->connection.fd(), nullptr);
  if (client->connection.pidfd() >= 0)
    (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, client->connection.pidfd(), nullptr);
  --counters_.connections;
  --uids_[client->connection.client().uid].connections;
  for (const std::uint64_t session : client->sessions) {
    sessions_.at(session).client = 0;
    close_on_reactor(session, sessions_.at(session));
  }
}

bool ControlLoop::send(Client& client, std::span<const std::byte> bytes,
                       std::vector<base::UniqueFd> descriptors,
                       std::move_only_function<void(bool)> sent) {
  const auto done = client.connection.send(bytes, std::move(descriptors), std::move(sent));
  if (!done) {
    close_client(client.id);
    return false;
  }
  if (client.connection.wants_to_write() && !client.writing) {
    client.writing = true;
    watch(epoll_.get(), client.connection.fd(), EPOLLIN | EPOLLOUT | EPOLLRDHUP, client.id * 2,
          EPOLL_CTL_MOD);
  }
  return true;
}

bool ControlLoop::send_error(Client& client, std::uint64_t request, const base::Error& error) {
  return send_status(client, request, to_status(error.code), error.message());
}

bool ControlLoop::send_status(Client& client, std::uint64_t request, std::int32_t status,
                              std::string text) {
  wire::ErrorMessage out{};
  out.header = {wire::MessageType::kError, sizeof(out), request};
  out.status = status;
  std::memcpy(out.text, text.data(), std::min(text.size(), sizeof(out.text) - 1));
  return send(client, base::as_bytes(out));
}

void ControlLoop::close_all(std::move_only_function<void()> quiet) {
  quiet_ = std::move(quiet);
  listener_.reset();
  while (!clients_.empty()) close_client(clients_.begin()->first);
  if (sessions_.empty() && quiet_) std::exchange(quiet_, nullptr)();
}

void ControlLoop::update_device(const wire::DeviceInfo& info) {
  if (info.index < devices_.size()) devices_[info.index].info = info;
}

// ---- from the reactors ----

void ControlLoop::close_on_reactor(std::uint64_t id, Session& session) {
  session.closing = true;
  const auto& port = devices_[session.device].port;
  port->reactor().post([port, id] { port->close(SessionId(id)); });
}

void ControlLoop::session_opened(SessionId id, OpenedEnds ends) {
  const auto found = sessions_.find(id.value());
  if (found == sessions_.end()) return;
  Session& session = found->second;
  session.opened = true;
  Client* client = find(session.client);
  if (client == nullptr) return;  // closed meanwhile; the reactor has been told
  wire::SessionOpened out{};
  out.header = {wire::MessageType::kSessionOpened, sizeof(out), session.open_request};
  out.session = id.value();
  out.layout = ends.client.layout;
  out.device = devices_[session.device].info;
  std::vector<base::UniqueFd> descriptors;  // in the order of wire::SessionDescriptor
  descriptors.push_back(std::move(ends.client.control));
  descriptors.push_back(std::move(ends.fences));
  descriptors.push_back(std::move(ends.client.doorbell));
  descriptors.push_back(std::move(ends.client.reply_wake));
  descriptors.push_back(std::move(ends.client.event_wake));
  send(*client, base::as_bytes(out), std::move(descriptors));
}

void ControlLoop::session_refused(SessionId id, const base::Error& why) {
  const auto found = sessions_.find(id.value());
  if (found == sessions_.end()) return;
  const std::uint64_t request = found->second.open_request;
  Client* client = find(found->second.client);
  forget_session(id.value());
  if (client != nullptr) send_error(*client, request, why);
}

void ControlLoop::session_broken(SessionId id, const base::Error& why) {
  const auto found = sessions_.find(id.value());
  if (found == sessions_.end()) return;
  ++counters_.protocol_errors;
  warn(fmt::format("session {} of uid {}: {}; session closed", id.value(), found->second.uid,
                   why.message()));
  close_on_reactor(id.value(), found->second);
}

void ControlLoop::session_gone(SessionId id) {
  const auto found = sessions_.find(id.value());
  if (found == sessions_.end()) return;
  const std::uint64_t request = found->second.close_request;
  Client* client = find(found->second.client);
  forget_session(id.value());
  if (client == nullptr || request == 0) return;
  wire::SessionClosed out{};
  out.header = {wire::MessageType::kSessionClosed, sizeof(out), request};
  out.session = id.value();
  send(*client, base::as_bytes(out));
}

void ControlLoop::forget_session(std::uint64_t id) {
  const auto found = sessions_.find(id);
  if (Client* client = find(found->second.client)) client->sessions.erase(id);
  --uids_[found->second.uid].sessions;
  sessions_.erase(found);
  --counters_.sessions;
  if (sessions_.empty() && quiet_) std::exchange(quiet_, nullptr)();
}

void ControlLoop::send_descriptors(SessionId id, std::uint32_t tag,
                                   std::vector<base::UniqueFd> descriptors,
                                   std::move_only_function<void(bool)> sent) {
  const auto found = sessions_.find(id.value());
  Client* client = found == sessions_.end() ? nullptr : find(found->second.client);
  if (client == nullptr) return sent(false);
  wire::Descriptors out{};
  out.header = {wire::MessageType::kDescriptors, sizeof(out), 0};
  out.session = id.value();
  out.tag = tag;
  out.count = static_cast<std::uint32_t>(descriptors.size());
  send(*client, base::as_bytes(out), std::move(descriptors), std::move(sent));
}

}  // namespace gpuumd
