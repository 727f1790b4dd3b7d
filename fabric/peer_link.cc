#include "fabric/peer_link.h"

#include <algorithm>
#include <cassert>

#include "base/bytes.h"
#include "fabric/packet.h"

namespace fabric {
namespace {

constexpr std::array kRings = {RingType::kInterrupt, RingType::kShootdown};

template <class T>
RemoteStore store_of(Npa at, const T& value) {
  static_assert(sizeof(T) <= sizeof(RemoteStore::bytes));
  RemoteStore store{.at = at, .size = sizeof(T)};
  base::store(std::span<std::byte>(store.bytes), 0, value);
  return store;
}

base::Error error_of(NhtStatus status) {
  const std::string step =
      "ring entry, firmware status " + std::to_string(static_cast<std::uint32_t>(status));
  return {.code = status == NhtStatus::kTimeout ? Errc::kTimeout : Errc::kRefused, .step = step};
}

// After these the two ends disagree about pointers or addresses, not only about one entry (U11).
bool spoils_ring(NhtStatus status) {
  switch (status) {
    case NhtStatus::kBadMetadata:
    case NhtStatus::kRingOverflow:
    case NhtStatus::kBadWritePointer:
    case NhtStatus::kBadRingAddress:
    case NhtStatus::kBadWriteBackAddress:
      return true;
    default:
      return false;
  }
}

}  // namespace

PeerLink::PeerLink(AccelId peer, const Layout& layout, LinkLimits limits, Outbox& outbox,
                   Timers& timers)
    : peer_(peer), layout_(layout), limits_(limits), outbox_(outbox), timers_(timers) {}

PeerLink::~PeerLink() {
  for (RingType ring : kRings) timers_.clear(entry_key(ring));
  timers_.clear(pointers_key());
}

TimerKey PeerLink::entry_key(RingType ring) const {
  return {TimerKey::kEntry, peer_.value(), static_cast<std::uint64_t>(ring)};
}

TimerKey PeerLink::pointers_key() const { return {TimerKey::kPointers, peer_.value(), 0}; }

void PeerLink::send(TimePoint now, SendId id, SendKind kind, const Message& message,
                    std::uint64_t subject) {
  queue(now, RingType::kInterrupt,
        {.id = id, .kind = kind, .subject = subject, .message = encode(message)});
}

void PeerLink::send_shootdown(TimePoint now, SendId id, std::uint64_t subject) {
  queue(now, RingType::kShootdown, {.id = id, .kind = SendKind::kShootdown, .subject = subject});
}

void PeerLink::queue(TimePoint now, RingType ring, Item item) {
  ring_of(ring).queue.push_back(std::move(item));
  pump(now);
}

std::size_t PeerLink::queued() const {
  return ring_of(RingType::kInterrupt).queue.size() + ring_of(RingType::kShootdown).queue.size();
}

bool PeerLink::unsend(SendId id) {
  for (Ring& ring : rings_) {
    if (std::erase_if(ring.queue, [&](const Item& item) { return item.id == id; }) != 0)
      return true;
  }
  return false;
}

bool PeerLink::issued(SendId id) const {
  return std::ranges::none_of(rings_, [&](const Ring& ring) {
    return std::ranges::any_of(ring.queue, [&](const Item& item) { return item.id == id; });
  });
}

void PeerLink::purge() {
  for (Ring& ring : rings_) {
    std::erase_if(ring.queue, [](const Item& item) {
      return item.kind != SendKind::kRevoke && item.kind != SendKind::kRelease;
    });
  }
}

void PeerLink::set_not_ready() {
  for (Ring& ring : rings_) {
    ring.books.set_ready(false);
    ring.set_up_sent = false;
  }
}

void PeerLink::set_paused(TimePoint now, bool paused) {
  paused_ = paused;
  pump(now);
}

bool PeerLink::in_flight() const {
  return std::ranges::any_of(rings_,
                             [](const Ring& ring) { return !ring.books.in_flight().empty(); });
}

bool PeerLink::quiet() const { return !in_flight() && !read_; }

void PeerLink::request_resync(TimePoint now) {
  resync_needed_ = true;
  resync_asked_ = true;
  if (read_) read_again_ = true;
  pump(now);
}

void PeerLink::pump(TimePoint now) {
  if (paused_ || read_) return;
  if (resync_needed_ && (resync_asked_ || queued() != 0)) {
    if (in_flight()) return;  // a pointer read now could be half of a post
    read_ = outbox_.ask({.kind = OpOwner::kPointers, .peer = peer_},
                        ReadRemote{.op = {},
                                   .peer = peer_,
                                   .at = layout_.remote_pointer(peer_, RingType::kInterrupt),
                                   .size = 16});
    timers_.set(pointers_key(), now + limits_.entry_timeout);
    return;
  }
  if (resync_needed_) return;
  for (RingType ring : kRings) pump_ring(now, ring);
}

void PeerLink::pump_ring(TimePoint now, RingType ring) {
  Ring& r = ring_of(ring);
  if (r.queue.empty()) return;
  if (!r.books.ready()) {
    // Until opcode 3 is acknowledged nothing else can be: it goes alone.
    if (!r.set_up_sent && r.books.in_flight().empty()) {
      r.set_up_sent = true;
      issue(now, ring, {.kind = SendKind::kSetUp});
    }
    return;
  }
  while (!r.queue.empty() && r.books.has_room(limits_.depth)) {
    Item item = std::move(r.queue.front());
    r.queue.pop_front();
    issue(now, ring, std::move(item));
  }
}

void PeerLink::issue(TimePoint now, RingType ring, Item item) {
  Ring& r = ring_of(ring);
  RingSender::Entry& entry = r.books.begin(item.id, now + limits_.entry_timeout);
  Packet packet{};
  switch (item.kind) {
    case SendKind::kSetUp:
      packet = write_back_packet(entry.sequence, layout_.record_npa(peer_, ring));
      break;
    case SendKind::kShootdown:
      packet = shootdown_packet(entry.sequence, /*heavy=*/true);
      break;
    default:
      packet = interrupt_packet(entry.sequence, item.message);
      break;
  }
  port_ = static_cast<std::uint8_t>((port_ + 1) % 16);
  const std::uint64_t wptr = r.books.write_pointer();
  entry.post = outbox_.ask(
      {.kind = OpOwner::kPost, .peer = peer_, .ring = ring},
      PostStores{.op = {},
                 .peer = peer_,
                 .stores = {store_of(layout_.remote_slot(peer_, ring, entry.index), packet),
                            store_of(layout_.remote_pointer(peer_, ring), wptr),
                            store_of(Layout::doorbell(peer_, ring, port_),
                                     static_cast<std::uint32_t>(wptr))}});
  r.sent.push_back(std::move(item));
  ++entries_sent_;
  set_entry_timer(ring);
}

void PeerLink::set_entry_timer(RingType ring) {
  const auto& in_flight = ring_of(ring).books.in_flight();
  if (in_flight.empty()) {
    timers_.clear(entry_key(ring));
  } else {
    timers_.set(entry_key(ring), in_flight.front().deadline);
  }
}

void PeerLink::report(const Item& item, SendStage stage, base::Error error) {
  if (stage == SendStage::kFailed) ++entries_failed_;
  if (item.kind == SendKind::kSetUp) return;
  reports_.emplace_back(SendReport{item.id, item.kind, stage, item.subject, std::move(error)});
}

std::optional<LinkReport> PeerLink::next_report() {
  if (reports_.empty()) return std::nullopt;
  LinkReport first = std::move(reports_.front());
  reports_.pop_front();
  return first;
}

void PeerLink::on_posted(TimePoint now, RingType ring, OpId op, const base::Result<void>& result) {
  Ring& r = ring_of(ring);
  const auto& flight = r.books.in_flight();
  const auto it = std::ranges::find(flight, op, &RingSender::Entry::post);
  if (it == flight.end()) return;  // acknowledged before the engine's fence was seen, or given up
  const auto at = static_cast<std::size_t>(it - flight.begin());
  if (result) {
    r.sent[at].in_ring = true;
    report(r.sent[at], SendStage::kInRing);
  } else {
    resync_needed_ = true;
    fail_ring(ring, at, result.error());
  }
  pump(now);
}

void PeerLink::on_record(TimePoint now, RingType ring, const WriteBackRecord& record) {
  Ring& r = ring_of(ring);
  const auto accepted = r.books.accept(record);
  for (const RingSender::Finished& done : accepted.finished) {
    outbox_.forget(done.entry.post);
    const Item item = std::move(r.sent.front());
    r.sent.pop_front();
    finish(ring, item, done.status);
  }
  if (accepted.corrupt) {
    resync_needed_ = true;
    fail_ring(ring, 0, {.code = Errc::kProtocol, .step = "read pointer of a ring"});
  }
  set_entry_timer(ring);
  pump(now);
}

void PeerLink::finish(RingType ring, const Item& item, NhtStatus status) {
  Ring& r = ring_of(ring);
  if (status == NhtStatus::kOk) {
    if (item.kind == SendKind::kSetUp && r.set_up_sent) {
      r.books.set_ready(true);
    } else {
      report(item, SendStage::kTaken);
    }
    return;
  }
  report(item, SendStage::kFailed, error_of(status));
  if (spoils_ring(status)) {
    resync_needed_ = true;
    r.books.set_ready(false);
    r.set_up_sent = false;
  }
  if (item.kind == SendKind::kSetUp) fail_ring(ring, 0, error_of(status));
}

void PeerLink::fail_ring(RingType ring, std::size_t first, const base::Error& error) {
  Ring& r = ring_of(ring);
  for (const RingSender::Entry& entry : r.books.abandon(first)) outbox_.forget(entry.post);
  while (r.sent.size() > first) {
    const Item item = std::move(r.sent[first]);
    r.sent.erase(r.sent.begin() + static_cast<std::ptrdiff_t>(first));
    report(item, SendStage::kFailed, error);
    if (item.kind == SendKind::kSetUp) r.set_up_sent = false;
  }
  const auto queued = std::exchange(r.queue, {});
  for (const Item& item : queued) report(item, SendStage::kFailed, error);
  set_entry_timer(ring);
}

void PeerLink::on_entry_due(TimePoint now, RingType ring) {
  // The firmware may still consume what is there: only its memory knows the pointers (errata A14).
  resync_needed_ = true;
  fail_ring(ring, 0, {.code = Errc::kTimeout, .step = "write-back of a ring entry"});
  pump(now);
}

void PeerLink::on_pointers_due(TimePoint now) {
  if (!read_) return;
  outbox_.forget(*read_);
  fail_read(now, {.code = Errc::kTimeout, .step = "write pointers at the peer"});
}

void PeerLink::on_pointers(TimePoint now, OpId op,
                           const base::Result<std::vector<std::byte>>& result) {
  if (read_ != op) return;
  if (!result) return fail_read(now, result.error());
  if (result->size() != 16) {
    return fail_read(now, {.code = Errc::kDeviceError, .step = "write pointers at the peer"});
  }
  read_.reset();
  timers_.clear(pointers_key());
  if (std::exchange(read_again_, false)) return pump(now);
  resync_needed_ = false;
  bool differed = false;
  for (RingType ring : kRings) {
    Ring& r = ring_of(ring);
    const auto pointer = base::load<std::uint64_t>(*result, ring == RingType::kInterrupt ? 0 : 8);
    if (!r.books.adopt(pointer)) continue;
    differed = true;
    r.books.set_ready(false);
    r.set_up_sent = false;
  }
  if (std::exchange(resync_asked_, false)) reports_.emplace_back(ResyncReport{differed});
  pump(now);
}

void PeerLink::fail_read(TimePoint, const base::Error& error) {
  read_.reset();
  read_again_ = false;
  timers_.clear(pointers_key());
  for (RingType ring : kRings) fail_ring(ring, 0, error);
  if (std::exchange(resync_asked_, false)) {
    reports_.emplace_back(ResyncReport{std::unexpected(error)});
  }
}

void PeerLink::abandon(const base::Error& error) {
  if (read_) outbox_.forget(*read_);
  resync_needed_ = true;
  fail_read({}, error);
}

}  // namespace fabric
