// The accelerator's states: configuration, entering and leaving the fabric, pause.
#include <utility>

#include "fabric/node_core.h"

namespace fabric {
namespace {

constexpr TimerKey kDrainKey{TimerKey::kDrain, 0, 0};
// For a caller that does not answer; unmapping and detaching have shorter deadlines of their own.
constexpr Duration kDrainTimeout = std::chrono::seconds(20);
const base::Error kLeaving{.code = Errc::kReset, .step = "accelerator left the fabric"};

}  // namespace

void Node::Core::enter(AccelState state) {
  if (std::exchange(state_, state) == state) return;
  outbox_.put(Report{.notice = Notice::kStateChanged, .peer = {}, .handle = {}});
}

void Node::Core::apply_config(TimePoint now, Token token, const PodConfig& config) {
  if (change_ != Change::kNone) {
    return outbox_.complete(token, base::fail(Errc::kBusy, "change of configuration"));
  }
  change_token_ = token;
  change_error_.reset();
  if (state_ == AccelState::kActive && config == pod_) return end_change({});
  next_pod_ = config;
  if (state_ == AccelState::kActive) return leave_fabric(now);
  after_down(now);
}

void Node::Core::deactivate(TimePoint now, Token token) {
  if (change_ != Change::kNone) {
    return outbox_.complete(token, base::fail(Errc::kBusy, "change of configuration"));
  }
  change_token_ = token;
  change_error_.reset();
  next_pod_.reset();
  if (state_ != AccelState::kActive) return end_change({});
  leave_fabric(now);
}

// Intake stops first (messages are taken only while ACTIVE), then everything drains, then it is
// freed (errata A6). What is mapped goes by ownership, whatever the connections say (errata A5).
void Node::Core::leave_fabric(TimePoint now) {
  enter(AccelState::kPodConfigured);
  change_ = Change::kDraining;
  timers_.set(kDrainKey, now + kDrainTimeout);
  imports_.drop_all(now, kLeaving);
  exports_.drain(now);
}

void Node::Core::after_drain(TimePoint now) {
  timers_.clear(kDrainKey);
  peers_.clear();
  touched_.clear();
  change_ = Change::kDown;
  activation_.down(now);
  if (!activation_.busy()) after_down(now);
}

void Node::Core::after_down(TimePoint now) {
  // NPA access is off and the root is 0: whatever could not be cleared before is out of reach now.
  exports_.close();
  imports_.forget_all(kLeaving);
  layout_.reset();
  if (change_error_) {
    next_pod_.reset();
    enter(AccelState::kError);
    return end_change(std::unexpected(*change_error_));
  }
  if (!next_pod_) return end_change({});
  const PodConfig config = *std::exchange(next_pod_, std::nullopt);
  const AccelState target = state_of(config);
  if (target == AccelState::kError) {
    enter(AccelState::kError);
    auto why = check_virtual_pod(config);
    if (why) why = base::fail(Errc::kProtocol, "configuration state");
    return end_change(why);
  }
  if (config.accel_id != pod_.accel_id) exports_.forget_all();
  pod_ = config;
  if (config.has_virtual_pod() && config.addr_mode == 1) {
    enter(AccelState::kVirtualPodConfigured);
    return end_change(base::fail(Errc::kUnsupported, "source identification mode"));
  }
  enter(target);
  if (target != AccelState::kReady) return end_change({});
  start_up(now);
}

void Node::Core::start_up(TimePoint now) {
  // A random start: what importers of an earlier life still have mapped is not given out first
  // (U18).
  const std::uint64_t end = config_.npa_end_page;
  const std::uint64_t start = kAliasFirstPage + random_.next() % (end - kAliasFirstPage);
  exports_.open(NpaAllocator(kAliasFirstPage, end, start));
  const AccelId self(static_cast<std::uint16_t>(pod_.accel_id));
  const std::uint64_t pages = Layout(AddressMode::kAlias, self).record_buffer_bytes() >> kPageShift;
  layout_.emplace(AddressMode::kAlias, self, exports_.reserve(pages)->page);
  change_ = Change::kUp;
  activation_.up(now, *layout_, pod_.members);
}

void Node::Core::on_step(TimePoint now, const std::optional<base::Result<void>>& ended) {
  if (!ended) return;
  if (!*ended) change_error_ = ended->error();
  if (change_ == Change::kDown || !*ended) return after_down(now);
  after_up(now);
}

void Node::Core::after_up(TimePoint now) {
  enter(AccelState::kActive);
  for (std::uint16_t id = 0; id < kMaxAccelerators; ++id) {
    const AccelId peer(id);
    if (!pod_.members.test(id) || peer == layout_->self()) continue;
    peers_.emplace(peer, std::make_unique<Peer>(*this, peer));
    touch(peer)->link.set_paused(now, paused_);
    if (links_down_.contains(peer)) touch(peer)->connection.set_link(now, false);
  }
  end_change({});
  // Every member learns that this is a new life (U18).
  for (auto& [id, peer] : peers_) {
    if (peer->connection.link_up()) touch(id)->connection.need(now);
  }
}

void Node::Core::end_change(const base::Result<void>& result) {
  change_ = Change::kNone;
  if (!change_token_) return;
  const Token token = *std::exchange(change_token_, std::nullopt);
  if (result) {
    outbox_.complete(token, {});
  } else {
    outbox_.complete(token, std::unexpected(result.error()));
  }
}

void Node::Core::pause(TimePoint now, Token token) {
  paused_ = true;
  pausers_.push_back(token);
  for (auto& [id, peer] : peers_) touch(id)->link.set_paused(now, true);
}

void Node::Core::resume(TimePoint now) {
  paused_ = false;
  for (auto& [id, peer] : peers_) touch(id)->link.set_paused(now, false);
}

void Node::Core::finish_pause() {
  if (pausers_.empty()) return;
  for (const auto& [id, peer] : peers_) {
    if (paused_ && !peer->link.quiet()) return;
  }
  for (Token token : std::exchange(pausers_, {})) outbox_.complete(token, {});
}

void Node::Core::import_handle(TimePoint now, Token token, const Handle& handle) {
  if (state_ != AccelState::kActive) {
    return outbox_.complete(token, base::fail(Errc::kUnsupported, "accelerator is not active"));
  }
  const AccelId exporter = handle.exporter();
  if (exporter == layout_->self()) {
    return outbox_.complete(token,
                            base::fail(Errc::kInvalidArgument, "handle of this accelerator"));
  }
  if (look(exporter) == nullptr) {
    return outbox_.complete(
        token, base::fail(Errc::kInvalidArgument, "handle of no member of the virtual pod"));
  }
  imports_.open(now, token, handle);
}

}  // namespace fabric
