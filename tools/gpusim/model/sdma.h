// One SDMA instance of an XCC: ten ring queues that translate through the XCC's GFXHUB
// (docs/hardware/sdma.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tools/gpusim/model/block_context.h"
#include "tools/gpusim/model/vm_hub.h"

namespace gpusim {

// What a retryable fault of one queue stops.
enum class SdmaStall : std::uint8_t { kQueue, kInstance };

struct SdmaConfig {
  unsigned xcc = 0;
  unsigned instance = 0;       // 0 or 1 inside the XCC
  std::uint8_t node_id = 0;    // of the XCC, in interrupt vectors
  std::uint32_t gc0_base = 0;  // absolute dwords of this XCC's GC segments
  std::uint32_t gc1_base = 0;
  SdmaStall stall = SdmaStall::kQueue;
  std::size_t step_bytes = 1 << 20;  // data moved in one step, at most about this
  unsigned in_flight_pages = 64;     // of one copy
};

struct SdmaCounters {
  std::uint64_t packets = 0;
  std::uint64_t bytes_copied = 0;
  std::uint64_t bytes_filled = 0;
  std::uint64_t bytes_written = 0;  // WRITE, FENCE, PTEPDE
  std::uint64_t traps = 0;
  std::uint64_t errors = 0;  // interrupts that stopped a queue
  std::uint64_t queue_resets = 0;
  std::uint64_t retries = 0;
};

// Model thread only.
class SdmaEngine : public Steppable {
 public:
  static constexpr unsigned kQueues = 10;

  SdmaEngine(const SdmaConfig& config, const BlockContext& context, VmHub& hub);
  ~SdmaEngine() override;
  SdmaEngine(const SdmaEngine&) = delete;
  SdmaEngine& operator=(const SdmaEngine&) = delete;

  // A doorbell routed to SDMA, by absolute dword index. False when no enabled queue listens there.
  // `bytes` 4 or 8; 4 changes the low half only (D29).
  bool doorbell(std::uint32_t dword_index, std::uint64_t value, unsigned bytes);

  // Takes what it moves from `budget`, which several engines may share.
  bool step(std::size_t& budget);
  bool step() override {
    std::size_t own = SIZE_MAX;
    return step(own);
  }
  bool waiting() const override;

  // DEVICE_RESET: halts, drops what was in flight.
  void reset();
  const SdmaCounters& counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpusim
