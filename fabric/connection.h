// The connection to one peer (docs/hardware/nht.md, "Connections"): HELLO, HELLO_ACK, generation.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/result.h"
#include "fabric/deadlines.h"
#include "fabric/message.h"
#include "fabric/node.h"
#include "fabric/peer_link.h"

namespace fabric {

// What a connection needs of the node around it.
class ConnectionHost {
 public:
  virtual ~ConnectionHost() = default;
  virtual std::uint32_t new_nonce() = 0;
  virtual SendId new_send_id() = 0;
  // Forgets every grant to and every import from `peer`. `ask_again`: requests without an answer
  // are repeated on the next connection instead of failing (U14).
  virtual void drop_state(TimePoint now, AccelId peer, const base::Error& why, bool ask_again) = 0;
  // Whether imports from `peer` are still being torn down. No new connection before: it tells the
  // exporter that nothing of the old one is mapped any more.
  virtual bool detaching(AccelId peer) const = 0;
  // Nothing imported from it and nothing granted to it (U19 c).
  virtual bool idle(AccelId peer) const = 0;
  // `fresh`: a new generation; false: the old connection proved to be alive.
  virtual void on_connected(TimePoint now, AccelId peer, bool fresh) = 0;
  virtual void on_connect_failed(TimePoint now, AccelId peer, const base::Error& why) = 0;
  // A request that came while the ACK was on its way.
  virtual void on_deferred(TimePoint now, AccelId peer, const NpaReq& request) = 0;
};

class Connection {
 public:
  struct Limits {
    Duration hello_timeout{};
    unsigned depth = 1;  // entries in flight towards a peer with the extension
    bool offer_extension = true;
    Generation generation = 0;  // the last one of an earlier activation (errata A22)
  };
  Connection(AccelId self, AccelId peer, const Limits& limits, PeerLink& link, ConnectionHost& host,
             Timers& timers);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  ConnectionState state() const { return state_; }
  bool established() const { return state_ == ConnectionState::kEstablished; }
  Generation generation() const { return generation_; }
  bool extended() const { return extended_; }
  bool agreed(std::uint32_t capability) const { return (capabilities_ & capability) != 0; }

  // Somebody needs it: on_connected() or on_connect_failed() follows, perhaps at once.
  void need(TimePoint now);
  // To NOT_READY; both directions are dropped without a message (U37, U45).
  void reset(TimePoint now, const base::Error& why);
  void set_link(TimePoint now, bool up);
  bool link_up() const { return link_up_; }

  // `hello` has been found to name both ends rightly.
  void on_hello(TimePoint now, const Hello& hello);
  void on_hello_ack(TimePoint now, const HelloAck& ack);
  // False: not for now, drop it. Starts a connection where U14 says so.
  bool admits(TimePoint now);
  // Keeps a REQ that came between the peer's HELLO and our ACK. True: kept.
  bool defer(const NpaReq& request);
  void on_sent(TimePoint now, const SendReport& report);
  void on_resynced(TimePoint now, const ResyncReport& report);
  // detaching() may have become false.
  void advance(TimePoint now);
  void on_due(TimePoint now);

 private:
  enum class Step : std::uint8_t { kNone, kDetach, kResync, kSending };

  void start_hello(TimePoint now);
  void start_ack(TimePoint now, const Hello& hello);
  void send_hello(TimePoint now);
  void send_ack(TimePoint now, const std::optional<Extension>& asked);
  void establish(TimePoint now, const std::optional<Extension>& theirs);
  void fail(TimePoint now, const base::Error& why);
  void stop_handshake();
  TimerKey key() const { return {TimerKey::kConnect, peer_.value(), 0}; }

  AccelId self_;
  AccelId peer_;
  Limits limits_;
  PeerLink& link_;
  ConnectionHost& host_;
  Timers& timers_;
  ConnectionState state_ = ConnectionState::kNotReady;
  Step step_ = Step::kNone;
  Generation generation_ = 0;
  bool link_up_ = true;
  bool extended_ = false;
  bool verifying_ = false;  // ESTABLISHED and reading the pointers before an import
  std::uint32_t capabilities_ = 0;
  std::uint32_t own_nonce_ = 0;          // of our last HELLO
  std::uint32_t answered_nonce_ = 0;     // of the last HELLO that led to a connection
  std::optional<Extension> peer_offer_;  // of the HELLO being answered
  SendId hello_id_ = 0;
  SendId ack_id_ = 0;
  std::vector<NpaReq> deferred_;
};

}  // namespace fabric
