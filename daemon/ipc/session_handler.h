// What the daemon's device side implements for daemon/ipc: DeviceHost once a device, SessionHandler
// once a session. Everything is called on the device's reactor thread unless marked.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/fd.h"
#include "base/result.h"
#include "daemon/ipc/requests.h"

namespace gpuumd {

class Channel;

// Who is on the other end, from SO_PEERCRED. Limits and permissions go by uid alone; pid and name
// are for people (a pid can be re-used).
struct ClientIdentity {
  uid_t uid = 0;
  gid_t gid = 0;
  pid_t pid = 0;
  std::string name;  // as the client calls itself, printable characters only
};

// What a session's owner of objects does. Made by DeviceHost::open_session().
class SessionHandler {
 public:
  virtual ~SessionHandler() = default;

  // One request. It is answered with channel.reply(id, ...), within the call or later, exactly
  // once; the requests of a session arrive in order, their answers may come in any. At most
  // Channel::kMaxOpenRequests are open at a time.
  virtual void handle(RequestId id, Request request) = 0;

  // Called on every turn of the reactor, and once more before it sleeps: looks at the session's
  // QueueRings. True when it took a command. A bounded piece of work.
  virtual bool poll_queues() = 0;

  // The client is gone, closed the session or broke the protocol: give up everything it owns, what
  // others hold excepted. Open requests are finished (or cancelled) and their results undone;
  // replies and events go nowhere from now on. Called once. `done` is called exactly once, in the
  // call or later, when nothing of the session is left; the handler is destroyed soon after, and
  // its place in the uid's limits becomes free.
  virtual void close(std::move_only_function<void()> done) = 0;
};

// What open_session() gives when it succeeded.
struct OpenedSession {
  std::unique_ptr<SessionHandler> handler;
  // memfd of wire::FenceSlots, of which the session owns all: mapped by daemon and device, then
  // sealed SHRINK|GROW|FUTURE_WRITE|SEAL, so that the client can only read it.
  base::UniqueFd fences;
  std::uint32_t fence_slots = 0;
};

class DeviceHost {
 public:
  virtual ~DeviceHost() = default;

  // A client opens a session. `done` is called exactly once, in the call or later. `channel`
  // outlives the handler that is handed over; before `done` nothing may be sent through it. When
  // the client goes in the meantime, `done` is still to be called, and the handler is closed at
  // once.
  virtual void open_session(SessionId id, const ClientIdentity& client, Channel& channel,
                            std::move_only_function<void(base::Result<OpenedSession>)> done) = 0;

  // JSON for gpuumd_query(): `kind` is one of GPUUMD_QUERY_*. An object of this device's state; the
  // control thread puts those of several devices into one array. What belongs to other uids may be
  // left out unless `client` is root or the daemon's own uid. kInvalidArgument for an unknown kind.
  virtual void query(std::uint32_t kind, const ClientIdentity& client,
                     std::move_only_function<void(base::Result<std::string>)> done) = 0;
};

}  // namespace gpuumd
