// What is behind Node: the tables, the peers, and who calls whom. Only node*.cc include it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "fabric/activation.h"
#include "fabric/connection.h"
#include "fabric/export_table.h"
#include "fabric/import_table.h"
#include "fabric/node.h"
#include "fabric/peer_link.h"

namespace fabric {

// Every entry from outside ends with settle(): reports of the links are handed on one by one, from
// the top of the stack, so that no state machine is called from inside itself.
class Node::Core final : public ConnectionHost, public ImportHost, public ExportHost {
 public:
  Core(const NodeConfig& config, RandomSource& random);

  void handle(TimePoint now, const Event& event);
  void tick(TimePoint now);
  void settle(TimePoint now);

  void apply_config(TimePoint now, Token token, const PodConfig& config);
  void deactivate(TimePoint now, Token token);
  void pause(TimePoint now, Token token);
  void resume(TimePoint now);
  void import_handle(TimePoint now, Token token, const Handle& handle);

  // ConnectionHost
  std::uint32_t new_nonce() override;
  SendId new_send_id() override { return ++last_send_; }
  void drop_state(TimePoint now, AccelId peer, const base::Error& why, bool ask_again) override;
  bool detaching(AccelId peer) const override { return imports_.detaching(peer); }
  bool idle(AccelId peer) const override { return !imports_.uses(peer) && !exports_.uses(peer); }
  void on_connected(TimePoint now, AccelId peer, bool fresh) override;
  void on_connect_failed(TimePoint now, AccelId peer, const base::Error& why) override;
  void on_deferred(TimePoint now, AccelId peer, const NpaReq& request) override;
  // ImportHost, ExportHost
  SendId send(TimePoint now, AccelId peer, SendKind kind, const Message& message,
              std::uint64_t subject) override;
  SendId send_shootdown(TimePoint now, AccelId peer, std::uint64_t subject) override;
  void need_connection(TimePoint now, AccelId peer) override;
  bool may_ask(AccelId peer) const override;
  bool releases_voluntarily(AccelId peer) const override;
  void on_detached(TimePoint now, AccelId peer) override;
  Generation generation(AccelId peer) const override;
  bool extended(AccelId peer) const override;
  bool answers_shootdown(AccelId peer) const override;
  void no_shootdown(TimePoint now, AccelId peer) override;
  void reset_connection(TimePoint now, AccelId peer, const base::Error& why) override;

  struct Peer {
    Peer(Core& core, AccelId id);
    PeerLink link;
    Connection connection;
    bool up = false;
    bool shootdown = true;  // until it is found not to answer, for one generation (U48)
  };
  // What the accelerator is doing about its configuration.
  enum class Change : std::uint8_t { kNone, kDraining, kDown, kUp };

  // Marks the peer as one whose reports are to be taken. nullptr: not a member, or not active.
  Peer* touch(AccelId peer);
  const Peer* look(AccelId peer) const;
  void enter(AccelState state);
  void leave_fabric(TimePoint now);
  void after_drain(TimePoint now);
  void after_down(TimePoint now);
  void start_up(TimePoint now);
  void after_up(TimePoint now);
  void on_step(TimePoint now, const std::optional<base::Result<void>>& ended);
  void end_change(const base::Result<void>& result);
  void on_message(TimePoint now, const MessageReceived& received);
  void dispatch(TimePoint now, AccelId sender, Peer& peer, const Message& message);
  void on_report(TimePoint now, AccelId peer, const LinkReport& report);
  void on_op(TimePoint now, const OpOwner& owner, OpId op, const base::Result<void>& result);
  void on_timer(TimePoint now, const TimerKey& key);
  void on_link(TimePoint now, const LinkChanged& change);
  void finish_pause();

  const NodeConfig config_;
  RandomSource& random_;
  Outbox outbox_;
  Timers timers_;
  ImportTable imports_;
  ExportTable exports_;
  Activation activation_;
  AccelState state_ = AccelState::kUnconfigured;
  PodConfig pod_;
  std::optional<Layout> layout_;
  std::map<AccelId, std::unique_ptr<Peer>> peers_;
  std::set<AccelId> touched_;
  std::set<AccelId> links_down_;
  NodeCounters counters_;
  SendId last_send_ = 0;
  std::map<AccelId, Generation> generations_;  // outlive a peer's object

  Change change_ = Change::kNone;
  std::optional<Token> change_token_;
  std::optional<PodConfig> next_pod_;
  std::optional<base::Error> change_error_;
  bool paused_ = false;
  std::vector<Token> pausers_;
};

}  // namespace fabric
