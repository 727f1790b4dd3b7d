#include "daemon/submit/lane.h"

#include <cassert>
#include <utility>

#include "daemon/gpu/engine/sdma_packets.h"

namespace gpuumd {

void Lane::program() {
  assert(in_flight_.empty());
  // A new count: what an engine that was reset may still have written below it means nothing.
  fence_.word().store(next_point_, std::memory_order_release);
  queue_.program();
  stopped_ = false;
}

void Lane::launch(SliceId id, base::Vmid vmid, base::GpuVa ib, std::uint32_t ib_dwords) {
  assert(has_room());
  scratch_.clear();
  sdma::PacketWriter out(scratch_);
  sdma::indirect(out, queue_.write_dwords(), vmid.value(), ib.value(), ib_dwords);
  sdma::fence64(out, fence_.at.value(), ++next_point_);
  const auto end = (queue_.write_dwords() + scratch_.size()) * 4;
  [[maybe_unused]] const auto sent = queue_.submit(scratch_);
  assert(sent.has_value());  // kMaxInFlight submissions always fit
  in_flight_.push_back({next_point_, id, end});
}

void Lane::request_wake() {
  if (stopped_ || in_flight_.empty() || trap_after_ == next_point_) return;
  scratch_.clear();
  sdma::PacketWriter out(scratch_);
  sdma::trap(out, queue_.index());
  if (queue_.submit(scratch_)) trap_after_ = next_point_;
}

std::vector<SliceId> Lane::stop() {
  stopped_ = true;
  std::vector<SliceId> lost;
  for (const auto& flight : std::exchange(in_flight_, {})) lost.push_back(flight.id);
  return lost;
}

}  // namespace gpuumd
