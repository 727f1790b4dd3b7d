// One timeline fence of a session: what was promised, what is reached, what failed (VMB-17, LR-3).
// Reactor thread.
//
// The GPU writes the client's copy (wire::FenceSlot) with commands of the client's own, so the
// client can forge it. What the daemon decides (waits of queues and clients, memory, lanes) it
// decides by reached(), which follows the daemon's own fences alone.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>

#include "base/result.h"
#include "daemon/ipc/requests.h"
#include "gpuumd/wire.h"

namespace gpuumd {

class Fence {
 public:
  using Waiter = std::move_only_function<void(base::Result<std::uint64_t> value)>;
  using WaiterId = std::uint64_t;

  // `slot` is the daemon's mapping of the client's slot `index`, zeroed; it outlives the fence.
  Fence(ObjectId id, wire::FenceSlot& slot, std::uint32_t index)
      : id_(id), slot_(slot), index_(index) {}
  ~Fence() { abandon(); }
  Fence(const Fence&) = delete;
  Fence& operator=(const Fence&) = delete;

  ObjectId id() const { return id_; }
  std::uint32_t index() const { return index_; }

  // A signal to `point` was accepted. kInvalidArgument for 0 and for a point that does not rise.
  base::Result<void> promise(std::uint64_t point);

  // All work up to `point` is done.
  void reach(std::uint64_t point);
  // The work that was to reach `point` ended with `why`: error and first failed point first, then
  // the value rises past every point promised so far, so that each waiter wakes and sees both.
  // Points promised and not reached yet fail with it.
  void fail(std::uint64_t point, base::Errc why);

  std::uint64_t reached() const { return reached_; }
  // Why `point` can never be reached by work that succeeded, if so.
  std::optional<base::Errc> failure(std::uint64_t point) const;

  // Calls `waiter` once: with the value when `point` is reached, with the error when it failed. At
  // once, from inside the call, when that is so already (then the id is 0).
  WaiterId wait(std::uint64_t point, Waiter waiter);
  void cancel(WaiterId id);
  // Its owner has let go of it: waiters get kNotFound, now and later.
  void abandon();

 private:
  void wake();

  ObjectId id_;
  wire::FenceSlot& slot_;
  std::uint32_t index_;
  std::uint64_t promised_ = 0;
  std::deque<std::uint64_t> outstanding_;  // promised and above reached_, rising
  std::uint64_t reached_ = 0;
  std::optional<base::Errc> error_;
  std::uint64_t first_failed_ = 0;
  bool abandoned_ = false;
  WaiterId next_waiter_ = 1;
  struct Waiting {
    WaiterId id;
    Waiter waiter;
  };
  std::multimap<std::uint64_t, Waiting> waiting_;  // by point
};

}  // namespace gpuumd
