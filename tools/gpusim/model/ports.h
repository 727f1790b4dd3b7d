// The seams between the blocks of one GPU. Each block is written against these interfaces; gpu.h
// puts them together, tests put fakes behind them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tools/gpusim/model/options.h"
#include "tools/gpusim/model/types.h"

namespace gpusim {

// Where interrupt vectors go: the interrupt handler block (docs/hardware/ih.md).
class InterruptSink {
 public:
  virtual ~InterruptSink() = default;
  // Queues an IV for ring 0 (or ring 1, by its routing). False when it cannot be raised at all
  // because the handler is off.
  virtual bool raise(const Iv& iv) = 0;
  // A retryable fault on `page` (VA >> 12) of a hub: goes through the retry CAM, which raises one
  // IV a live entry and fills in src_data[3] (D15, D16). Called again at each retry of the access.
  virtual void raise_retry_fault(unsigned hub, std::uint64_t page, const Iv& iv) = 0;
  // PASID of a VMID, from the LUT of GFXHUBs or of MMHUBs.
  virtual std::uint16_t pasid(bool mmhub, std::uint8_t vmid) const = 0;
};

// A hub as the blocks behind it see memory: virtual addresses of a VMID (docs/hardware/vmhub.md).
// One call is one access; it may cross pages. Anything but kOk: nothing, or a first part, was done.
class AddressSpace {
 public:
  virtual ~AddressSpace() = default;
  virtual Outcome read(const Requester& who, std::uint64_t va, std::span<std::byte> to) = 0;
  virtual Outcome write(const Requester& who, std::uint64_t va,
                        std::span<const std::byte> from) = 0;
  // `result` gets the old value.
  virtual Outcome atomic(const Requester& who, std::uint64_t va, AtomicOp op, std::uint64_t operand,
                         std::uint64_t compare, std::uint64_t& result) = 0;
};

// One access that goes over the fabric. `npa` is the byte address as the requester's entry gave it,
// the target's accelerator id in bits 50:41 (doorbells: bits 51:40 all ones, id in 39:30).
struct RemoteAccess {
  enum class Kind : std::uint8_t { kRead, kWrite, kAtomic } kind = Kind::kRead;
  std::uint16_t sender = 0;  // accelerator id of the requester, set by the fabric and not forgeable
  std::uint64_t npa = 0;
  std::span<std::byte> read_to;
  std::span<const std::byte> write_from;
  AtomicOp op = AtomicOp::kAdd32;
  std::uint64_t operand = 0;
  std::uint64_t compare = 0;
  std::uint64_t result = 0;
};

// The switch, as one accelerator sees it.
class FabricPort {
 public:
  virtual ~FabricPort() = default;
  // kOk, kRetry (the exporter's X bit, D47), kRefused or kPeerLost.
  virtual Outcome access(RemoteAccess& access) = 0;

  // The same in bulk: memory at `npa`, at most `bytes` of it, as far as it lies in one piece. Empty
  // when it has to be moved by access(), which then also says why it fails. Valid until the next
  // call on any hub or port. What was stored into a target must be told by stored().
  virtual std::span<const std::byte> source(std::uint64_t npa, std::uint64_t bytes) = 0;
  virtual std::span<std::byte> target(std::uint64_t npa, std::uint64_t bytes) = 0;
  virtual void stored(std::uint64_t npa, std::uint64_t bytes) = 0;
};

// An accelerator as the switch sees it.
class FabricTarget {
 public:
  virtual ~FabricTarget() = default;
  virtual const PodConfig& pod_config() const = 0;  // its id, and with whom it may talk
  virtual bool link_up() const = 0;
  // Translates through VMID 15 of MMHUB 0 and does the access, or rings a doorbell of the nHT
  // block.
  virtual Outcome incoming(RemoteAccess& access) = 0;
  // As of FabricPort; they raise no fault.
  virtual std::span<const std::byte> incoming_source(std::uint16_t sender, std::uint64_t npa,
                                                     std::uint64_t bytes) = 0;
  virtual std::span<std::byte> incoming_target(std::uint16_t sender, std::uint64_t npa,
                                               std::uint64_t bytes) = 0;
  virtual void incoming_stored(std::uint16_t sender, std::uint64_t npa, std::uint64_t bytes) = 0;
};

// A block that does bounded work when asked (the pure steps of docs/model.md).
class Steppable {
 public:
  virtual ~Steppable() = default;
  // Does at most a bounded piece. True when it did something; false when there is nothing to do
  // now.
  virtual bool step() = 0;
  // Whether it has work that waits only for time (a retry, a deadline): the host must not sleep
  // long.
  virtual bool waiting() const = 0;
};

}  // namespace gpusim
