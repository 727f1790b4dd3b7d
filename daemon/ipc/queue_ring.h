// The daemon's side of one submission ring: the client writes commands, the owner of the queue
// takes them. Reactor thread only.
#pragma once

#include <cstdint>
#include <optional>

#include "base/fd.h"
#include "base/result.h"
#include "base/shared_memory.h"
#include "daemon/ipc/requests.h"
#include "gpuumd/ring.h"
#include "gpuumd/wire.h"

namespace gpuumd {

class QueueRing {
 public:
  // `slots`: power of two, kMinQueueSlots..kMaxQueueSlots. kSystem, kNoMemory.
  static base::Result<QueueRing> create(std::uint32_t slots);

  // The memfd for the client, once.
  base::UniqueFd take_descriptor() { return std::move(descriptor_); }

  // The next command, or nothing when the client has published none. kProtocol when the indices or
  // the command are not what a sound client writes: then Channel::fail() is due. A command is
  // copied out before it is checked, and its slots are free for the client again.
  base::Result<std::optional<Command>> next();

  // Whether next() would look at a command; no check.
  bool empty() const;

  std::uint32_t slots() const { return ring_.slots(); }

 private:
  QueueRing(base::UniqueFd descriptor, base::Mapping mapping, std::uint32_t slots);

  base::UniqueFd descriptor_;
  base::Mapping mapping_;
  wire::QueuePage* page_;
  wire::CommandSlot* commands_;
  RingConsumer ring_;
};

}  // namespace gpuumd
