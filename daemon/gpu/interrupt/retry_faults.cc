#include "daemon/gpu/interrupt/retry_faults.h"

#include <cassert>

namespace gpuumd {

bool RetryFaults::arrive(const PageFault& fault) {
  auto& slot = slots_[fault.cam_index % slots_.size()];
  if (slot != Slot::kFree) {
    ++counters_.repeated;
    return false;
  }
  assert(count_ < ring_.size());  // no more than there are slots
  slot = Slot::kQueued;
  ring_[(first_ + count_++) % ring_.size()] = fault;
  ++counters_.queued;
  return true;
}

PageFault RetryFaults::pop() {
  const PageFault fault = ring_[first_];
  first_ = (first_ + 1) % ring_.size();
  --count_;
  return fault;
}

std::optional<RetryFault> RetryFaults::next() {
  if (count_ == 0) return {};
  const PageFault fault = pop();
  slots_[fault.cam_index] = Slot::kInService;
  ++in_service_;
  return RetryFault(*this, fault);
}

// The slot is free before the device hears of it: its next fault may come with this very index.
void RetryFaults::release(std::uint16_t index) {
  assert(slots_[index] == Slot::kInService);
  slots_[index] = Slot::kFree;
  --in_service_;
  ++counters_.acknowledged;
  acknowledge_(index);
}

void RetryFaults::clear() {
  while (next()) {
  }
}

void RetryFaults::forget() {
  while (count_ > 0) slots_[pop().cam_index] = Slot::kFree;
}

}  // namespace gpuumd
