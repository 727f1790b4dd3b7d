#include "fabric/node_core.h"

#include <algorithm>
#include <utility>

namespace fabric {
namespace {

constexpr std::size_t kMostQueued = 256;  // entries a peer can make us owe it

template <class... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};

}  // namespace

Node::Core::Peer::Peer(Core& core, AccelId id)
    : link(id, *core.layout_, {core.config_.entry_timeout, 1}, core.outbox_, core.timers_),
      connection(core.layout_->self(), id,
                 {.hello_timeout = core.config_.hello_timeout,
                  .depth = std::clamp(core.config_.entries_in_flight, 1U, 63U),
                  .offer_extension = core.config_.offer_extension,
                  .generation = core.generations_[id]},
                 link, core, core.timers_) {}

Node::Core::Core(const NodeConfig& config, RandomSource& random)
    : config_(config),
      random_(random),
      imports_({.answer_timeout = config.answer_timeout,
                .whole_timeout =
                    config.hello_timeout + config.answer_timeout + 4 * config.entry_timeout},
               *this, outbox_, timers_),
      exports_({.release_timeout = config.release_timeout,
                .legacy_revoke_gap = config.legacy_revoke_gap,
                .shootdown_timeout = 3 * config.entry_timeout},
               random, *this, outbox_, timers_),
      activation_(config_, outbox_, timers_) {}

Node::Core::Peer* Node::Core::touch(AccelId peer) {
  const auto it = peers_.find(peer);
  if (it == peers_.end()) return nullptr;
  touched_.insert(peer);
  return it->second.get();
}

const Node::Core::Peer* Node::Core::look(AccelId peer) const {
  const auto it = peers_.find(peer);
  return it == peers_.end() ? nullptr : it->second.get();
}

void Node::Core::settle(TimePoint now) {
  do {
    while (!touched_.empty()) {
      const AccelId id = *touched_.begin();
      Peer* peer = peers_.contains(id) ? peers_.at(id).get() : nullptr;
      const auto report = peer != nullptr ? peer->link.next_report() : std::nullopt;
      if (report) {
        on_report(now, id, *report);
      } else {
        touched_.erase(id);
      }
    }
    if (change_ == Change::kDraining && !imports_.detaching() && exports_.quiet()) after_drain(now);
  } while (!touched_.empty());
  finish_pause();
}

void Node::Core::handle(TimePoint now, const Event& event) {
  const auto owner_of = [&](OpId op) { return outbox_.answered(op); };
  std::visit(Overloaded{
                 [&](const OpDone& e) {
                   if (const auto owner = owner_of(e.op)) on_op(now, *owner, e.op, e.result);
                 },
                 [&](const BytesRead& e) {
                   const auto owner = owner_of(e.op);
                   if (!owner || owner->kind != OpOwner::kPointers) return;
                   if (Peer* peer = touch(owner->peer)) peer->link.on_pointers(now, e.op, e.result);
                 },
                 [&](const BufferPinned& e) {
                   const auto owner = owner_of(e.op);
                   if (!owner || owner->kind != OpOwner::kPin) return;
                   exports_.on_pinned(now, owner->id, e.result);
                 },
                 [&](const RecordRead& e) {
                   if (Peer* peer = touch(e.peer)) peer->link.on_record(now, e.ring, e.record);
                 },
                 [&](const MessageReceived& e) { on_message(now, e); },
                 [&](const LinkChanged& e) { on_link(now, e); },
             },
             event);
  settle(now);
}

void Node::Core::on_op(TimePoint now, const OpOwner& owner, OpId op,
                       const base::Result<void>& result) {
  switch (owner.kind) {
    case OpOwner::kPost:
      if (Peer* peer = touch(owner.peer)) peer->link.on_posted(now, owner.ring, op, result);
      return;
    case OpOwner::kPointers: {
      const base::Error error =
          result ? base::Error{.code = Errc::kDeviceError, .step = "read"} : result.error();
      if (Peer* peer = touch(owner.peer)) peer->link.on_pointers(now, op, std::unexpected(error));
      return;
    }
    case OpOwner::kPin: {
      const base::Error error =
          result ? base::Error{.code = Errc::kDeviceError, .step = "pin"} : result.error();
      return exports_.on_pinned(now, owner.id, std::unexpected(error));
    }
    case OpOwner::kNpa:
      return exports_.on_npa_done(now, owner.id, result);
    case OpOwner::kDetach:
      return imports_.on_detach_done(now, ImportId(owner.id), result);
    case OpOwner::kStep:
      return on_step(now, activation_.on_done(now, result));
  }
}

void Node::Core::tick(TimePoint now) {
  while (const auto key = timers_.pop_due(now)) {
    on_timer(now, *key);
    settle(now);
  }
}

void Node::Core::on_timer(TimePoint now, const TimerKey& key) {
  const AccelId id(static_cast<std::uint16_t>(key.a));
  switch (key.kind) {
    case TimerKey::kEntry:
      if (Peer* peer = touch(id)) peer->link.on_entry_due(now, static_cast<RingType>(key.b));
      return;
    case TimerKey::kPointers:
      if (Peer* peer = touch(id)) peer->link.on_pointers_due(now);
      return;
    case TimerKey::kConnect:
      if (Peer* peer = touch(id)) peer->connection.on_due(now);
      return;
    case TimerKey::kImport:
      return imports_.on_due(now, ImportId(key.a));
    case TimerKey::kRevokeSend:
      return exports_.on_revoke_send_due(now, key.a);
    case TimerKey::kRelease:
      return exports_.on_release_due(now, key.a);
    case TimerKey::kStep:
      return on_step(now, activation_.on_due(now));
    case TimerKey::kDrain:
      if (change_ == Change::kDraining) after_drain(now);
      return;
  }
}

void Node::Core::on_report(TimePoint now, AccelId id, const LinkReport& report) {
  Peer& peer = *peers_.at(id);
  if (const auto* resync = std::get_if<ResyncReport>(&report)) {
    return peer.connection.on_resynced(now, *resync);
  }
  const auto& sent = std::get<SendReport>(report);
  switch (sent.kind) {
    case SendKind::kHello:
    case SendKind::kHelloAck:
      return peer.connection.on_sent(now, sent);
    case SendKind::kReq:
      return imports_.on_sent(now, id, sent);
    case SendKind::kRsp:
    case SendKind::kRevoke:
    case SendKind::kShootdown:
      return exports_.on_sent(now, id, sent);
    case SendKind::kSetUp:
    case SendKind::kFail:  // counted by the link, otherwise without consequence (U44)
    case SendKind::kRelease:
      return;
  }
}

void Node::Core::on_link(TimePoint now, const LinkChanged& change) {
  if (change.up) {
    links_down_.erase(change.peer);
  } else {
    links_down_.insert(change.peer);
  }
  if (Peer* peer = touch(change.peer)) peer->connection.set_link(now, change.up);
}

// --- What comes from peers ---

void Node::Core::on_message(TimePoint now, const MessageReceived& received) {
  if (state_ != AccelState::kActive) {
    ++counters_.messages_not_active;
    return;
  }
  // Once, here, for every type (errata A4): members other than ourselves are in the table.
  const bool is_id = received.sender < AccelSet().size();
  const AccelId sender(static_cast<std::uint16_t>(received.sender));
  Peer* peer = is_id ? touch(sender) : nullptr;
  if (peer == nullptr) {
    ++counters_.messages_bad_sender;
    return;
  }
  const auto message = decode(received.dwords, layout_->self(), sender);
  if (!message) {
    ++counters_.messages_unknown_type;
    return;
  }
  ++counters_.messages_handled;
  dispatch(now, sender, *peer, *message);
}

void Node::Core::dispatch(TimePoint now, AccelId sender, Peer& peer, const Message& message) {
  std::visit(Overloaded{
                 [&](const Hello& m) {
                   if (m.receiver != layout_->self() || m.sender != sender) {
                     ++counters_.messages_bad_sender;
                     return;
                   }
                   peer.connection.on_hello(now, m);
                 },
                 [&](const HelloAck& m) { peer.connection.on_hello_ack(now, m); },
                 [&](const NpaReq& m) {
                   if (peer.connection.admits(now)) {
                     exports_.on_req(now, sender, m.handle);
                   } else if (!peer.connection.defer(m)) {
                     ++counters_.messages_ignored;
                   }
                 },
                 [&](const NpaRsp& m) {
                   if (peer.connection.admits(now)) return imports_.on_rsp(now, sender, m);
                   ++counters_.messages_ignored;
                 },
                 [&](const NpaFail& m) {
                   if (peer.connection.admits(now)) return imports_.on_fail(now, sender, m);
                   ++counters_.messages_ignored;
                 },
                 // These two in any state (U14).
                 [&](const NpaRevoke& m) { imports_.on_revoke(now, sender, m.handle); },
                 [&](const NpaRelease& m) { exports_.on_release(now, sender, m.handle); },
             },
             message);
}

// --- What the state machines ask for ---

std::uint32_t Node::Core::new_nonce() {
  const auto nonce = static_cast<std::uint32_t>(random_.next());
  return nonce != 0 ? nonce : 1;
}

void Node::Core::drop_state(TimePoint now, AccelId id, const base::Error& why, bool ask_again) {
  Peer* peer = touch(id);
  if (peer != nullptr && std::exchange(peer->up, false)) {
    outbox_.put(Report{.notice = Notice::kPeerDown,
                       .peer = id,
                       .generation = peer->connection.generation(),
                       .handle = {},
                       .reason = why.code});
  }
  imports_.drop_peer(now, id, why, ask_again);
  exports_.drop_peer(now, id);
}

void Node::Core::on_connected(TimePoint now, AccelId id, bool fresh) {
  Peer* peer = touch(id);
  if (fresh) {
    const Generation generation = peer->connection.generation();
    generations_[id] = generation;
    peer->up = true;
    peer->shootdown = true;
    exports_.on_new_generation(id, generation);
    outbox_.put(
        Report{.notice = Notice::kPeerUp, .peer = id, .generation = generation, .handle = {}});
  }
  imports_.on_connected(now, id);
}

void Node::Core::on_connect_failed(TimePoint now, AccelId peer, const base::Error& why) {
  imports_.on_connect_failed(now, peer, why);
}

void Node::Core::on_deferred(TimePoint now, AccelId peer, const NpaReq& request) {
  exports_.on_req(now, peer, request.handle);
}

SendId Node::Core::send(TimePoint now, AccelId id, SendKind kind, const Message& message,
                        std::uint64_t subject) {
  const SendId send = new_send_id();
  Peer* peer = touch(id);
  if (peer == nullptr) return send;
  // A peer that asks faster than it takes answers must not fill our memory.
  const bool answer = kind == SendKind::kRelease || kind == SendKind::kFail;
  if (answer && peer->link.queued() >= kMostQueued) {
    ++counters_.sends_dropped;
    return send;
  }
  peer->link.send(now, send, kind, message, subject);
  return send;
}

SendId Node::Core::send_shootdown(TimePoint now, AccelId id, std::uint64_t subject) {
  const SendId send = new_send_id();
  if (Peer* peer = touch(id)) peer->link.send_shootdown(now, send, subject);
  return send;
}

void Node::Core::need_connection(TimePoint now, AccelId id) {
  if (Peer* peer = touch(id)) return peer->connection.need(now);
  imports_.on_connect_failed(now, id, {.code = Errc::kPeerLost, .step = "not in the virtual pod"});
}

bool Node::Core::may_ask(AccelId id) const {
  const Peer* peer = look(id);
  if (peer == nullptr || !peer->connection.established()) return false;
  return peer->connection.extended() || imports_.unanswered(id) < config_.questions_to_legacy_peer;
}

bool Node::Core::releases_voluntarily(AccelId id) const {
  const Peer* peer = look(id);
  return peer != nullptr && peer->connection.established() &&
         peer->connection.agreed(kVoluntaryRelease);
}

void Node::Core::on_detached(TimePoint now, AccelId id) {
  if (Peer* peer = touch(id)) peer->connection.advance(now);
}

Generation Node::Core::generation(AccelId id) const {
  const Peer* peer = look(id);
  return peer != nullptr ? peer->connection.generation() : 0;
}

bool Node::Core::extended(AccelId id) const {
  const Peer* peer = look(id);
  return peer != nullptr && peer->connection.extended();
}

bool Node::Core::answers_shootdown(AccelId id) const {
  const Peer* peer = look(id);
  return peer != nullptr && peer->shootdown && peer->connection.established();
}

void Node::Core::no_shootdown(TimePoint, AccelId id) {
  Peer* peer = touch(id);
  if (peer == nullptr || !std::exchange(peer->shootdown, false)) return;
  outbox_.put(Report{.notice = Notice::kNoShootdown,
                     .peer = id,
                     .generation = peer->connection.generation(),
                     .handle = {},
                     .reason = Errc::kUnsupported});
}

void Node::Core::reset_connection(TimePoint now, AccelId id, const base::Error& why) {
  if (Peer* peer = touch(id)) peer->connection.reset(now, why);
}

}  // namespace fabric
