// Both rings towards one peer: queues, opcode 3, resynchronisation, time-outs. Knows nothing of
// connections. What became of each thing sent is collected as reports that the node takes in turn.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <variant>
#include <vector>

#include "base/result.h"
#include "fabric/deadlines.h"
#include "fabric/event.h"
#include "fabric/layout.h"
#include "fabric/message.h"
#include "fabric/outbox.h"
#include "fabric/ring_sender.h"

namespace fabric {

// Names one send() of a node; never used twice.
using SendId = std::uint64_t;

enum class SendKind : std::uint8_t {
  kSetUp,  // opcode 3, the link's own
  kHello,
  kHelloAck,
  kReq,
  kRsp,
  kFail,
  kRevoke,
  kRelease,
  kShootdown,
};

enum class SendStage : std::uint8_t {
  kInRing,  // the stores are done: the peer may see it
  kTaken,   // the firmware has consumed it
  kFailed,
};

struct SendReport {
  SendId id = 0;
  SendKind kind = SendKind::kSetUp;
  SendStage stage = SendStage::kInRing;
  std::uint64_t subject = 0;  // what the sender gave
  base::Error error{};        // kFailed
};
// Answer to request_resync(): whether a pointer differed from ours.
struct ResyncReport {
  base::Result<bool> differed;
};
using LinkReport = std::variant<SendReport, ResyncReport>;

struct LinkLimits {
  Duration entry_timeout{};
  unsigned depth = 1;  // entries in flight a ring
};

class PeerLink {
 public:
  // All references outlive the link.
  PeerLink(AccelId peer, const Layout& layout, LinkLimits limits, Outbox& outbox, Timers& timers);
  ~PeerLink();
  PeerLink(const PeerLink&) = delete;
  PeerLink& operator=(const PeerLink&) = delete;

  void send(TimePoint now, SendId id, SendKind kind, const Message& message,
            std::uint64_t subject = 0);
  void send_shootdown(TimePoint now, SendId id, std::uint64_t subject);
  // Takes back what has not been given to the engine. False: too late or unknown.
  bool unsend(SendId id);
  // Whether it was given to the engine (or is done with).
  bool issued(SendId id) const;
  // Drops queued requests and answers of a connection that is no more, without reports. REVOKE and
  // RELEASE stay: they are valid in any state.
  void purge();

  // Reads both pointer words once nothing is in flight and adopts them; a ring whose pointer
  // differed is not ready afterwards. A second request while a read is under way reads again (U19).
  void request_resync(TimePoint now);
  // Opcode 3 goes first on both rings from now on.
  void set_not_ready();
  void set_depth(unsigned depth) { limits_.depth = depth; }
  void set_paused(TimePoint now, bool paused);
  // Gives everything up with `error`; the next send begins with a resync.
  void abandon(const base::Error& error);

  void on_posted(TimePoint now, RingType ring, OpId op, const base::Result<void>& result);
  void on_pointers(TimePoint now, OpId op, const base::Result<std::vector<std::byte>>& result);
  void on_record(TimePoint now, RingType ring, const WriteBackRecord& record);
  void on_entry_due(TimePoint now, RingType ring);
  void on_pointers_due(TimePoint now);

  std::optional<LinkReport> next_report();
  bool quiet() const;  // nothing in flight, no read under way
  bool awaits_record(RingType ring) const { return !ring_of(ring).books.in_flight().empty(); }
  std::uint64_t entries_sent() const { return entries_sent_; }
  std::uint64_t entries_failed() const { return entries_failed_; }
  std::size_t queued() const;

 private:
  struct Item {
    SendId id = 0;
    SendKind kind = SendKind::kSetUp;
    std::uint64_t subject = 0;
    Dwords message{};
    bool in_ring = false;
  };
  struct Ring {
    RingSender books;
    std::deque<Item> queue;  // not given to the engine yet
    std::deque<Item> sent;   // beside books.in_flight(), same order
    bool set_up_sent = false;
  };

  Ring& ring_of(RingType ring) { return rings_[static_cast<std::size_t>(ring)]; }
  const Ring& ring_of(RingType ring) const { return rings_[static_cast<std::size_t>(ring)]; }
  bool in_flight() const;
  void queue(TimePoint now, RingType ring, Item item);
  void pump(TimePoint now);
  void pump_ring(TimePoint now, RingType ring);
  void issue(TimePoint now, RingType ring, Item item);
  void finish(RingType ring, const Item& item, NhtStatus status);
  void report(const Item& item, SendStage stage, base::Error error = {});
  // Everything of a ring fails: in flight from `first` on, and what is queued.
  void fail_ring(RingType ring, std::size_t first, const base::Error& error);
  void fail_read(TimePoint now, const base::Error& error);
  void set_entry_timer(RingType ring);
  TimerKey entry_key(RingType ring) const;
  TimerKey pointers_key() const;

  AccelId peer_;
  const Layout& layout_;
  LinkLimits limits_;
  Outbox& outbox_;
  Timers& timers_;
  std::array<Ring, 2> rings_;
  std::deque<LinkReport> reports_;
  std::optional<OpId> read_;    // pointer read under way
  bool resync_needed_ = false;  // before the next entry
  bool resync_asked_ = false;   // somebody wants a ResyncReport
  bool read_again_ = false;
  bool paused_ = false;
  std::uint8_t port_ = 0;  // of the doorbell, before use (U49)
  std::uint64_t entries_sent_ = 0;
  std::uint64_t entries_failed_ = 0;
};

}  // namespace fabric
