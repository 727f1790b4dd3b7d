// A slice: what goes to an engine at one time for one queue, as an indirect buffer in the VMID of
// its VM. Built from typed commands; nothing a client wrote is copied into it but the data of a
// `write`.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/address.h"
#include "base/result.h"
#include "daemon/ipc/requests.h"

namespace gpuumd {

class Fence;

// At most this much of one queue is on an engine before another VM can have its turn.
inline constexpr std::uint64_t kSliceBytes = 4 * base::kMiB;
inline constexpr std::uint32_t kIbBytes = 4096;  // one IB slot
inline constexpr std::uint32_t kIbDwords = kIbBytes / 4;

// Work in flight keeps the fence it signals: the engine may still write its slot.
struct SliceSignal {
  std::shared_ptr<Fence> fence;
  std::uint64_t point;
};

struct Slice {
  std::vector<std::uint32_t> ib;  // a multiple of 8 dwords, at most kIbDwords
  std::vector<SliceSignal> signals;
  std::uint64_t bytes = 0;  // moved or filled
  bool empty() const { return ib.empty(); }
  void clear() {
    ib.clear();
    signals.clear();
    bytes = 0;
  }
};

// A fence that a command names, with its place in the VM (the session's fence page is mapped
// there); null for an id that the session does not have.
struct FencePlace {
  std::shared_ptr<Fence> fence;
  base::GpuVa slot;
};
using FindFence = std::function<FencePlace(ObjectId)>;

enum class BuildStop : std::uint8_t {
  kEmptyQueue,  // all commands taken
  kFull,        // the slice is full; more commands wait
  kWait,        // the next command waits for a fence: the wait is left at the front
};

// Takes commands from the front of `commands` into `slice` (which is empty) until one of the
// reasons to stop. A copy or fill larger than what is left of the slice is taken in part: the
// command at the front becomes the rest. An unknown fence (kNotFound), a point that does not rise
// (kInvalidArgument), an operation that the engine lacks (kUnsupported) or a failed wait (its
// error) ends the build with that error; what was built before it is in `slice` and good.
base::Result<BuildStop> build_slice(std::deque<Command>& commands, const FindFence& find_fence,
                                    Slice& slice);

// Whether an IB consists of whole packets of the kinds that a client's work may use: copy, fill,
// write, fence, atomic, timestamp, NOP. Never a register write, INDIRECT, VM invalidation, PTEPDE,
// poll or trap. The last line of defence before an IB is launched.
base::Result<void> check_ib(std::span<const std::uint32_t> ib);

}  // namespace gpuumd
