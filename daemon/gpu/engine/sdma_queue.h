// One hardware queue of an SDMA instance: its ring, its pointers, its doorbell
// (docs/hardware/sdma.md, "Registers of an SDMA instance"). Device thread.
#pragma once

#include <cstdint>
#include <span>

#include "base/result.h"
#include "daemon/gpu/engine/engine_memory.h"
#include "daemon/gpu/registers/sdma.h"
#include "vfio/pci_device.h"

namespace gpuumd {

class SdmaQueue {
 public:
  static constexpr std::size_t kPointerBytes = 64;    // read pointer at 0, write pointer at 8
  static constexpr std::uint32_t kSubmitDwords = 16;  // a submission is padded to this

  struct Place {
    RegisterBlock registers;  // of the instance
    unsigned queue = 0;       // 0..9
    vfio::Bar* doorbells = nullptr;
    std::uint32_t doorbell = 0;  // dword index in the doorbell BAR, even
    EngineMemory ring;           // a power of two, at least 1 KiB, 256-byte aligned
    EngineMemory pointers;       // kPointerBytes
  };

  explicit SdmaQueue(Place place) : place_(place) {}

  // Programs and enables the queue, empty: after bring-up and after a reset of its engine or of
  // itself. Privileged, in VMID 0.
  void program();
  void disable();

  // Free dwords; a submission of up to space() dwords, padding included, succeeds.
  std::uint64_t space() const;
  // Dword count that the next submission starts at, for the alignment of INDIRECT.
  std::uint64_t write_dwords() const { return wptr_ / 4; }

  // Copies the packets into the ring, pads them, and rings the doorbell. kAgain without effect when
  // the ring has no room.
  base::Result<void> submit(std::span<const std::uint32_t> packets);

  // Bytes that the engine has consumed, from write-back memory. What the device wrote there is
  // believed only within what was submitted; otherwise the last good value counts.
  std::uint64_t consumed() const;
  // A fence has told that the engine is past this byte count: the read pointer is written back
  // now and then only, at the latest when the queue is empty (docs/hardware/choices.md D32).
  void passed(std::uint64_t bytes) {
    if (bytes > rptr_ && bytes <= wptr_) rptr_ = bytes;
  }
  bool empty() const { return consumed() == wptr_; }
  unsigned index() const { return place_.queue; }

 private:
  Place place_;
  std::uint64_t wptr_ = 0;  // bytes, free-running
  mutable std::uint64_t rptr_ = 0;
};

}  // namespace gpuumd
