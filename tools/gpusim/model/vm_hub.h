// One VM hub: the page-table roots of 16 VMIDs, the walk, the translation cache, invalidation and
// faults (docs/hardware/gpuvm.md, vmhub.md). A GFXHUB serves the SDMA engines of its XCC; an MMHUB
// serves LSDMA, the nHT firmware, the security processor, the interrupt handler, and what comes in
// over the fabric (VMID 15).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "tools/gpusim/model/block_context.h"
#include "tools/gpusim/model/vram.h"

namespace gpusim {

struct VmHubConfig {
  bool mmhub = false;
  unsigned index = 0;           // hub number: GFXHUB 0-7, MMHUB 8-12
  std::uint8_t node_id = 0;     // as its interrupt vectors carry it (D20)
  std::uint32_t base = 0;       // absolute dword of GC segment 0, or of MMHUB segment 2
  std::uint64_t fb_base = 0;    // FB_LOCATION_BASE, bytes, a multiple of 16 MiB (D8)
  std::uint32_t fb_offset = 0;  // FB_OFFSET, in 16 MiB (D8)
};

enum class AddressMode : std::uint8_t { kAlias, kIdent };  // docs/hardware/ualink.md U24

// A contiguous piece of what an access reaches.
struct Run {
  enum class Kind : std::uint8_t {
    kVram,     // address: VRAM offset
    kSystem,   // address: IOVA
    kRemote,   // address: NPA
    kZero,     // sparse (PRT): reads 0, writes dropped
    kDefault,  // a final fault sent to the default page: reads its bytes, writes dropped (D14)
  };
  Kind kind = Kind::kVram;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  std::uint16_t poison_reader = 0;  // not 0: a read by this PASID has to look for poison
};

enum class AccessType : std::uint8_t { kRead, kWrite, kAtomic };

// How the last access that did not end kOk failed, for the engine's own interrupt.
struct AccessError {
  std::uint64_t iova = 0;       // kBusError
  std::uint64_t npa = 0;        // kRefused, kPeerLost, kRetry of the exporter
  bool remote_or_prt = false;   // the entry was NPA or PRT: LSDMA's other nack bits
  bool exporter_retry = false;  // kRetry came from the exporter's X bit (D47), not from a fault
};

struct HubCounters {
  std::uint64_t walks = 0;
  std::uint64_t hits = 0;
  std::uint64_t faults = 0;   // final
  std::uint64_t retries = 0;  // accesses put off by a retryable fault
  std::uint64_t bus_errors = 0;
  std::uint64_t light_flushes = 0;  // types 0 and 1
  std::uint64_t heavy_flushes = 0;
  std::uint64_t flushes_without_semaphore = 0;  // MMHUB; a protocol error of the driver (D24)
  std::uint64_t bus_reads = 0, bus_writes = 0, remote_reads = 0, remote_writes = 0;  // bytes
};

// Model thread only.
class VmHub : public AddressSpace {
 public:
  // Defines the hub's registers in `context.registers`; all references outlive the hub.
  VmHub(const VmHubConfig& config, const BlockContext& context, Vram& vram);
  ~VmHub() override;
  VmHub(const VmHub&) = delete;
  VmHub& operator=(const VmHub&) = delete;

  Outcome read(const Requester& who, std::uint64_t va, std::span<std::byte> to) override;
  Outcome write(const Requester& who, std::uint64_t va, std::span<const std::byte> from) override;
  Outcome atomic(const Requester& who, std::uint64_t va, AtomicOp op, std::uint64_t operand,
                 std::uint64_t compare, std::uint64_t& result) override;

  // An access from another accelerator, as its sender gave it: the id in bits 50:41 is replaced
  // (D38), VMID 15 translates. `enabled`: the security processor opened incoming NPA (D54).
  // kOk, kRetry (X = 1), kRefused (with a fault IV here when the translation failed), kBusError as
  // kRefused. Not for doorbells.
  Outcome incoming(RemoteAccess& access, AddressMode mode, bool enabled);
  // The same in bulk, as FabricPort has it: memory behind `npa`, empty when incoming() has to do
  // it. Raises no fault and counts as no access until stored() or the requester's own count.
  std::span<const std::byte> incoming_source(std::uint16_t sender, std::uint64_t npa,
                                             std::uint64_t bytes, AddressMode mode);
  std::span<std::byte> incoming_target(std::uint16_t sender, std::uint64_t npa, std::uint64_t bytes,
                                       AddressMode mode);
  void incoming_stored(std::uint16_t sender, std::uint64_t npa, std::uint64_t bytes,
                       AddressMode mode);

  // --- for engines that keep several accesses in flight ---

  // Where `va` leads, for up to `bytes`; raises faults as an access would.
  Outcome translate(const Requester& who, std::uint64_t va, std::uint64_t bytes, AccessType type,
                    Run& run);
  // The same ahead of the access: raises nothing, and is false where translate() would raise a
  // fault or lead to no memory.
  bool ahead(const Requester& who, std::uint64_t va, std::uint64_t bytes, AccessType type,
             Run& run);
  // As translate() for a physical VRAM address or an IOVA (`system`), without translation. kFault
  // outside VRAM.
  Outcome physical(std::uint64_t address, std::uint64_t bytes, bool system, Run& run) const;
  // Moves the bytes of a run. kBusError, kRetry, kRefused or kPeerLost as the target answers.
  Outcome read_run(const Requester& who, const Run& run, std::span<std::byte> to);
  Outcome write_run(const Requester& who, const Run& run, std::span<const std::byte> from);
  // Memory behind the start of a run, maybe less than the run; empty when it must be moved by
  // read_run or write_run. Valid until the next call on any hub that reads or translates. What was
  // stored into a target must be told by stored().
  std::span<const std::byte> source(const Requester& who, const Run& run);
  std::span<std::byte> target(const Run& run);
  void stored(const Requester& who, const Run& run, std::uint64_t bytes);

  static constexpr std::uint16_t kNoAccel = 0xFFFF;
  // An access translated earlier and not done yet: a heavy flush of its VMID (and a heavy shootdown
  // of its accelerator) that comes after begin() is acknowledged after end().
  struct Ticket {
    std::uint8_t vmid = 0;
    std::uint64_t epoch = 0;
    std::uint16_t accel = kNoAccel;
    std::uint64_t accel_epoch = 0;
  };
  Ticket begin(std::uint8_t vmid, const Run& run);
  void end(const Ticket& ticket);

  const AccessError& last_error() const;

  // --- for the nHT firmware ---

  // Drops every translation, in all VMIDs, that ends in NPA of `accel` (D45). Returns a mark for
  // remote_done(): true once the accesses to `accel` begun before are done.
  std::uint64_t flush_npa(std::uint16_t accel);
  bool remote_done(std::uint16_t accel, std::uint64_t mark) const;

  // --- the rest of the model ---

  // DEVICE_RESET: forgets translations, semaphores and pending flushes. Registers are reset by the
  // RegisterFile.
  void reset();
  const HubCounters& counters() const;
  std::size_t cached(std::uint8_t vmid) const;  // leaf translations held, for tests
  bool mmhub() const;
  unsigned index() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpusim
