// The reactor's end of what the control thread does for one device: opens and closes its sessions,
// and owns their channels and handlers. Reactor thread only, except that it may be made on another.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "daemon/ipc/channel.h"
#include "daemon/ipc/session_handler.h"
#include "daemon/reactor/reactor.h"

namespace gpuumd {

// What the client of a new session gets.
struct OpenedEnds {
  Channel::ClientEnd client;
  base::UniqueFd fences;
};

// What the control thread is told. Every call is made on the reactor thread and must only post.
class SessionObserver {
 public:
  virtual ~SessionObserver() = default;
  virtual void session_opened(SessionId id, OpenedEnds ends) = 0;
  virtual void session_refused(SessionId id, base::Error why) = 0;
  virtual void session_broken(SessionId id, base::Error why) = 0;
  virtual void session_gone(SessionId id) = 0;  // nothing of it is left
  virtual void send_descriptors(SessionId id, std::uint32_t tag,
                                std::vector<base::UniqueFd> descriptors,
                                std::move_only_function<void(bool)> sent) = 0;
};

class DevicePort : public std::enable_shared_from_this<DevicePort> {
 public:
  // `observer` outlives the port.
  DevicePort(Reactor& reactor, DeviceHost& host, std::shared_ptr<SessionObserver> observer);
  ~DevicePort();

  Reactor& reactor() { return reactor_; }
  DeviceHost& host() { return host_; }

  // Ends in session_opened() or session_refused().
  void open(SessionId id, const ClientIdentity& client);
  // Ends in session_gone(), for a session that was not refused. A second call does nothing.
  void close(SessionId id);
  void descriptors_arrived(SessionId id, std::uint32_t tag, std::vector<ForeignFd> descriptors);

 private:
  struct Session;

  void host_opened(SessionId id, base::Result<OpenedSession> opened);
  void close_handler(Session& session);
  void forget(SessionId id);  // on a later turn: a callback of the session may be on the stack

  Reactor& reactor_;
  DeviceHost& host_;
  std::shared_ptr<SessionObserver> observer_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Session>> sessions_;
};

}  // namespace gpuumd
