#include "tools/gpusim/model/invalidation.h"

#include <algorithm>
#include <utility>

namespace gpusim {
namespace {

constexpr std::uint32_t kSemaphoreAck = 1u << 16;

}  // namespace

Invalidation::Invalidation(HubRegisters& registers, const BlockContext& context, bool mmhub,
                           TranslationCache& cache, HubCounters& counters,
                           std::function<void()> clear_fault_status)
    : registers_(registers),
      context_(context),
      mmhub_(mmhub),
      cache_(cache),
      counters_(counters),
      clear_fault_status_(std::move(clear_fault_status)) {
  for (unsigned e = 0; e < HubRegisters::kEngines; ++e) {
    registers_.sem[e]->on_read = [this, e](std::uint32_t) -> std::uint32_t {
      if (!mmhub_) return 1;
      return std::exchange(taken_[e], true) ? 0 : 1;
    };
    registers_.sem[e]->on_write = [this, e](std::uint32_t written, std::uint32_t) {
      if ((written & 1) == 0) taken_[e] = false;
      return 0u;
    };
    registers_.req[e]->on_write = [this, e](std::uint32_t written, std::uint32_t) {
      request(e, base::Value<INVALIDATE_REQ>(written));
      return written;
    };
    registers_.ack[e]->on_read = [this, e](std::uint32_t) { return acknowledged(e); };
    registers_.ack[e]->on_write = [](std::uint32_t, std::uint32_t stored) { return stored; };
  }
}

const InFlight* Invalidation::in_flight_to_if_any(std::uint16_t accel) const {
  const auto at = in_flight_to_.find(accel);
  return at == in_flight_to_.end() ? nullptr : &at->second;
}

void Invalidation::request(unsigned engine, base::Value<INVALIDATE_REQ> request) {
  using R = INVALIDATE_REQ;
  const std::uint16_t vmids = request.get<R::PER_VMID>();
  const bool heavy = request.get<R::FLUSH_TYPE>() == R::kHeavy;
  if (mmhub_ && !taken_[engine]) ++counters_.flushes_without_semaphore;
  if (request.get<R::CLEAR_FAULT_STATUS>()) clear_fault_status_();
  // A request that comes again before it was acknowledged replaces the earlier one.
  std::erase_if(pending_, [&](const Pending& p) {
    return p.engine == engine && ((vmids >> p.vmid) & 1) != 0;
  });
  registers_.ack[engine]->stored &= ~std::uint32_t{vmids};

  ModelTime not_before{};
  if (delayed_acks_ != 0) {
    --delayed_acks_;
    not_before = context_.clock.now() + ack_delay_;
  }
  const FlushScope scope = FlushScope::of(request);
  for (std::uint8_t vmid = 0; vmid < HubRegisters::kVmids; ++vmid) {
    if (((vmids >> vmid) & 1) == 0) continue;
    cache_.flush(vmid, scope);
    const std::uint64_t epoch = heavy ? in_flight_[vmid].mark() : 0;
    pending_.push_back({engine, vmid, heavy, epoch, not_before});
    ++(heavy ? counters_.heavy_flushes : counters_.light_flushes);
  }
}

std::uint32_t Invalidation::acknowledged(unsigned engine) {
  std::uint32_t& word = registers_.ack[engine]->stored;
  const ModelTime now = context_.clock.now();
  std::erase_if(pending_, [&](const Pending& p) {
    if (p.engine != engine || now < p.not_before) return false;
    if (p.heavy && !in_flight_[p.vmid].done(p.epoch)) return false;
    word |= 1u << p.vmid;
    return true;
  });
  return word | (mmhub_ && taken_[engine] ? kSemaphoreAck : 0);
}

void Invalidation::reset() {
  taken_.fill(false);
  pending_.clear();
  delayed_acks_ = 0;
}

void Invalidation::delay_acks(ModelTime by, std::uint64_t count) {
  ack_delay_ = by;
  delayed_acks_ = count;
}

}  // namespace gpusim
