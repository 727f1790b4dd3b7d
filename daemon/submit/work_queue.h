// A client's queue inside the daemon: the commands taken from its ring and not launched yet.
// Reactor thread.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "base/result.h"
#include "daemon/ipc/queue_ring.h"
#include "daemon/submit/slice.h"

namespace gpuumd {

class VmWork;
class Lane;

class WorkQueue {
 public:
  // Commands read ahead of the engine. What is beyond stays in the client's ring, which is how a
  // client that submits too fast is slowed down (LR-7).
  static constexpr std::size_t kReadAhead = 64;

  WorkQueue(ObjectId id, VmWork& vm, QueueRing ring, FindFence find_fence, bool high_priority)
      : id_(id),
        vm_(vm),
        ring_(std::move(ring)),
        find_fence_(std::move(find_fence)),
        high_priority_(high_priority) {}

  ObjectId id() const { return id_; }
  VmWork& vm() { return vm_; }
  bool high_priority() const { return high_priority_; }

  // Takes commands from the ring. True when it took one. kProtocol: the session is to be ended.
  base::Result<bool> read_ring();
  // Whether the command at the front could go now (or must be failed).
  bool ready() const;
  bool idle() const { return commands_.empty() && in_flight == 0 && ring_.empty(); }

  // Builds the next slice. A command that is wrong breaks the queue: it and all that follow are not
  // executed, and every signal among them completes with that error.
  BuildStop build(Slice& slice);

  // From now on nothing is executed; the signals of commands taken and to come fail with `why`.
  void break_queue(base::Errc why);
  bool broken() const { return broken_.has_value(); }
  std::optional<base::Errc> broken_by() const { return broken_; }

  // Of the scheduler: where its slices are, so that they stay in order, and whose turn it is.
  Lane* lane = nullptr;
  unsigned in_flight = 0;
  std::uint64_t last_turn = 0;  // when it was served last

 private:
  void fail_signals();

  ObjectId id_;
  VmWork& vm_;
  QueueRing ring_;
  FindFence find_fence_;
  bool high_priority_;
  std::deque<Command> commands_;
  std::optional<base::Errc> broken_;
};

}  // namespace gpuumd
