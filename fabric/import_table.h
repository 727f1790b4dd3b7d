// What this accelerator imports (docs/hardware/nht.md, "Import"): one record a handle, keyed by all
// 128 bits (errata A2), each a small state machine of its own.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "fabric/deadlines.h"
#include "fabric/message.h"
#include "fabric/node.h"
#include "fabric/outbox.h"
#include "fabric/peer_link.h"

namespace fabric {

class ImportHost {
 public:
  virtual ~ImportHost() = default;
  virtual SendId send(TimePoint now, AccelId peer, SendKind kind, const Message& message,
                      std::uint64_t subject) = 0;
  // on_connected() or on_connect_failed() follows, perhaps before this returns.
  virtual void need_connection(TimePoint now, AccelId peer) = 0;
  virtual bool may_ask(AccelId peer) const = 0;  // one more REQ without an answer (U32)
  virtual bool releases_voluntarily(AccelId peer) const = 0;
  virtual void reset_connection(TimePoint now, AccelId peer, const base::Error& why) = 0;
  virtual void on_detached(TimePoint now, AccelId peer) = 0;
};

class ImportTable {
 public:
  struct Limits {
    Duration answer_timeout{};
    Duration whole_timeout{};  // connection, request and all ring entries
  };
  ImportTable(const Limits& limits, ImportHost& host, Outbox& outbox, Timers& timers)
      : limits_(limits), host_(host), outbox_(outbox), timers_(timers) {}

  void open(TimePoint now, Token token, const Handle& handle);
  base::Result<void> close(TimePoint now, ImportId import);

  void on_connected(TimePoint now, AccelId peer);
  void on_connect_failed(TimePoint now, AccelId peer, const base::Error& why);
  // Every import of `peer` goes; see ConnectionHost::drop_state.
  void drop_peer(TimePoint now, AccelId peer, const base::Error& why, bool ask_again);
  void drop_all(TimePoint now, const base::Error& why);
  // Records whose teardown never ended are forgotten: the device has left the fabric.
  void forget_all(const base::Error& why);

  void on_rsp(TimePoint now, AccelId peer, const NpaRsp& rsp);
  void on_fail(TimePoint now, AccelId peer, const NpaFail& fail);
  void on_revoke(TimePoint now, AccelId peer, const Handle& handle);
  void on_sent(TimePoint now, AccelId peer, const SendReport& report);
  void on_detach_done(TimePoint now, ImportId import, const base::Result<void>& result);
  void on_due(TimePoint now, ImportId import);

  bool detaching(AccelId peer) const { return count(detaching_, peer) != 0; }
  bool detaching() const { return !detaching_.empty(); }
  unsigned unanswered(AccelId peer) const { return count(asked_of_, peer); }
  // Whether anything is or may be granted to us by `peer`.
  bool uses(AccelId peer) const { return count(held_from_, peer) != 0; }
  std::vector<ImportInfo> list() const;

 private:
  enum class Phase : std::uint8_t {
    kNew,         // in no index yet
    kConnecting,  // REQ not sent
    kAsked,       // REQ sent
    kReady,
    kDetaching,
    kBroken,  // the answer made no sense; a legacy peer is not asked again on this connection (U22)
  };
  struct Import {
    ImportId id;
    Handle handle;
    Phase phase = Phase::kNew;
    std::vector<Token> waiters;  // kConnecting, kAsked; kDetaching: want it again
    unsigned references = 0;     // kReady
    std::uint64_t page = 0;
    std::uint64_t pages = 0;
    SendId request = 0;
    TimePoint whole_deadline;
    unsigned releases_owed = 0;  // kDetaching: one for each REVOKE
    bool stuck = false;          // kDetaching: the teardown failed
  };
  using Counts = std::map<AccelId, unsigned>;
  static unsigned count(const Counts& counts, AccelId peer);
  static void change(Counts& counts, AccelId peer, int by);

  Import* find(const Handle& handle);
  Import* asked(AccelId peer, std::uint64_t handle_lo);
  std::vector<Handle> of_peer(AccelId peer) const;
  void start(TimePoint now, const Handle& handle);
  void enter(Import& import, Phase phase);
  void ask(TimePoint now, Import& import);
  void ask_more(TimePoint now, AccelId peer);
  void detach(Import& import, Errc reason);
  void release(TimePoint now, const Handle& handle);
  void end(Import& import, const base::Error& why);  // erases it
  void complete_ready(Token token, Import& import);
  TimerKey key(ImportId import) const { return {TimerKey::kImport, import.value(), 0}; }

  Limits limits_;
  ImportHost& host_;
  Outbox& outbox_;
  Timers& timers_;
  std::unordered_map<Handle, Import, HandleHash> imports_;
  std::unordered_map<ImportId, Handle, base::AddressHash> by_id_;
  std::unordered_map<std::uint64_t, Handle> open_requests_;  // low half -> kConnecting or kAsked
  std::map<AccelId, std::map<ImportId, Handle>> connecting_;
  Counts detaching_;
  Counts asked_of_;
  Counts held_from_;
  std::uint64_t last_id_ = 0;
};

}  // namespace fabric
