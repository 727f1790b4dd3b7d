#include "daemon/gpu/engine/sdma_queue.h"

#include <bit>
#include <cassert>
#include <cstring>

#include "daemon/gpu/engine/sdma_packets.h"

namespace gpuumd {

using namespace sdma;  // NOLINT: register names read best bare, as in the manual

namespace {

constexpr std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
constexpr std::uint32_t high(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32);
}

constexpr unsigned kDoorbellBytes = 4;

}  // namespace

void SdmaQueue::program() {
  const auto& io = place_.registers;
  const unsigned q = place_.queue;
  assert(std::has_single_bit(place_.ring.size) && place_.ring.size >= 1024);
  wptr_ = rptr_ = 0;
  place_.pointers.word(0).store(0, std::memory_order_relaxed);
  place_.pointers.word(8).store(0, std::memory_order_release);

  const auto dwords = static_cast<std::uint32_t>(place_.ring.size / 4);
  auto control = base::Value<RB_CNTL>()
                     .with<RB_CNTL::RB_SIZE>(std::countr_zero(dwords))
                     .with<RB_CNTL::RB_PRIV>(true)
                     .with<RB_CNTL::RPTR_WRITEBACK_ENABLE>(true);
  io.write(control, q);
  io.write(base::Value<RB_RPTR>(0), q);
  io.write(base::Value<RB_RPTR_HI>(0), q);
  io.write(base::Value<RB_WPTR>(0), q);
  io.write(base::Value<RB_WPTR_HI>(0), q);
  const auto poll = place_.pointers.at.value() + 8;
  io.write(base::Value<RB_WPTR_POLL_ADDR_LO>(low(poll)), q);
  io.write(base::Value<RB_WPTR_POLL_ADDR_HI>(high(poll)), q);
  const auto back = place_.pointers.at.value();
  io.write(base::Value<RB_RPTR_ADDR_LO>(low(back)), q);
  io.write(base::Value<RB_RPTR_ADDR_HI>(high(back)), q);
  const auto ring = place_.ring.at.value();
  assert(ring % 256 == 0);
  io.write(base::Value<RB_BASE>(low(ring >> 8)), q);
  io.write(base::Value<RB_BASE_HI>(low(ring >> 40)), q);

  io.write(base::Value<MINOR_PTR_UPDATE>().with<MINOR_PTR_UPDATE::ENABLE>(true), q);
  io.write(base::Value<RB_WPTR>(0), q);
  io.write(base::Value<RB_WPTR_HI>(0), q);
  io.write(base::Value<DOORBELL>().with<DOORBELL::ENABLE>(true), q);
  io.write(base::Value<DOORBELL_OFFSET>().with<DOORBELL_OFFSET::OFFSET>(place_.doorbell), q);
  io.write(base::Value<MINOR_PTR_UPDATE>(0), q);

  io.write(control.with<RB_CNTL::RB_ENABLE>(true), q);
  io.write(base::Value<IB_CNTL>(0x100).with<IB_CNTL::IB_ENABLE>(true), q);
}

void SdmaQueue::disable() {
  place_.registers.write(base::Value<IB_CNTL>(0x100), place_.queue);
  place_.registers.write(base::Value<RB_CNTL>(0), place_.queue);
}

std::uint64_t SdmaQueue::consumed() const {
  const auto seen = place_.pointers.word(0).load(std::memory_order_acquire);
  if (seen >= rptr_ && seen <= wptr_) rptr_ = seen;
  return rptr_;
}

std::uint64_t SdmaQueue::space() const {
  const auto used = (wptr_ - consumed()) / 4;
  // One submission unit stays free, so that a full ring never looks empty modulo its size.
  return place_.ring.size / 4 - used - kSubmitDwords;
}

base::Result<void> SdmaQueue::submit(std::span<const std::uint32_t> packets) {
  const auto total = base::align_up(packets.size(), kSubmitDwords);
  if (total > space()) return base::fail(base::Errc::kAgain, "SDMA ring full");
  auto* ring = reinterpret_cast<std::uint32_t*>(place_.ring.cpu);
  const auto mask = place_.ring.size / 4 - 1;
  auto at = write_dwords();
  const auto put = [&](std::uint32_t word) {
    std::atomic_ref(ring[at++ & mask]).store(word, std::memory_order_relaxed);
  };
  for (const auto word : packets) put(word);
  for (auto n = packets.size(); n < total; ++n) put(header(Op::kNop));
  wptr_ += total * 4;
  place_.pointers.word(8).store(wptr_, std::memory_order_release);
  place_.doorbells->ring_doorbell64(std::uint64_t{place_.doorbell} * kDoorbellBytes, wptr_);
  return {};
}

}  // namespace gpuumd
