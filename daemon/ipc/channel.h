// The reactor's side of one session: its rings, its doorbell, its descriptors. It reads requests,
// checks them and hands them to a SessionHandler; replies and events go the other way. It never
// blocks and never trusts what a client can write: indices are read once, bounded and masked, slots
// are copied before they are checked. A client that breaks the protocol loses its session and
// nothing else happens (docs/protocol.md).
//
// Reactor thread only.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "daemon/ipc/requests.h"
#include "daemon/ipc/session_handler.h"
#include "daemon/reactor/reactor.h"
#include "gpuumd/wire.h"

namespace gpuumd {

// One event for the client. Events of the same kind and object are merged while the ring is full.
struct Event {
  std::uint32_t kind = 0;  // GPUUMD_EVENT_*
  std::uint64_t object = 0;
  std::uint64_t va = 0;
  std::uint32_t access = 0;  // GPUUMD_ACCESS_* or 0
  std::int32_t reason = 0;   // gpuumd_status
};

// How descriptors leave and how the session ends: the control thread, behind a seam for tests.
class ChannelPort {
 public:
  virtual ~ChannelPort() = default;
  // Sends `descriptors` with `tag` through the socket, then calls `sent` on the reactor thread
  // (false: the client is gone). Never before it returns.
  virtual void send_descriptors(std::uint32_t tag, std::vector<base::UniqueFd> descriptors,
                                std::move_only_function<void(bool)> sent) = 0;
  // The session broke: the control thread closes it. Once.
  virtual void session_broken(base::Error why) = 0;
};

struct ChannelCounters {
  std::uint64_t requests = 0;
  std::uint64_t refused = 0;  // answered with an error by the channel itself
  std::uint64_t replies = 0;
  std::uint64_t events = 0;
  std::uint64_t events_merged = 0;
  std::uint64_t events_lost = 0;
  std::uint64_t wakes = 0;  // writes to a wake pipe
};

class Channel {
 public:
  static constexpr std::uint32_t kRequestSlots = 64;
  static constexpr std::uint32_t kReplySlots = 64;
  static constexpr std::uint32_t kEventSlots = 128;
  // Every accepted request has a place in the reply ring, so that a reply never waits for the
  // client.
  static constexpr std::uint32_t kMaxOpenRequests = kReplySlots;
  // How long a request waits for the descriptor that it names; the session's later requests wait
  // too.
  static constexpr std::chrono::milliseconds kDescriptorDeadline{1000};
  // Descriptors sent ahead of the requests that name them; more end the session.
  static constexpr std::size_t kMaxHeldDescriptors = 16;

  // What the client gets, in the order of wire::SessionDescriptor, without the fences.
  struct ClientEnd {
    wire::SessionLayout layout{};  // fence_slots left 0
    base::UniqueFd control, doorbell, reply_wake, event_wake;
  };

  // kSystem when memory or descriptors run out.
  static base::Result<std::unique_ptr<Channel>> create(Reactor& reactor, ChannelPort& port,
                                                       ClientEnd& client_end);
  virtual ~Channel() = default;

  // Begins to read requests. `handler` must live until close().
  virtual void start(SessionHandler& handler) = 0;
  // Stops reading and forgets the handler; replies and events are dropped from now on.
  virtual void close() = 0;

  // Answers a request that handle() was given, once. A reply to an id that is not open (after
  // close(), or by mistake) is dropped with its descriptors.
  virtual void reply(RequestId id, base::Result<Reply> result) = 0;
  // Never blocks: merged, then dropped and counted, when the client does not read.
  virtual void event(const Event& event) = 0;
  // The client broke the protocol, as the handler found out (QueueRing::next()). The session ends;
  // handler.close() comes later, not within this call.
  virtual void fail(base::Error why) = 0;

  // From the control thread, posted: descriptors that a request names or will name.
  virtual void descriptors_arrived(std::uint32_t tag, std::vector<ForeignFd> descriptors) = 0;

  virtual const ChannelCounters& counters() const = 0;
};

}  // namespace gpuumd
