#include "daemon/ipc/device_port.h"

#include <utility>

namespace gpuumd {

struct DevicePort::Session final : ChannelPort {
  Session(SessionId id, DevicePort& port) : id(id), port(port) {}

  void send_descriptors(std::uint32_t tag, std::vector<base::UniqueFd> descriptors,
                        std::move_only_function<void(bool)> sent) override {
    // The answer comes on the control thread and goes on to ours.
    port.observer_->send_descriptors(
        id, tag, std::move(descriptors),
        [&reactor = port.reactor_, sent = std::move(sent)](bool ok) mutable {
          reactor.post([sent = std::move(sent), ok]() mutable { sent(ok); });
        });
  }
  void session_broken(base::Error why) override {
    port.observer_->session_broken(id, std::move(why));
  }

  SessionId id;
  DevicePort& port;
  Channel::ClientEnd client_end;
  std::unique_ptr<Channel> channel;         // outlives the handler, which sends through it
  std::unique_ptr<SessionHandler> handler;  // none until the host has opened the session
  bool closing = false;
};

DevicePort::DevicePort(Reactor& reactor, DeviceHost& host,
                       std::shared_ptr<SessionObserver> observer)
    : reactor_(reactor), host_(host), observer_(std::move(observer)) {}

DevicePort::~DevicePort() = default;

void DevicePort::open(SessionId id, const ClientIdentity& client) {
  auto session = std::make_unique<Session>(id, *this);
  auto channel = Channel::create(reactor_, *session, session->client_end);
  if (!channel) return observer_->session_refused(id, std::move(channel.error()));
  session->channel = std::move(*channel);
  Channel& raw = *session->channel;
  sessions_.emplace(id.value(), std::move(session));
  host_.open_session(id, client, raw,
                     [self = shared_from_this(), id](base::Result<OpenedSession> opened) {
                       self->host_opened(id, std::move(opened));
                     });
}

void DevicePort::host_opened(SessionId id, base::Result<OpenedSession> opened) {
  const auto found = sessions_.find(id.value());
  if (found == sessions_.end()) return;
  Session& session = *found->second;
  if (!opened) {
    // Closed meanwhile: then the control thread waits for session_gone().
    if (session.closing)
      observer_->session_gone(id);
    else
      observer_->session_refused(id, std::move(opened.error()));
    return forget(id);
  }
  session.handler = std::move(opened->handler);
  if (session.closing) return close_handler(session);
  OpenedEnds ends{std::move(session.client_end), std::move(opened->fences)};
  ends.client.layout.fence_slots = opened->fence_slots;
  session.channel->start(*session.handler);
  observer_->session_opened(id, std::move(ends));
}

void DevicePort::close(SessionId id) {
  const auto found = sessions_.find(id.value());
  if (found == sessions_.end() || found->second->closing) return;
  Session& session = *found->second;
  session.closing = true;
  session.channel->close();
  if (session.handler) close_handler(session);
}

void DevicePort::close_handler(Session& session) {
  session.handler->close([self = shared_from_this(), id = session.id] {
    self->reactor_.post([self, id] {
      self->sessions_.erase(id.value());
      self->observer_->session_gone(id);
    });
  });
}

void DevicePort::forget(SessionId id) {
  reactor_.post([self = shared_from_this(), id] { self->sessions_.erase(id.value()); });
}

void DevicePort::descriptors_arrived(SessionId id, std::uint32_t tag,
                                     std::vector<ForeignFd> descriptors) {
  const auto found = sessions_.find(id.value());
  if (found != sessions_.end())
    found->second->channel->descriptors_arrived(tag, std::move(descriptors));
}

}  // namespace gpuumd
