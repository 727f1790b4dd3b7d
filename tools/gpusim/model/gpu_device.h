// A GPU as its host sees it: what the vfio-user server (tools/gpusim/server) and the pod
// (tools/gpusim/host) need of a model. gpu.h implements it; tests put a fake behind it.
//
// Threads: everything is called on the one thread that steps the pod. No call may block, except
// step(), which may wait inside HostBus::read() and write() up to the deadline of that bus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "tools/gpusim/model/host_bus.h"
#include "tools/gpusim/model/ports.h"

namespace gpusim {

// docs/hardware/pci.md, D55.
struct PciIdentity {
  std::uint16_t vendor = 0x1002;
  std::uint16_t device = 0x75F0;
  std::uint16_t subsystem_vendor = 0x1002;
  std::uint16_t subsystem = 0x0001;
  std::uint32_t class_code = 0x120000;  // 24 bits
  std::uint8_t revision = 0;
};

enum class Bar : std::uint8_t { kVram = 0, kDoorbells = 2, kRegisters = 5 };

// Where the MSI-X structures lie in BAR 5 (D30): byte offsets, which follow from the base of NBIO's
// segment 3 in the discovery table. 16 bytes a vector, and one 64-bit word of pending bits. The
// server keeps these words itself and never passes an access to them on.
struct MsixLayout {
  unsigned vectors = 9;  // 0: no MSI-X
  std::uint32_t table_offset = 0;
  std::uint32_t pba_offset = 0;
};

// What a function may have or lack (docs/model.md, options `interrupts` and `flr`).
struct PciFeatures {
  bool intx = false;           // an INTx pin
  bool function_reset = true;  // FLR, and DEVICE_RESET with it
  bool deaf_reset = false;     // it says that it has reset itself, and has not
};

// A part of a BAR that a client may map.
struct MappableArea {
  std::uint64_t offset = 0;  // in the BAR; offset and size are multiples of 4 KiB
  std::uint64_t size = 0;
};

// The memory that backs the mappable parts of one BAR. Byte x of the BAR is byte x of `fd`, so the
// memfd has the size of the BAR (untouched pages cost nothing) whatever part of it is offered:
// vfio-user has one descriptor a region. The device owns `fd`, sealed with base::kSizeSeals, for
// its whole life. No areas: `fd` may be -1 and all accesses come trapped.
struct BarMemory {
  int fd = -1;
  std::vector<MappableArea> areas;
};

class GpuDevice : public Steppable {
 public:
  virtual PciIdentity identity() const = 0;
  virtual std::uint64_t bar_size(Bar bar) const = 0;  // a power of two; BAR 5 below 2 GiB
  virtual BarMemory bar_memory(Bar bar) const = 0;
  virtual MsixLayout msix() const = 0;
  virtual PciFeatures features() const { return {}; }

  // A client came: `bus` is valid until detach(). Memory and interrupts of the host are reached
  // through it only, and only from inside step(): never from the calls below, during which a client
  // waits for a reply and serves no DMA_READ (docs/model.md).
  virtual void attach(HostBus& bus) = 0;
  // The client is gone: DMA mappings and interrupt descriptors with it. The device keeps its state
  // (D56); an engine that needs the host's memory from now on gets a bus error.
  virtual void detach() = 0;

  // DEVICE_RESET or a function-level reset (D56). The client stays attached.
  virtual void reset() = 0;

  // A trapped access to BAR 5: `offset` is a multiple of 4 below bar_size(kRegisters), outside the
  // MSI-X table and PBA. The server has split wider accesses and refused narrower writes (D64). For
  // an offset in a mappable page this is the same as a load or store of the mapping.
  virtual std::uint32_t read_register(std::uint64_t offset) = 0;
  virtual void write_register(std::uint64_t offset, std::uint32_t value) = 0;

  // A trapped doorbell: `width` 4 or 8, `offset` a multiple of it (D64). Applied at once, in the
  // order of the calls (D29: a 32-bit write to a 64-bit consumer is its low half). A later look()
  // does not see it again.
  virtual void ring_doorbell(std::uint64_t offset, std::uint64_t value, unsigned width) = 0;

  // A trapped access to BAR 0, any offset and size inside it: the same bytes as the mapping, with
  // the same visibility to the engines (hdp=strict).
  virtual void read_vram_bar(std::uint64_t offset, std::span<std::byte> to) = 0;
  virtual void write_vram_bar(std::uint64_t offset, std::span<const std::byte> from) = 0;

  // Surprise removal, as a scenario asked for it: configuration space reads all ones too, and
  // nothing of the host can be reached.
  virtual bool gone() const { return false; }

  // Takes stores that a client made into mapped doorbell and register pages since the last look:
  // doorbells by comparing with the value seen last. True when there were any. The server calls it
  // before every message it serves, before every step(), and once more after it has published that
  // it sleeps. Cheap: one pass over the offered pages that are watched, no system call.
  virtual bool look() = 0;
  // Whether look() may find something; cheaper still.
  virtual bool stored() const { return true; }

  // From now on a step moves at most about this much data: for a model on a thread that has other
  // work, where memory that nobody has touched yet costs most (docs/model.md).
  virtual void limit_step(std::size_t bytes) { (void)bytes; }

  // From Steppable. step(): one bounded piece of work of any block; false: nothing to do now.
  // waiting(): nothing to do now, but something becomes due by time alone.
};

}  // namespace gpusim
