#include "tools/gpusim/model/lsdma.h"

#include <algorithm>
#include <deque>
#include <optional>

#include "base/register.h"
#include "tools/gpusim/model/data_mover.h"
#include "tools/gpusim/model/reset_noise.h"

namespace gpusim {
namespace {

struct PIO_COMMAND : base::Record<std::uint32_t> {
  using BYTE_COUNT = base::Field<PIO_COMMAND, 25, 0, std::uint32_t>;
  using CONSTANT_FILL = base::Field<PIO_COMMAND, 31, 31, bool>;
};

struct PIO_CONTROL : base::Record<std::uint32_t> {
  using VMID = base::Field<PIO_CONTROL, 3, 0, std::uint8_t>;
  using DST_GPA = base::Field<PIO_CONTROL, 4, 4, bool>;
  using DST_SYS = base::Field<PIO_CONTROL, 5, 5, bool>;
  using SRC_GPA = base::Field<PIO_CONTROL, 20, 20, bool>;
  using SRC_SYS = base::Field<PIO_CONTROL, 21, 21, bool>;
};

constexpr unsigned kInProcessShift = 3;
constexpr std::uint32_t kInvalidAddress = 1u << 11, kZeroCount = 1u << 12;
constexpr std::uint32_t kWriteNack = 1u << 15, kReadNack = 1u << 16;
constexpr std::uint32_t kWriteNackPrt = 1u << 17, kReadNackPrt = 1u << 18;
constexpr std::uint32_t kDropped = 1u << 19;
constexpr std::uint32_t kFifoEmpty = 1u << 28, kFifoFull = 1u << 29, kIdle = 1u << 31;
constexpr std::uint32_t kErrors = 0x000F'F800;  // bits 19:11, written 1 to clear
constexpr std::size_t kFifoDepth = 4;
constexpr unsigned kInFlightPages = 16;

constexpr std::uint16_t kCid = 15;  // docs/hardware/vmhub.md, fault client ids
constexpr ModelTime kRetryEvery = std::chrono::microseconds(10);
constexpr ModelTime kRemoteRetryLimit = std::chrono::milliseconds(100);

}  // namespace

struct Lsdma::Impl {
  struct Command {
    MoveJob job;
    std::uint8_t vmid = 0;
  };

  Impl(const LsdmaConfig& lsdma_config, const BlockContext& block_context, VmHub& vm_hub);
  void add_registers();
  void add_scenario();
  void take(std::uint32_t written);
  std::uint32_t status() const;
  bool step(std::size_t& budget);
  void finish(std::uint32_t error);
  void failed(const DataMover::Result& result);

  LsdmaConfig config;
  const BlockContext& context;
  DataMover mover;
  LsdmaCounters counters;
  RegisterFile::Register *src_lo, *src_hi, *dst_lo, *dst_hi, *control, *fill_data;
  std::uint32_t errors = 0;
  std::deque<Command> fifo;
  std::optional<Command> current;
  ModelTime not_before{};
  std::optional<ModelTime> remote_since;
  bool hung = false;
};

Lsdma::Impl::Impl(const LsdmaConfig& lsdma_config, const BlockContext& block_context, VmHub& vm_hub)
    : config(lsdma_config),
      context(block_context),
      mover(vm_hub, block_context.clock, block_context.seed ^ 0x15D, kInFlightPages) {
  add_registers();
  add_scenario();
}

void Lsdma::Impl::add_registers() {
  RegisterFile& file = context.registers;
  const auto unused = [&](std::uint32_t offset, const char* name) {
    return &define_unused(file, context.seed, config.base + offset, name);
  };
  src_lo = unused(0x80, "LSDMA.PIO_SRC_ADDR_LO");
  src_hi = unused(0x81, "LSDMA.PIO_SRC_ADDR_HI");
  dst_lo = unused(0x82, "LSDMA.PIO_DST_ADDR_LO");
  dst_hi = unused(0x83, "LSDMA.PIO_DST_ADDR_HI");
  fill_data = unused(0x85, "LSDMA.PIO_CONSTFILL_DATA");
  control = unused(0x86, "LSDMA.PIO_CONTROL");
  file.define(config.base + 0x84, "LSDMA.PIO_COMMAND").on_write = [this](std::uint32_t written,
                                                                         std::uint32_t) {
    take(written);
    return written;
  };
  auto& status_register = file.define(config.base + 0x8A, "LSDMA.PIO_STATUS", kIdle | kFifoEmpty);
  status_register.on_read = [this](std::uint32_t) { return status(); };
  status_register.on_write = [this](std::uint32_t written, std::uint32_t stored) {
    errors &= ~(written & kErrors);
    return stored;
  };
}

void Lsdma::Impl::add_scenario() {
  if (context.hooks == nullptr) return;
  context.hooks->add(context.gpu, "lsdma.slow",
                     "us: an access is done this long after it was translated",
                     [this](const ScenarioValues& arguments) -> base::Result<ScenarioValues> {
                       const auto us = arguments.number("us");
                       if (!us) return std::unexpected(us.error());
                       mover.set_delay(std::chrono::microseconds(*us));
                       return ScenarioValues();
                     });
  context.hooks->add(context.gpu, "lsdma.hang", "on: stands still while true",
                     [this](const ScenarioValues& arguments) -> base::Result<ScenarioValues> {
                       const auto on = arguments.flag_or("on", true);
                       if (!on) return std::unexpected(on.error());
                       hung = *on;
                       return ScenarioValues();
                     });
}

// A write of COMMAND: the other registers are taken as they are now.
void Lsdma::Impl::take(std::uint32_t written) {
  ++counters.commands;
  if (fifo.size() == kFifoDepth) {
    errors |= kDropped;
    ++counters.dropped;
    return;
  }
  const base::Value<PIO_COMMAND> command(written);
  const base::Value<PIO_CONTROL> how(control->stored);
  using Space = MoveJob::Space;
  const auto space = [](bool gpa, bool sys) {
    return sys ? Space::kBus : gpa ? Space::kPhysical : Space::kVirtual;
  };
  Command next;
  next.vmid = how.get<PIO_CONTROL::VMID>();
  next.job.bytes = command.get<PIO_COMMAND::BYTE_COUNT>();
  next.job.fill = command.get<PIO_COMMAND::CONSTANT_FILL>();
  next.job.value = fill_data->stored;
  next.job.source = (std::uint64_t{src_hi->stored} << 32) | src_lo->stored;
  next.job.target = (std::uint64_t{dst_hi->stored} << 32) | dst_lo->stored;
  next.job.source_space = space(how.get<PIO_CONTROL::SRC_GPA>(), how.get<PIO_CONTROL::SRC_SYS>());
  next.job.target_space = space(how.get<PIO_CONTROL::DST_GPA>(), how.get<PIO_CONTROL::DST_SYS>());
  fifo.push_back(next);
}

std::uint32_t Lsdma::Impl::status() const {
  std::uint32_t word = errors | static_cast<std::uint32_t>(fifo.size());
  if (current) word |= 1u << kInProcessShift;
  if (fifo.empty()) word |= kFifoEmpty;
  if (fifo.size() == kFifoDepth) word |= kFifoFull;
  if (fifo.empty() && !current) word |= kIdle;
  return word;
}

void Lsdma::Impl::finish(std::uint32_t error) {
  errors |= error;
  if (error != 0) ++counters.failed;
  mover.abort();
  current.reset();
  remote_since.reset();
}

void Lsdma::Impl::failed(const DataMover::Result& result) {
  const ModelTime now = context.clock.now();
  if (result.outcome == Outcome::kRetry) {
    ++counters.retries;
    not_before = now + kRetryEvery;
    if (!result.error.exporter_retry) return;
    if (!remote_since) remote_since = now;
    if (now - *remote_since < kRemoteRetryLimit) return;
  }
  const MoveJob::Space space = result.write ? current->job.target_space : current->job.source_space;
  if (space == MoveJob::Space::kPhysical && result.outcome == Outcome::kFault)
    finish(kInvalidAddress);
  else if (result.error.remote_or_prt)
    finish(result.write ? kWriteNackPrt : kReadNackPrt);
  else
    finish(result.write ? kWriteNack : kReadNack);
}

bool Lsdma::Impl::step(std::size_t& budget) {
  if (budget == 0 || hung || not_before > context.clock.now()) return false;
  if (!current) {
    if (fifo.empty()) return false;
    current = fifo.front();
    fifo.pop_front();
    if (current->job.bytes == 0) {
      finish(kZeroCount);
      return true;
    }
    mover.start(current->job);
  }
  const Requester who{"lsdma", current->vmid, kCid, kCid};
  const std::size_t share = std::min(budget, config.step_bytes);
  std::size_t left = share;
  const DataMover::Result result = mover.run(who, left);
  budget -= share - left;
  switch (result.state) {
    case DataMover::State::kDone:
      counters.bytes += current->job.bytes;
      finish(0);
      return true;
    case DataMover::State::kMore:
      return true;
    case DataMover::State::kLater:
      return false;
    case DataMover::State::kFailed:
      failed(result);
      return true;
  }
  return false;
}

Lsdma::Lsdma(const LsdmaConfig& config, const BlockContext& context, VmHub& hub)
    : impl_(std::make_unique<Impl>(config, context, hub)) {}
Lsdma::~Lsdma() = default;

bool Lsdma::step(std::size_t& budget) { return impl_->step(budget); }
bool Lsdma::waiting() const {
  return !impl_->hung && (impl_->current.has_value() || !impl_->fifo.empty());
}
void Lsdma::reset() {
  impl_->fifo.clear();
  impl_->finish(0);
  impl_->errors = 0;
  impl_->not_before = {};
  impl_->hung = false;
}
const LsdmaCounters& Lsdma::counters() const { return impl_->counters; }

}  // namespace gpusim
