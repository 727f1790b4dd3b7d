#include "tools/gpusim/model/sdma.h"

#include <algorithm>
#include <array>
#include <bit>
#include <string>

#include "tools/gpusim/model/sdma_queue.h"
#include "tools/gpusim/model/sdma_registers.h"

namespace gpusim {
namespace {

constexpr std::uint32_t kStatusIdle = 1;
constexpr std::uint32_t kAllQueues = (1u << SdmaEngine::kQueues) - 1;

}  // namespace

struct SdmaEngine::Impl {
  Impl(const SdmaConfig& engine_config, const BlockContext& block_context, VmHub& hub);

  void add_hooks();
  void add_scenario();
  void set_control(unsigned queue, std::uint32_t written, std::uint32_t before);
  void reset_queues(std::uint32_t mask);
  bool step(std::size_t& budget);
  bool can_run(unsigned queue) const {
    return ((hung >> queue) & 1) == 0 && queues[queue]->has_work();
  }

  SdmaConfig config;
  const BlockContext& context;
  SdmaRegisters registers;
  SdmaCounters counters;
  SdmaShared shared;
  std::array<std::unique_ptr<SdmaQueue>, kQueues> queues;
  unsigned first = 0;      // where the next round starts
  std::uint32_t hung = 0;  // scenario: queues that stand still
  std::uint32_t hard = 0;  // of those: not even a queue reset helps
};

SdmaEngine::Impl::Impl(const SdmaConfig& engine_config, const BlockContext& block_context,
                       VmHub& hub)
    : config(engine_config),
      context(block_context),
      registers(block_context.registers, engine_config.xcc, engine_config.instance,
                engine_config.gc0_base, engine_config.gc1_base, block_context.seed),
      shared{config, context, hub, registers, counters} {
  for (unsigned q = 0; q < kQueues; ++q) queues[q] = std::make_unique<SdmaQueue>(shared, q);
  add_hooks();
  add_scenario();
}

void SdmaEngine::Impl::add_hooks() {
  for (unsigned q = 0; q < kQueues; ++q) {
    registers.queues[q].rb_cntl->on_write = [this, q](std::uint32_t written, std::uint32_t before) {
      set_control(q, written, before);
      return written;
    };
  }
  registers.status->on_write = [](std::uint32_t, std::uint32_t stored) { return stored; };
  registers.status->on_read = [this](std::uint32_t) -> std::uint32_t {
    for (unsigned q = 0; q < kQueues; ++q)
      if (queues[q]->has_work()) return 0;
    return kStatusIdle;
  };
  registers.queue_reset_req->on_write = [this](std::uint32_t written, std::uint32_t stored) {
    reset_queues(written & kAllQueues & ~hard);
    return stored | (written & hard);
  };
  registers.mcu_cntl->on_write = [this](std::uint32_t written, std::uint32_t) {
    if (base::Value<MCU_CNTL>(written).get<MCU_CNTL::RESET>()) {
      hung = hard = 0;
      registers.queue_reset_req->stored = 0;
      reset_queues(kAllQueues);
    }
    return written;
  };
}

// RB_CNTL: a change of RB_ENABLE starts or ends the queue.
void SdmaEngine::Impl::set_control(unsigned queue, std::uint32_t written, std::uint32_t before) {
  const bool on = base::Value<RB_CNTL>(written).get<RB_CNTL::RB_ENABLE>();
  const bool was_on = base::Value<RB_CNTL>(before).get<RB_CNTL::RB_ENABLE>();
  registers.queues[queue].rb_cntl->stored = written;
  if (on && !was_on) queues[queue]->enabled();
  if (!on && was_on) queues[queue]->disabled();
}

void SdmaEngine::Impl::reset_queues(std::uint32_t mask) {
  for (unsigned q = 0; q < kQueues; ++q) {
    if (((mask >> q) & 1) == 0) continue;
    ++counters.queue_resets;
    hung &= ~(1u << q);
    queues[q]->reset();
  }
}

void SdmaEngine::Impl::add_scenario() {
  if (context.hooks == nullptr) return;
  const std::string name =
      "sdma" + std::to_string(config.xcc) + "." + std::to_string(config.instance);
  context.hooks->add(context.gpu, name + ".slow",
                     "us: an access is done this long after it was translated",
                     [this](const ScenarioValues& arguments) -> base::Result<ScenarioValues> {
                       const auto us = arguments.number("us");
                       if (!us) return std::unexpected(us.error());
                       for (auto& queue : queues) queue->set_delay(std::chrono::microseconds(*us));
                       return ScenarioValues();
                     });
  context.hooks->add(
      context.gpu, name + ".hang",
      "queue (absent: all), hard: stands still until reset; hard: until the engine's reset",
      [this](const ScenarioValues& arguments) -> base::Result<ScenarioValues> {
        const auto queue = arguments.number_or("queue", kQueues);
        if (!queue) return std::unexpected(queue.error());
        const auto is_hard = arguments.flag_or("hard", false);
        if (!is_hard) return std::unexpected(is_hard.error());
        const std::uint32_t mask = *queue < kQueues ? 1u << *queue : kAllQueues;
        hung |= mask;
        if (*is_hard) hard |= mask;
        return ScenarioValues();
      });
  context.hooks->add(context.gpu, name + ".resume", "lets hung queues go on",
                     [this](const ScenarioValues&) -> base::Result<ScenarioValues> {
                       hung = hard = 0;
                       return ScenarioValues();
                     });
}

// Round robin; while a queue is stalled and stalls are the whole instance's, only that queue runs.
bool SdmaEngine::Impl::step(std::size_t& budget) {
  if (budget == 0 || !registers.running()) return false;
  std::uint32_t ready = 0;
  std::uint32_t stalled = 0;
  for (unsigned q = 0; q < kQueues; ++q) {
    if (!can_run(q)) continue;
    ready |= 1u << q;
    if (queues[q]->stalled()) stalled |= 1u << q;
  }
  if (ready == 0) return false;
  if (config.stall == SdmaStall::kInstance && stalled != 0) ready = stalled;
  const std::size_t share = std::max<std::size_t>(
      1, std::min(budget, config.step_bytes) / static_cast<unsigned>(std::popcount(ready)));
  bool worked = false;
  for (unsigned i = 0; i < kQueues; ++i) {
    const unsigned q = (first + i) % kQueues;
    if (((ready >> q) & 1) == 0) continue;
    std::size_t left = share;
    worked |= queues[q]->run(left);
    budget -= std::min(budget, share - left);
  }
  first = (first + 1) % kQueues;
  return worked;
}

SdmaEngine::SdmaEngine(const SdmaConfig& config, const BlockContext& context, VmHub& hub)
    : impl_(std::make_unique<Impl>(config, context, hub)) {}
SdmaEngine::~SdmaEngine() = default;

bool SdmaEngine::doorbell(std::uint32_t dword_index, std::uint64_t value, unsigned bytes) {
  bool taken = false;
  for (unsigned q = 0; q < kQueues; ++q) {
    const SdmaQueueRegisters& r = impl_->registers.queues[q];
    if (!base::Value<SDMA_DOORBELL>(r.doorbell->stored).get<SDMA_DOORBELL::ENABLE>()) continue;
    const base::Value<SDMA_DOORBELL_OFFSET> offset(r.doorbell_offset->stored);
    if (offset.get<SDMA_DOORBELL_OFFSET::OFFSET>() != dword_index) continue;
    impl_->queues[q]->doorbell(value, bytes == 8);
    taken = true;
  }
  return taken;
}

bool SdmaEngine::step(std::size_t& budget) { return impl_->step(budget); }

bool SdmaEngine::waiting() const {
  if (!impl_->registers.running()) return false;
  for (unsigned q = 0; q < kQueues; ++q)
    if (impl_->can_run(q)) return true;
  return false;
}

void SdmaEngine::reset() {
  impl_->hung = impl_->hard = 0;
  for (auto& queue : impl_->queues) queue->reset();
}

const SdmaCounters& SdmaEngine::counters() const { return impl_->counters; }

}  // namespace gpusim
