// The fence slots of one session: daemon memory that the client maps read-only and that its VMs map
// writable, so that the session's own GPU work can signal (docs/protocol.md "Fences"). Device
// thread.
#pragma once

#include <fcntl.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "base/result.h"
#include "daemon/gpu/device/gpu.h"
#include "daemon/session/vm.h"
#include "gpuumd/wire.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace gpuumd {

class FenceSlots {
 public:
  static constexpr std::uint32_t kSlots = 256;
  static constexpr std::uint64_t kBytes = kSlots * sizeof(wire::FenceSlot);

  // Makes, maps and seals it. `done` later: kNoMemory, kNoSpace.
  static void create(Gpu& gpu, DoneWith<std::unique_ptr<FenceSlots>> done);

  // A zeroed slot, or kLimit.
  base::Result<std::uint32_t> take();
  void give_back(std::uint32_t slot);
  wire::FenceSlot& slot(std::uint32_t index) const { return cpu_.at<wire::FenceSlot>()[index]; }
  // Where a VM has it.
  static base::GpuVa address(std::uint32_t index) {
    return kFenceVa + std::uint64_t{index} * sizeof(wire::FenceSlot);
  }

  FencePage page() { return {buffer_, &chunks_}; }
  // For the client, which cannot map it writable any more.
  base::Result<base::UniqueFd> descriptor() const { return buffer_.fd()->duplicate(); }

 private:
  FenceSlots() = default;
  HostBuffer buffer_;
  base::Mapping cpu_;
  std::vector<HostChunk> chunks_;
  std::vector<std::uint32_t> free_;
};

}  // namespace gpuumd
