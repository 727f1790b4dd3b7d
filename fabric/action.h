// What a Node wants done. The caller takes the list and executes it in order; an action with an
// `op` is answered by exactly one event that carries the same `op` (fabric/event.h). Several
// actions may be under way at once unless a comment says otherwise.
#pragma once

#include <array>
#include <cstdint>
#include <variant>
#include <vector>

#include "base/result.h"
#include "fabric/handle.h"
#include "fabric/layout.h"
#include "fabric/types.h"

namespace fabric {

// Bytes to be stored at a remote address: 4, 8 or 64.
struct RemoteStore {
  Npa at;  // complete: receiver's id in 50:41, or a doorbell (docs/hardware/nht.md, "Sender's
           // addresses")
  std::uint8_t size = 0;
  std::array<std::byte, 64> bytes{};
};

// Stores to one peer, each visible there before the next one begins (ring entry, then write
// pointer, then doorbell). Stops at the first that fails (errata B3). Answer: OpDone. The posts of
// one peer take effect in the order of the list.
struct PostStores {
  OpId op;
  AccelId peer;
  std::vector<RemoteStore> stores;
};

// Loads the two write-pointer words of this sender from the peer's memory (U19).
// Answer: BytesRead with `size` bytes.
struct ReadRemote {
  OpId op;
  AccelId peer;
  Npa at;
  std::uint8_t size = 0;
};

// What entries of the exporter's NPA page table (VMID 15) shall say.
enum class NpaEntry : std::uint8_t {
  kMapped,  // VRAM leaf, readable and writable
  kRetry,   // the same with X = 1: peers are answered "retry" (U25)
  kGone,    // no-retry pattern 0x6
};

enum class NpaFlush : std::uint8_t { kNone, kLight, kHeavy };

// Writes the entries of `range`, then flushes VMID 15 on every MMHUB. Answer: OpDone after the
// flush was acknowledged. `runs` is empty for kGone. Updates are executed in the order given.
struct UpdateNpa {
  OpId op;
  NpaRange range;
  NpaEntry entry = NpaEntry::kMapped;
  NpaFlush flush = NpaFlush::kNone;
  std::vector<VramRun> runs;
};

// Keeps the buffer in VRAM where it is (UAL-1). Answer: BufferPinned.
struct PinBuffer {
  OpId op;
  BufferId buffer;
};

// The buffer's memory is out of every peer's reach: it may move, be evicted, or be reused. No
// answer.
struct UnpinBuffer {
  BufferId buffer;
};

// Tears every mapping of an imported object down: entries cleared, TLBs flushed heavily, clients
// told `reason` (kRevoked, kPeerLost, kReset, kTimeout). Answer: OpDone when no engine can reach it
// any more; RELEASE or a new connection waits for that.
struct DetachImport {
  OpId op;
  ImportId import;
  Handle handle;
  Errc reason = Errc::kRevoked;
};

// One request of the caller has ended. `value` is set by a good import.
struct ImportedMemory {
  ImportId import;
  Npa at;  // first byte, exporter's id included; never leaves the daemon (UAL-3)
  std::uint64_t pages = 0;
};
struct Complete {
  Token token;
  base::Result<ImportedMemory> result;  // default-constructed for requests without a value
};

// Steps of activation and deactivation; each one is answered by OpDone before the next is given.
struct SetNpaAccess {  // security processor, command 0x59 {15, enable}
  OpId op;
  bool enable = false;
};
struct SetNpaVm {  // page tables of VMID 15 and the root in context 15 of every MMHUB; off: root 0
  OpId op;
  bool enable = false;
};
struct ClearRings {  // zero the ring buffer and the write-back records (U02)
  OpId op;
};
struct LoadMetadata {  // mailbox CMD 1 with this table; docs/hardware/nht.md, "Mailbox"
  OpId op;
  std::vector<std::byte> table;
  std::uint32_t data = 0;  // value of the DATA register
};
struct HaltFirmware {  // mailbox CMD 2
  OpId op;
};
// GART entries for the four remote pages of each peer (Layout::remote_pages). off: unmap them.
struct MapPeers {
  OpId op;
  std::vector<AccelId> peers;
  bool enable = false;
};

// Something that happened by itself, for logs, metrics and clients' event rings.
enum class Notice : std::uint8_t {
  kPeerUp,       // connection established; `generation` is the new one
  kPeerDown,     // connection reset or lost; `reason` says why
  kExportGone,   // the export ended without a revoke() of the caller (accelerator id changed)
  kQuarantined,  // an NPA range waits for `peer` to come back with a new generation
  kNoShootdown,  // the peer does not answer opcode 1; REVOKE/RELEASE is used instead (U48)
  kStateChanged,
};
struct Report {
  Notice notice = Notice::kStateChanged;
  AccelId peer;
  Generation generation = 0;
  Handle handle;
  Errc reason = Errc::kPeerLost;
};

using Action =
    std::variant<PostStores, ReadRemote, UpdateNpa, PinBuffer, UnpinBuffer, DetachImport, Complete,
                 SetNpaAccess, SetNpaVm, ClearRings, LoadMetadata, HaltFirmware, MapPeers, Report>;

}  // namespace fabric
