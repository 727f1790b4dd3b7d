// Routing of doorbell stores (BAR 2) to their consumers (docs/hardware/pci.md, D29).
#pragma once

#include <array>
#include <cstdint>

namespace gpusim {

// A block that doorbells wake. Thread: the model's.
class DoorbellConsumer {
 public:
  virtual ~DoorbellConsumer() = default;
  // A store to doorbell `dword` (its index in BAR 2 counted in dwords). `wide`: a 64-bit store;
  // else only the low half of a 64-bit doorbell changes. True when one of the consumer's own,
  // enabled doorbells lies there; false leaves it to others, and in the end to the drop counter.
  virtual bool doorbell(std::uint32_t dword, std::uint64_t value, bool wide) = 0;
};

// AXI ids of the consumers as the S2A entries name them.
enum class DoorbellTarget : std::uint8_t { kInterrupts = 0, kGraphics = 3, kSdma = 0xE };

// What the router has to know of the NBIO registers.
struct S2aEntry {
  bool enabled = false;
  std::uint8_t target = 0;  // AXI id
  std::uint32_t first_dword = 0;
  std::uint32_t dwords = 0;  // 0: all doorbells
  bool no_64bit = false;
  bool drop = false;
};

class DoorbellGate {
 public:
  virtual ~DoorbellGate() = default;
  virtual bool doorbell_aperture_enabled() const = 0;  // RCC_DOORBELL_APER_EN bit 0
  virtual std::uint32_t doorbell_access() const = 0;   // DOORBELL_ACCESS_EN_PF
  static constexpr unsigned kEntries = 16;
  virtual S2aEntry s2a_entry(unsigned index) const = 0;
};

class DoorbellRouter {
 public:
  explicit DoorbellRouter(const DoorbellGate& gate) : gate_(gate) {}

  void connect(DoorbellTarget target, DoorbellConsumer& consumer);

  // A store of 4 or 8 bytes at byte `offset` of BAR 2, naturally aligned (the caller's duty).
  void store(std::uint64_t offset, std::uint64_t value, unsigned bytes);

  struct Counters {
    std::uint64_t delivered = 0;
    std::uint64_t dropped_aperture = 0;  // RCC_DOORBELL_APER_EN is 0
    std::uint64_t dropped_access = 0;    // the target's bit in DOORBELL_ACCESS_EN_PF is 0
    std::uint64_t dropped_no_entry = 0;  // no enabled S2A entry of a consumer covers it
    std::uint64_t dropped_by_entry = 0;  // the entry says drop, or refuses 64 bits
    std::uint64_t dropped_consumer = 0;  // no consumer has an enabled doorbell there
    std::uint64_t dropped() const {
      return dropped_aperture + dropped_access + dropped_no_entry + dropped_by_entry +
             dropped_consumer;
    }
  };
  const Counters& counters() const { return counters_; }

 private:
  const DoorbellGate& gate_;
  std::array<DoorbellConsumer*, 32> consumers_{};
  Counters counters_;
};

}  // namespace gpusim
