#include "fabric/activation.h"

#include <algorithm>
#include <array>
#include <utility>

#include "fabric/packet.h"

namespace fabric {
namespace {

// The caller has its own, shorter deadlines for firmware and flushes; this one is for a caller that
// never answers.
constexpr Duration kStepTimeout = std::chrono::seconds(10);
constexpr TimerKey kStepKey{TimerKey::kStep, 0, 0};

}  // namespace

void Activation::up(TimePoint now, const Layout& layout, const AccelSet& members) {
  layout_ = &layout;
  members_ = members;
  error_.reset();
  for (Step step : {Step::kAccess, Step::kVm, Step::kClear, Step::kFirmware, Step::kRings,
                    Step::kRecords, Step::kPeers}) {
    plan_.push_back({step, true});
  }
  next(now);
}

void Activation::down(TimePoint now) {
  error_.reset();
  for (Step step :
       {Step::kAccess, Step::kFirmware, Step::kRecords, Step::kRings, Step::kPeers, Step::kVm}) {
    if (std::ranges::find(done_, step) != done_.end()) plan_.push_back({step, false});
  }
  done_.clear();
  next(now);
}

void Activation::next(TimePoint now) {
  timers_.clear(kStepKey);
  if (plan_.empty()) return;
  op_ = give(plan_.front());
  timers_.set(kStepKey, now + kStepTimeout);
}

OpId Activation::map(std::size_t which, bool on) {
  const Layout::Mapping mapping = layout_->mappings(layout_->self()).at(which);
  const base::VramOffset buffer = mapping.records ? config_.record_buffer : config_.ring_buffer;
  UpdateNpa update{.op = {},
                   .range = mapping.range,
                   .entry = on ? NpaEntry::kMapped : NpaEntry::kGone,
                   .flush = NpaFlush::kHeavy,
                   .runs = {}};
  if (on) update.runs.push_back({buffer + mapping.offset_bytes, mapping.range.pages});
  return outbox_.ask({.kind = OpOwner::kStep}, std::move(update));
}

OpId Activation::give(const Planned& planned) {
  const OpOwner owner{.kind = OpOwner::kStep};
  const bool on = planned.on;
  switch (planned.step) {
    case Step::kAccess:
      return outbox_.ask(owner, SetNpaAccess{.op = {}, .enable = on});
    case Step::kVm:
      return outbox_.ask(owner, SetNpaVm{.op = {}, .enable = on});
    case Step::kClear:
      return outbox_.ask(owner, ClearRings{});
    case Step::kFirmware: {
      if (!on) return outbox_.ask(owner, HaltFirmware{});
      const base::McAddress rings = config_.vram_base + config_.ring_buffer.value();
      return outbox_.ask(owner, LoadMetadata{.op = {},
                                             .table = metadata_table(*layout_, rings, members_),
                                             .data = kMetadataData});
    }
    case Step::kRings:
      return map(0, on);
    case Step::kRecords:
      return map(1, on);
    case Step::kPeers: {
      MapPeers peers{.op = {}, .peers = {}, .enable = on};
      for (std::uint16_t id = 0; id < kMaxAccelerators; ++id) {
        if (members_.test(id) && AccelId(id) != layout_->self()) peers.peers.push_back(AccelId(id));
      }
      return outbox_.ask(owner, std::move(peers));
    }
  }
  return {};
}

std::optional<base::Result<void>> Activation::on_done(TimePoint now,
                                                      const base::Result<void>& result) {
  if (plan_.empty()) return std::nullopt;
  const Planned planned = plan_.front();
  plan_.pop_front();
  if (!result) {
    if (!error_) error_ = result.error();
    if (planned.on) {
      // Whatever the failed step did in part is undone with it.
      done_.push_back(planned.step);
      plan_.clear();
      std::ranges::reverse(done_);
      for (Step step : std::exchange(done_, {})) {
        if (step != Step::kClear) plan_.push_back({step, false});
      }
    }
  } else if (planned.on) {
    done_.push_back(planned.step);
  }
  next(now);
  if (!plan_.empty()) return std::nullopt;
  if (error_) return base::Result<void>(std::unexpected(*error_));
  return base::Result<void>();
}

std::optional<base::Result<void>> Activation::on_due(TimePoint now) {
  if (plan_.empty()) return std::nullopt;
  outbox_.forget(op_);
  return on_done(now, base::fail(Errc::kTimeout, "step of activation"));
}

}  // namespace fabric
