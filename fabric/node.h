// One accelerator's end of the UALink protocol: connections to its peers, what it exports and what
// it imports. Pure: events and requests come in with the time, actions go out.
//
//   node.handle(now, event);  node.import_handle(now, token, handle);  ...
//   for (Action& action : node.take_actions()) execute(action);
//   timer.set(node.next_deadline());            -> node.tick(now)
//   for (RecordName r : node.awaited_records()) poll the record -> node.handle(now,
//   RecordRead{...})
//
// Thread: the one that owns the device. Lifetime: as long as the device; it survives activation,
// deactivation and every fault of a peer. docs/fabric.md tells the states and invariants.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fabric/accelerator.h"
#include "fabric/action.h"
#include "fabric/event.h"
#include "fabric/types.h"

namespace fabric {

struct NodeConfig {
  base::VramOffset ring_buffer;     // Layout::ring_buffer_bytes(), 2 MiB aligned
  base::VramOffset record_buffer;   // Layout::record_buffer_bytes(), page aligned
  base::McAddress vram_base;        // MC address of VRAM byte 0, for the metadata table
  unsigned entries_in_flight = 16;  // per ring, 1..63; a peer without the extension gets 1 (U28)
  unsigned questions_to_legacy_peer = 16;  // unanswered REQs at a peer without the extension (U32)
  Duration entry_timeout = std::chrono::seconds(2);      // write-back of one ring entry
  Duration hello_timeout = std::chrono::seconds(5);      // U36
  Duration answer_timeout = std::chrono::seconds(5);     // RSP or FAIL after REQ
  Duration release_timeout = std::chrono::seconds(5);    // all RELEASEs, from the last REVOKE
  Duration legacy_revoke_gap = std::chrono::seconds(1);  // RSP's write-back to REVOKE (U21)
  bool offer_extension = true;                           // U06; off: behave as a peer without it
  // First page of the NPA window that is not used; tests make the window small.
  std::uint64_t npa_end_page = kWindowPages - 1;
};

struct RecordName {
  AccelId peer;
  RingType ring = RingType::kInterrupt;
};

struct ExportRequest {
  BufferId buffer;
  std::uint64_t pages = 0;          // of 4 KiB
  std::optional<AccelSet> allowed;  // who may import; nullopt: every member
};

// Snapshots for gpuctl and metrics.
enum class ConnectionState : std::uint8_t {
  kNotReady = 0,
  kInProgress = 1,
  kPending = 2,
  kEstablished = 3
};
struct PeerInfo {
  AccelId id;
  ConnectionState state = ConnectionState::kNotReady;
  Generation generation = 0;
  bool link_up = true;
  bool extension = false;  // the peer speaks U06
  bool shootdown = true;   // it answers opcode 1 as far as we know (U48)
  std::uint64_t entries_sent = 0;
  std::uint64_t entries_failed = 0;
};
struct ExportInfo {
  Handle handle;
  BufferId buffer;
  std::uint64_t pages = 0;
  bool pinned = false;
  bool revoking = false;
  std::vector<AccelId> importers;
};
struct ImportInfo {
  ImportId import;
  Handle handle;
  bool ready = false;
  unsigned references = 0;
  std::uint64_t pages = 0;
};
struct NodeCounters {
  std::uint64_t messages_handled = 0;
  std::uint64_t messages_not_active = 0;  // came while the accelerator was not ACTIVE
  std::uint64_t messages_bad_sender = 0;  // not a member, ourselves, out of range (errata A4)
  std::uint64_t messages_unknown_type = 0;
  std::uint64_t messages_ignored = 0;    // nobody waits for them, or not connected
  std::uint64_t sends_dropped = 0;       // queue to a peer full; only RELEASE and FAIL
  std::uint64_t free_npa_pages = 0;      // now
  std::uint64_t quarantined_ranges = 0;  // now
};

class Node {
 public:
  // `random` must outlive the node.
  Node(const NodeConfig& config, RandomSource& random);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  void handle(TimePoint now, const Event& event);
  // Does what has become due. Calling it early or late does no harm.
  void tick(TimePoint now);
  // When tick() must be called at the latest; nullopt while nothing waits for time.
  std::optional<TimePoint> next_deadline() const;
  // What is to be done, in order; empties the list.
  std::vector<Action> take_actions();
  // Records that may change while entries are in flight.
  std::vector<RecordName> awaited_records() const;

  // --- Pod ---

  // Takes a configuration to heart: validates it, deactivates when membership changes, activates
  // when it is complete. Complete{token}: ok when the state it stands for was reached (errata A26),
  // kProtocol for a bad one, kUnsupported for ident mode, else the error of the step that failed.
  // kBusy while an earlier one is under way.
  void apply_config(TimePoint now, Token token, const PodConfig& config);
  // Leaves the fabric: everything imported is detached, everything exported unreachable. Exports
  // keep their handles. Complete{token}.
  void deactivate(TimePoint now, Token token);
  // Nothing new enters a ring; Complete{token} when nothing is in flight any more.
  void pause(TimePoint now, Token token);
  void resume(TimePoint now);
  AccelState state() const;
  const PodConfig& pod() const;

  // --- Exports ---

  // Registers a buffer; nothing is mapped or pinned before a peer asks. A buffer that is exported
  // already keeps its handle (U47, UAL-4). kInvalidArgument: 0 pages; kUnsupported: no accelerator
  // id yet (UNCONFIGURED).
  base::Result<Handle> export_buffer(const ExportRequest& request);
  // Takes the memory back from every importer and forgets the handle. UnpinBuffer comes as soon as
  // the memory is out of reach, Complete{token} (always ok but for kNotFound) when the last
  // importer has answered or has been given up. kNotFound: no such export.
  void revoke(TimePoint now, Token token, const Handle& handle);
  std::optional<ExportInfo> find_export(const Handle& handle) const;

  // --- Imports ---

  // Complete{token, ImportedMemory} or kNotFound (unknown handle), kNoSpace (exporter), kPeerLost,
  // kTimeout, kRevoked, kAgain (low half asked for already), kUnsupported (not ACTIVE),
  // kInvalidArgument (own handle, not a member), kProtocol (reply makes no sense), kRefused. Each
  // good import is one reference, and the same handle gives the same object while it lives.
  void import_handle(TimePoint now, Token token, const Handle& handle);
  // Drops one reference; the caller has unmapped and flushed what it mapped through it. The last
  // one gives the memory back to the exporter (errata A13). kNotFound: no such object, or gone
  // already.
  base::Result<void> close_import(TimePoint now, ImportId import);

  // Resets the connection to a peer as if its link had failed. kNotFound: not a member.
  base::Result<void> drop_peer(TimePoint now, AccelId peer);

  std::vector<PeerInfo> peers() const;
  std::vector<ExportInfo> exports() const;
  std::vector<ImportInfo> imports() const;
  NodeCounters counters() const;
  // Addresses of the active configuration; nullopt unless a configuration was activated.
  std::optional<Layout> layout() const;

 private:
  class Core;
  std::unique_ptr<Core> core_;
};

}  // namespace fabric
