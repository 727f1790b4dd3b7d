#include "fabric/connection.h"

#include <utility>

namespace fabric {
namespace {

constexpr std::size_t kMostDeferred = 16;

const base::Error kRestarted{.code = Errc::kPeerLost, .step = "connection: the peer started anew"};

}  // namespace

Connection::Connection(AccelId self, AccelId peer, const Limits& limits, PeerLink& link,
                       ConnectionHost& host, Timers& timers)
    : self_(self),
      peer_(peer),
      limits_(limits),
      link_(link),
      host_(host),
      timers_(timers),
      generation_(limits.generation) {}

Connection::~Connection() { timers_.clear(key()); }

void Connection::need(TimePoint now) {
  if (!link_up_) {
    return host_.on_connect_failed(now, peer_, {.code = Errc::kPeerLost, .step = "link"});
  }
  switch (state_) {
    case ConnectionState::kNotReady:
      return start_hello(now);
    case ConnectionState::kInProgress:
    case ConnectionState::kPending:
      return;
    case ConnectionState::kEstablished:
      if (verifying_) return;
      if (!host_.idle(peer_)) return host_.on_connected(now, peer_, false);
      verifying_ = true;
      timers_.set(key(), now + limits_.hello_timeout);
      return link_.request_resync(now);
  }
}

bool Connection::admits(TimePoint now) {
  if (established()) return true;
  if (state_ == ConnectionState::kNotReady && link_up_) start_hello(now);
  return false;
}

bool Connection::defer(const NpaReq& request) {
  if (state_ != ConnectionState::kPending || deferred_.size() >= kMostDeferred) return false;
  deferred_.push_back(request);
  return true;
}

void Connection::start_hello(TimePoint now) {
  state_ = ConnectionState::kInProgress;
  step_ = Step::kDetach;
  link_.set_not_ready();
  timers_.set(key(), now + limits_.hello_timeout);
  advance(now);
}

void Connection::start_ack(TimePoint now, const Hello& hello) {
  stop_handshake();
  state_ = ConnectionState::kPending;
  step_ = Step::kDetach;
  peer_offer_ = limits_.offer_extension ? hello.extension : std::nullopt;
  timers_.set(key(), now + limits_.hello_timeout);
  advance(now);
}

void Connection::advance(TimePoint now) {
  if (step_ != Step::kDetach || host_.detaching(peer_)) return;
  step_ = Step::kResync;
  link_.request_resync(now);
}

void Connection::on_resynced(TimePoint now, const ResyncReport& report) {
  if (verifying_ && established()) {
    verifying_ = false;
    timers_.clear(key());
    if (!report.differed) return reset(now, report.differed.error());
    if (!*report.differed) return host_.on_connected(now, peer_, false);
    // The peer lost its pointers, so it has restarted.
    state_ = ConnectionState::kNotReady;
    link_.purge();
    host_.drop_state(now, peer_, kRestarted, /*ask_again=*/true);
    return start_hello(now);
  }
  if (step_ != Step::kResync) return;
  if (!report.differed) return fail(now, report.differed.error());
  step_ = Step::kSending;
  if (state_ == ConnectionState::kInProgress) {
    send_hello(now);
  } else {
    send_ack(now, peer_offer_);
  }
}

void Connection::send_hello(TimePoint now) {
  Hello hello{.receiver = peer_, .sender = self_, .extension = std::nullopt};
  if (limits_.offer_extension) {
    own_nonce_ = host_.new_nonce();
    hello.extension = Extension{.capabilities = kOwnCapabilities, .nonce = own_nonce_};
  }
  hello_id_ = host_.new_send_id();
  // The peer's time begins when it can see the HELLO (U36).
  timers_.set(key(), now + limits_.hello_timeout);
  link_.send(now, hello_id_, SendKind::kHello, hello);
}

void Connection::send_ack(TimePoint now, const std::optional<Extension>& asked) {
  HelloAck ack;
  if (asked) {
    ack.extension = Extension{.capabilities = kOwnCapabilities, .nonce = host_.new_nonce()};
    ack.echo = asked->nonce;
  }
  ack_id_ = host_.new_send_id();
  link_.send(now, ack_id_, SendKind::kHelloAck, ack);
}

void Connection::on_hello(TimePoint now, const Hello& hello) {
  const std::uint32_t nonce =
      limits_.offer_extension && hello.extension ? hello.extension->nonce : 0;
  if (state_ == ConnectionState::kPending && nonce != 0 && peer_offer_ &&
      peer_offer_->nonce == nonce) {
    return;  // a copy of the one being answered
  }
  if (nonce != 0 && nonce == answered_nonce_) {
    // A copy of one answered before says nothing new about the peer's life (U06).
    if (established()) {
      send_ack(now, hello.extension);
    } else if (state_ == ConnectionState::kNotReady && link_up_) {
      start_hello(now);
    }
    return;
  }
  if (!link_up_) return;
  if (established()) {
    // "The peer lost its state" (U45): drop ours first, then answer.
    verifying_ = false;
    state_ = ConnectionState::kPending;
    link_.purge();
    host_.drop_state(now, peer_, kRestarted, /*ask_again=*/true);
  }
  start_ack(now, hello);
}

void Connection::on_hello_ack(TimePoint now, const HelloAck& ack) {
  if (state_ != ConnectionState::kInProgress || step_ != Step::kSending) return;
  if (!link_.issued(hello_id_)) return;  // ours is still in the queue: this answers an older one
  const bool extended = limits_.offer_extension && ack.extension;
  if (extended && ack.echo != echo_of(own_nonce_)) return;
  establish(now, extended ? ack.extension : std::nullopt);
}

void Connection::establish(TimePoint now, const std::optional<Extension>& theirs) {
  timers_.clear(key());
  state_ = ConnectionState::kEstablished;
  step_ = Step::kNone;
  ++generation_;
  extended_ = theirs.has_value();
  capabilities_ = theirs ? theirs->capabilities & kOwnCapabilities : 0;
  link_.set_depth(extended_ ? limits_.depth : 1);
  host_.on_connected(now, peer_, true);
  for (const NpaReq& request : std::exchange(deferred_, {})) {
    if (established()) host_.on_deferred(now, peer_, request);
  }
}

void Connection::on_sent(TimePoint now, const SendReport& report) {
  if (report.kind == SendKind::kHello) {
    if (report.id != hello_id_ || state_ != ConnectionState::kInProgress) return;
    if (report.stage == SendStage::kInRing) timers_.set(key(), now + limits_.hello_timeout);
    if (report.stage == SendStage::kFailed) fail(now, report.error);
    return;
  }
  if (report.id != ack_id_) return;
  if (report.stage == SendStage::kFailed) {
    if (established()) return reset(now, report.error);  // U12
    if (state_ == ConnectionState::kPending) fail(now, report.error);
    return;
  }
  // In the ring is enough: the peer's first request may come before the write-back is seen (U12).
  if (state_ == ConnectionState::kPending && step_ == Step::kSending) {
    answered_nonce_ = peer_offer_ ? peer_offer_->nonce : 0;
    establish(now, std::exchange(peer_offer_, std::nullopt));
  }
}

void Connection::stop_handshake() {
  // A HELLO that is not in the ring yet would reset the peer later on (U20).
  link_.unsend(hello_id_);
  link_.unsend(ack_id_);
  hello_id_ = ack_id_ = 0;
  step_ = Step::kNone;
  verifying_ = false;
  peer_offer_.reset();
  deferred_.clear();
  timers_.clear(key());
}

void Connection::fail(TimePoint now, const base::Error& why) {
  stop_handshake();
  state_ = ConnectionState::kNotReady;
  host_.on_connect_failed(now, peer_, why);
}

void Connection::reset(TimePoint now, const base::Error& why) {
  const bool was_up = established();
  stop_handshake();
  state_ = ConnectionState::kNotReady;
  link_.purge();
  host_.drop_state(now, peer_, why, /*ask_again=*/false);
  if (!was_up) host_.on_connect_failed(now, peer_, why);
}

void Connection::set_link(TimePoint now, bool up) {
  if (up == link_up_) return;
  link_up_ = up;
  if (up) return need(now);
  const base::Error lost{.code = Errc::kPeerLost, .step = "link"};
  link_.abandon(lost);
  reset(now, lost);
}

void Connection::on_due(TimePoint now) {
  const base::Error late{.code = Errc::kTimeout, .step = "connection"};
  if (verifying_) return reset(now, late);
  if (state_ == ConnectionState::kInProgress || state_ == ConnectionState::kPending) {
    fail(now, late);
  }
}

}  // namespace fabric
