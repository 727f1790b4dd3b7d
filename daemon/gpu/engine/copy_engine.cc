#include "daemon/gpu/engine/copy_engine.h"

#include <algorithm>
#include <cassert>

namespace gpuumd {
namespace {

// Behind each job: NOP, FENCE twice.
constexpr std::size_t kTailDwords = 1 + 8;

}  // namespace

CopyEngine::CopyEngine(Reactor& reactor, SdmaQueue queue, EngineMemory fence,
                       std::move_only_function<void(const base::Error&)> on_hung)
    : reactor_(reactor), queue_(queue), fence_(fence), on_hung_(std::move(on_hung)) {}

void CopyEngine::start() {
  assert(in_flight_.empty());
  fence_.word().store(next_point_, std::memory_order_release);
  failed_.reset();
  queue_.program();
}

void CopyEngine::submit(std::span<const std::uint32_t> packets, Done done) {
  assert(packets.size() <= kMaxJobDwords);
  if (failed_) {
    later(std::move(done), std::unexpected(*failed_));
    return;
  }
  if (waiting_.empty() && send(packets, done)) return;
  waiting_.push_back({{packets.begin(), packets.end()}, std::move(done)});
}

bool CopyEngine::send(std::span<const std::uint32_t> packets, Done& done) {
  // Room for the TRAP of request_wake() stays: without it nobody would be woken.
  const auto needed = base::align_up(packets.size() + kTailDwords, SdmaQueue::kSubmitDwords) +
                      SdmaQueue::kSubmitDwords;
  if (needed > queue_.space()) return false;
  scratch_.assign(packets.begin(), packets.end());
  sdma::PacketWriter out(scratch_);
  // Two jobs never overlap: the NOP ends what COPYs before it may still have in flight.
  sdma::nop(out);
  sdma::fence64(out, fence_.at.value(), ++next_point_);
  assert(scratch_.size() == packets.size() + kTailDwords);
  const auto end = (queue_.write_dwords() + scratch_.size()) * 4;
  [[maybe_unused]] const auto sent = queue_.submit(scratch_);
  assert(sent.has_value());
  if (in_flight_.empty()) oldest_since_ = reactor_.now();
  in_flight_.push_back({next_point_, end, std::move(done)});
  if (!watchdog_) watch();
  return true;
}

// Wakes the reactor when the oldest job may be overdue; poll() judges it.
void CopyEngine::watch() {
  const auto left = oldest_since_ + kJobDeadline - reactor_.now();
  watchdog_ = reactor_.after(left + std::chrono::milliseconds(1), "copy engine", [this] {
    watchdog_.cancel();
    if (!in_flight_.empty() && reactor_.now() - oldest_since_ <= kJobDeadline) watch();
  });
}

void CopyEngine::copy(base::McAddress from, base::McAddress to, std::uint64_t bytes, Done done) {
  std::vector<std::uint32_t> packets;
  sdma::PacketWriter out(packets);
  for (std::uint64_t at = 0; at < bytes; at += sdma::kMaxCopyBytes)
    sdma::copy_linear(out, from.value() + at, to.value() + at,
                      std::min(sdma::kMaxCopyBytes, bytes - at));
  submit(packets, std::move(done));
}

void CopyEngine::fill(base::McAddress to, std::uint32_t value, std::uint64_t bytes, Done done) {
  assert(bytes % 4 == 0);
  std::vector<std::uint32_t> packets;
  sdma::PacketWriter out(packets);
  for (std::uint64_t at = 0; at < bytes; at += sdma::kMaxCopyBytes)
    sdma::const_fill(out, to.value() + at, value, sdma::FillSize::kDword,
                     std::min(sdma::kMaxCopyBytes, bytes - at));
  submit(packets, std::move(done));
}

bool CopyEngine::complete() {
  // The device's word is believed only within what was promised.
  const auto reached = fence_.word().load(std::memory_order_acquire);
  if (reached > next_point_) return false;
  bool any = false;
  while (!in_flight_.empty() && in_flight_.front().point <= reached) {
    queue_.passed(in_flight_.front().end);
    finished_.emplace_back(std::move(in_flight_.front().done), base::Result<void>());
    in_flight_.pop_front();
    oldest_since_ = reactor_.now();
    any = true;
  }
  return any;
}

bool CopyEngine::poll() {
  bool any = complete();
  while (!failed_ && !waiting_.empty() && send(waiting_.front().packets, waiting_.front().done)) {
    waiting_.pop_front();
    any = true;
  }
  if (!in_flight_.empty() && reactor_.now() - oldest_since_ > kJobDeadline) {
    fail({base::Errc::kDeviceError, 0, "the daemon's copy engine: no fence in 2 s"});
    if (on_hung_) on_hung_(*failed_);
  }
  // Called last and from a list of its own: a callback may submit the next job.
  auto finished = std::exchange(finished_, {});
  for (auto& [done, result] : finished) done(std::move(result));
  return any || !finished.empty();
}

void CopyEngine::request_wake() {
  if (in_flight_.empty() || trap_after_ == next_point_) return;
  scratch_.clear();
  sdma::PacketWriter out(scratch_);
  sdma::trap(out, queue_.index());
  if (queue_.submit(scratch_)) trap_after_ = next_point_;
}

void CopyEngine::fail(base::Error error) {
  failed_ = std::move(error);
  for (auto& flight : std::exchange(in_flight_, {}))
    later(std::move(flight.done), std::unexpected(*failed_));
  for (auto& waiting : std::exchange(waiting_, {}))
    later(std::move(waiting.done), std::unexpected(*failed_));
}

void CopyEngine::later(Done done, base::Result<void> result) {
  finished_.emplace_back(std::move(done), std::move(result));
}

}  // namespace gpuumd
