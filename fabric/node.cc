#include "fabric/node.h"

#include <utility>

#include "fabric/node_core.h"

namespace fabric {

Node::Node(const NodeConfig& config, RandomSource& random)
    : core_(std::make_unique<Core>(config, random)) {}
Node::~Node() = default;

void Node::handle(TimePoint now, const Event& event) { core_->handle(now, event); }
void Node::tick(TimePoint now) { core_->tick(now); }
std::optional<TimePoint> Node::next_deadline() const { return core_->timers_.next(); }
std::vector<Action> Node::take_actions() { return core_->outbox_.take(); }

std::vector<RecordName> Node::awaited_records() const {
  std::vector<RecordName> names;
  for (const auto& [id, peer] : core_->peers_) {
    for (RingType ring : {RingType::kInterrupt, RingType::kShootdown}) {
      if (peer->link.awaits_record(ring)) names.push_back({id, ring});
    }
  }
  return names;
}

void Node::apply_config(TimePoint now, Token token, const PodConfig& config) {
  core_->apply_config(now, token, config);
  core_->settle(now);
}

void Node::deactivate(TimePoint now, Token token) {
  core_->deactivate(now, token);
  core_->settle(now);
}

void Node::pause(TimePoint now, Token token) {
  core_->pause(now, token);
  core_->settle(now);
}

void Node::resume(TimePoint now) {
  core_->resume(now);
  core_->settle(now);
}

AccelState Node::state() const { return core_->state_; }
const PodConfig& Node::pod() const { return core_->pod_; }

base::Result<Handle> Node::export_buffer(const ExportRequest& request) {
  switch (core_->state_) {
    case AccelState::kUnconfigured:
    case AccelState::kError:
      return base::fail(Errc::kUnsupported, "export before the pod is configured");
    case AccelState::kPodConfigured:
    case AccelState::kVirtualPodConfigured:
    case AccelState::kReady:
    case AccelState::kActive:
      break;
  }
  if (request.pages == 0 || request.pages >= kWindowPages) {
    return base::fail(Errc::kInvalidArgument, "size of an export");
  }
  const AccelId self(static_cast<std::uint16_t>(core_->pod_.accel_id));
  return core_->exports_.add(self, request);
}

void Node::revoke(TimePoint now, Token token, const Handle& handle) {
  core_->exports_.revoke(now, token, handle);
  core_->settle(now);
}

std::optional<ExportInfo> Node::find_export(const Handle& handle) const {
  return core_->exports_.find(handle);
}

void Node::import_handle(TimePoint now, Token token, const Handle& handle) {
  core_->import_handle(now, token, handle);
  core_->settle(now);
}

base::Result<void> Node::close_import(TimePoint now, ImportId import) {
  auto result = core_->imports_.close(now, import);
  core_->settle(now);
  return result;
}

base::Result<void> Node::drop_peer(TimePoint now, AccelId id) {
  auto* peer = core_->touch(id);
  if (peer == nullptr) return base::fail(Errc::kNotFound, "peer");
  const base::Error dropped{.code = Errc::kPeerLost, .step = "dropped by the operator"};
  peer->link.abandon(dropped);
  peer->connection.reset(now, dropped);
  core_->settle(now);
  return {};
}

std::vector<PeerInfo> Node::peers() const {
  std::vector<PeerInfo> infos;
  for (const auto& [id, peer] : core_->peers_) {
    infos.push_back({.id = id,
                     .state = peer->connection.state(),
                     .generation = peer->connection.generation(),
                     .link_up = peer->connection.link_up(),
                     .extension = peer->connection.extended(),
                     .shootdown = peer->shootdown,
                     .entries_sent = peer->link.entries_sent(),
                     .entries_failed = peer->link.entries_failed()});
  }
  return infos;
}

std::vector<ExportInfo> Node::exports() const { return core_->exports_.list(); }
std::vector<ImportInfo> Node::imports() const { return core_->imports_.list(); }

NodeCounters Node::counters() const {
  NodeCounters counters = core_->counters_;
  counters.quarantined_ranges = core_->exports_.quarantined();
  counters.free_npa_pages = core_->exports_.free_pages();
  return counters;
}

std::optional<Layout> Node::layout() const { return core_->layout_; }

}  // namespace fabric
