// What this accelerator exports (docs/hardware/nht.md, "Export" and "Revoke"): who was granted
// what, and which NPA range may still be known to whom.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "fabric/deadlines.h"
#include "fabric/message.h"
#include "fabric/node.h"
#include "fabric/npa_allocator.h"
#include "fabric/outbox.h"
#include "fabric/peer_link.h"

namespace fabric {

class ExportHost {
 public:
  virtual ~ExportHost() = default;
  virtual SendId send(TimePoint now, AccelId peer, SendKind kind, const Message& message,
                      std::uint64_t subject) = 0;
  virtual SendId send_shootdown(TimePoint now, AccelId peer, std::uint64_t subject) = 0;
  virtual Generation generation(AccelId peer) const = 0;
  virtual bool extended(AccelId peer) const = 0;
  virtual bool answers_shootdown(AccelId peer) const = 0;
  virtual void no_shootdown(TimePoint now, AccelId peer) = 0;  // U48
  virtual void reset_connection(TimePoint now, AccelId peer, const base::Error& why) = 0;
};

class ExportTable {
 public:
  struct Limits {
    Duration release_timeout{};
    Duration legacy_revoke_gap{};
    Duration shootdown_timeout{};  // backstop: opcode 3 and opcode 1
  };
  ExportTable(const Limits& limits, RandomSource& random, ExportHost& host, Outbox& outbox,
              Timers& timers)
      : limits_(limits), random_(random), host_(host), outbox_(outbox), timers_(timers) {}

  base::Result<Handle> add(AccelId self, const ExportRequest& request);
  void revoke(TimePoint now, Token token, const Handle& handle);

  void on_req(TimePoint now, AccelId peer, const Handle& handle);
  void on_release(TimePoint now, AccelId peer, const Handle& handle);
  void on_sent(TimePoint now, AccelId peer, const SendReport& report);
  void on_pinned(TimePoint now, std::uint64_t serial,
                 const base::Result<std::vector<VramRun>>& result);
  void on_npa_done(TimePoint now, std::uint64_t serial, const base::Result<void>& result);
  void on_revoke_send_due(TimePoint now, std::uint64_t serial);
  void on_release_due(TimePoint now, std::uint64_t serial);

  // The connection is no more: grants go; what the peer may still have mapped stays quarantined.
  void drop_peer(TimePoint now, AccelId peer);
  // `peer` has proved, by a connection of `generation`, that nothing older is mapped there.
  void on_new_generation(AccelId peer, Generation generation);

  // --- Activation ---
  void open(NpaAllocator allocator) { allocator_ = std::move(allocator); }
  std::optional<NpaRange> reserve(std::uint64_t pages) { return allocator_->allocate(pages); }
  // Every export goes back to "not mapped"; quiet() tells when.
  void drain(TimePoint now);
  bool quiet() const;
  // Nothing can be reached any more: forget ranges and quarantines.
  void close();
  // The handles name an accelerator that we are no longer.
  void forget_all();

  bool uses(AccelId peer) const;  // something is granted to it, or is about to be
  std::optional<ExportInfo> find(const Handle& handle) const;
  std::vector<ExportInfo> list() const;
  std::size_t quarantined() const { return quarantine_.size(); }
  std::uint64_t free_pages() const { return allocator_ ? allocator_->free_pages() : 0; }

 private:
  enum class Phase : std::uint8_t {
    kIdle,     // not pinned, not mapped
    kPinning,  // waits for BufferPinned
    kMapping,  // waits for UpdateNpa
    kMapped,
    kUnmapping,  // nobody needs it any more
    kRetrying,   // revoke: X = 1 is being set
    kShooting,   // revoke: opcode 1 at every importer
    kClearing,   // revoke: entries become 0x6
    kReleasing,  // revoke: REVOKE sent or waiting, RELEASE awaited
    kStuck,      // the entries could not be cleared: device error, stays pinned until the VM is off
  };
  struct Grant {
    SendId rsp = 0;                  // 0: not answered yet
    std::optional<TimePoint> taken;  // RSP's write-back
    SendId shootdown = 0;            // under way
    bool shot = false;               // its translations are gone
    SendId revoke = 0;               // 0: REVOKE not sent
  };
  struct Export {
    std::uint64_t serial = 0;
    Handle handle;
    BufferId buffer;
    std::uint64_t pages = 0;
    std::optional<AccelSet> allowed;
    Phase phase = Phase::kIdle;
    std::vector<VramRun> runs;
    bool pinned = false;
    std::optional<NpaRange> range;
    std::map<AccelId, Grant> grants;
    std::map<AccelId, Generation> holders;  // who may have `range` mapped, since which generation
    bool revoked = false;
    std::vector<Token> revokers;
  };
  struct Quarantined {
    NpaRange range;
    std::map<AccelId, Generation> holders;
  };

  Export* by_serial(std::uint64_t serial);
  Export* by_handle(const Handle& handle);
  void refuse(TimePoint now, AccelId peer, const Handle& handle, FailReason reason);
  void refuse_waiting(TimePoint now, Export& e, FailReason reason);
  void answer(TimePoint now, AccelId peer, Export& e, Grant& grant);
  // Does what the phase and the grants ask for next. May erase `e`.
  void advance(TimePoint now, Export& e);
  void map(TimePoint now, Export& e);
  void update(Export& e, NpaEntry entry, NpaFlush flush);
  void on_cleared(TimePoint now, Export& e, bool ok);
  void begin_shootdown(TimePoint now, Export& e);
  void after_shootdown(TimePoint now, Export& e);
  void send_revokes(TimePoint now, Export& e);
  void after_release(TimePoint now, Export& e);
  void on_shootdown_sent(TimePoint now, AccelId peer, Export& e, const SendReport& report);
  void unpin(Export& e);
  void give_back(Export& e);
  void finish(Export& e);
  bool memory_in_reach(const Export& e) const;
  ExportInfo info(const Export& e) const;

  Limits limits_;
  RandomSource& random_;
  ExportHost& host_;
  Outbox& outbox_;
  Timers& timers_;
  std::optional<NpaAllocator> allocator_;
  std::map<std::uint64_t, Export> exports_;  // by serial
  std::unordered_map<std::uint64_t, std::uint64_t> serial_of_lo_;
  std::unordered_map<BufferId, std::uint64_t, base::AddressHash> serial_of_buffer_;
  std::vector<Quarantined> quarantine_;
  std::map<AccelId, unsigned> grants_to_;
  bool draining_ = false;
  std::uint64_t last_serial_ = 0;
};

}  // namespace fabric
