// One GFXHUB with two SDMA instances and one MMHUB with LSDMA, over real VRAM, with fakes round
// them. Page tables are written here by hand, with constants of their own.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tools/gpusim/model/block_context.h"
#include "tools/gpusim/model/lsdma.h"
#include "tools/gpusim/model/sdma.h"
#include "tools/gpusim/model/vm_hub.h"
#include "tools/gpusim/model/vram.h"

namespace gpusim::test {

using namespace std::chrono_literals;

class ManualClock : public ModelClock {
 public:
  ModelTime now() const override { return now_; }
  void advance(ModelTime by) { now_ += by; }

 private:
  ModelTime now_{};
};

class FakeInterrupts : public InterruptSink {
 public:
  struct RetryFault {
    unsigned hub;
    std::uint64_t page;
    Iv iv;
  };
  bool raise(const Iv& iv) override {
    ivs.push_back(iv);
    return true;
  }
  void raise_retry_fault(unsigned hub, std::uint64_t page, const Iv& iv) override {
    retries.push_back({hub, page, iv});
  }
  std::uint16_t pasid(bool mmhub, std::uint8_t vmid) const override {
    if (mmhub) return static_cast<std::uint16_t>(0x900 + vmid);
    const auto at = pasids.find(vmid);
    return at == pasids.end() ? static_cast<std::uint16_t>(0x100 + vmid) : at->second;
  }
  std::vector<Iv> of(std::uint8_t client, std::uint8_t source) const;

  std::vector<Iv> ivs;
  std::vector<RetryFault> retries;
  std::map<std::uint8_t, std::uint16_t> pasids;
};

// Host memory behind IOVAs.
class FakeBus : public HostBus {
 public:
  std::byte* map(std::uint64_t iova, std::size_t bytes, bool writeable = true,
                 bool with_descriptor = true);
  void unmap(std::uint64_t iova) { maps_.erase(iova); }

  std::byte* direct(base::Iova at, std::size_t size, bool write) override;
  bool read(base::Iova at, std::span<std::byte> to) override;
  bool write(base::Iova at, std::span<const std::byte> from) override;
  void raise_interrupt(unsigned) override {}
  void lower_line() override {}

  unsigned messages = 0;  // accesses that were put to the client

 private:
  struct Map {
    std::vector<std::byte> memory;
    bool writeable;
    bool with_descriptor;
  };
  Map* find(std::uint64_t at, std::size_t size, std::uint64_t& offset);
  std::map<std::uint64_t, Map> maps_;
};

// The other end of the fabric: plain memory that answers as told.
class FakeFabric : public FabricPort {
 public:
  Outcome access(RemoteAccess& access) override;
  std::span<const std::byte> source(std::uint64_t, std::uint64_t) override { return {}; }
  std::span<std::byte> target(std::uint64_t npa, std::uint64_t bytes) override {
    const std::uint64_t offset = npa & ((1ull << 41) - 1);
    if (offset >= bulk) return {};
    return std::span(memory).subspan(offset, std::min(bytes, bulk - offset));
  }
  void stored(std::uint64_t, std::uint64_t) override {}

  Outcome answer = Outcome::kOk;
  std::uint64_t bulk = 0;      // target() gives the memory below this offset
  unsigned retries_first = 0;  // this many accesses are answered "retry" before `answer`
  std::vector<std::byte> memory = std::vector<std::byte>(4 << 20);  // at offset 0 of any target
  struct Seen {
    RemoteAccess::Kind kind;
    std::uint64_t npa;
    std::uint64_t bytes;
  };
  std::vector<Seen> seen;
};

// Bits of entries, spelled out once more: the tests are a third reading.
inline constexpr std::uint64_t kV = 1, kS = 2, kC = 4, kX = 16, kR = 32, kW = 64;
inline constexpr std::uint64_t kT = 1ull << 56, kB = 1ull << 59, kP = 1ull << 63;
inline constexpr std::uint64_t kRw = kR | kW;
constexpr std::uint64_t fragment(std::uint64_t f) { return f << 7; }
inline constexpr std::uint64_t kFinal = kS | kC;
inline constexpr std::uint64_t kNpa = kC | kT | kP | kB;

struct BenchOptions {
  PoisonMode poison = PoisonMode::kCount;
  bool hdp_strict = false;
  SdmaStall stall = SdmaStall::kQueue;
  std::size_t step_bytes = 1 << 20;
};

class Bench {
 public:
  static constexpr std::uint64_t kVram = 64ull << 20;
  static constexpr std::uint64_t kFbBase = 0x80'0000'0000;
  static constexpr std::uint32_t kFbOffset = 0x1100;
  static constexpr std::uint64_t kPhysical = std::uint64_t{kFbOffset} << 24;
  static constexpr std::uint32_t kGc0 = 0x1260, kGc1 = 0xA000, kMm = 0x19800, kLsdma = 0x11400;
  static constexpr std::uint64_t kLastPage = (1ull << 45) - 1;

  explicit Bench(const BenchOptions& options = {});

  // --- registers ---
  void write(std::uint32_t dword, std::uint32_t value) { registers.write(dword, value); }
  std::uint32_t read(std::uint32_t dword) { return registers.read(dword); }
  // A row of the MMHUB's table, as absolute dword of either hub.
  static std::uint32_t row(bool mmhub, std::uint32_t offset) {
    if (mmhub) return kMm + offset;
    return kGc0 + offset + (offset < 0x100 ? 0x15A0 : 0x1524);
  }
  void write_pair(std::uint32_t dword, std::uint64_t value) {
    write(dword, static_cast<std::uint32_t>(value));
    write(dword + 1, static_cast<std::uint32_t>(value >> 32));
  }

  // --- contexts ---
  static constexpr std::uint32_t kInterruptBits = 0x0055'5400;  // 10, 12, ... 22
  // Five levels with a fresh root. `control`: further bits of CONTEXTn_CNTL.
  void enable_context(bool mmhub, unsigned vmid, std::uint32_t control = kInterruptBits);
  void enable_vmid0();  // the frame buffer aperture on both hubs, GART closed
  // Writes `entry` where the walk of `va` finds it at `level`, making directories on the way.
  void set(bool mmhub, unsigned vmid, std::uint64_t va, std::uint64_t entry, unsigned level = 0);
  // VRAM offset of that entry.
  std::uint64_t entry_at(bool mmhub, unsigned vmid, std::uint64_t va, unsigned level = 0);
  static std::uint64_t vram_page(std::uint64_t offset) {
    return (kPhysical + offset) | kV | kP | kRw;
  }
  static std::uint64_t system_page(std::uint64_t iova) { return iova | kV | kS | kC | kP | kRw; }
  void set_word(std::uint64_t vram_offset, std::uint64_t value);
  std::uint64_t get_word(std::uint64_t vram_offset);
  std::uint64_t allocate_page();

  // REQ with all levels on engine 17; with the semaphore on the MMHUB.
  void flush(bool mmhub, unsigned vmid, unsigned type = 0, std::uint32_t levels = 0x08F8'0000);
  bool acknowledged(bool mmhub, unsigned vmid) {
    return (read(row(mmhub, 0x145 + 17)) >> vmid & 1) != 0;
  }
  std::uint32_t status(bool mmhub) { return read(row(mmhub, 0x031)); }

  // --- accesses ---
  static Requester who(unsigned vmid) {
    return {"test", static_cast<std::uint8_t>(vmid), 0x0A, 0x0A};
  }
  Outcome load(bool mmhub, unsigned vmid, std::uint64_t va, std::uint64_t& value);
  Outcome store(bool mmhub, unsigned vmid, std::uint64_t va, std::uint64_t value);

  ManualClock clock;
  RegisterFile registers;
  FakeInterrupts interrupts;
  FakeBus bus;
  FakeFabric fabric;
  AccessLog log;
  ScenarioHooks hooks;
  BlockContext context;
  std::unique_ptr<Vram> vram;
  std::unique_ptr<VmHub> gfx, mm;
  std::unique_ptr<SdmaEngine> sdma0, sdma1;
  std::unique_ptr<Lsdma> lsdma;

 private:
  VmHub& hub(bool mmhub) { return mmhub ? *mm : *gfx; }
  std::uint64_t next_page_ = 32ull << 20;
  std::map<std::pair<bool, unsigned>, std::uint64_t> roots_;
};

// A queue of an SDMA instance as a driver sets it up, and packets for it.
class Ring {
 public:
  struct Options {
    unsigned instance = 0;
    unsigned queue = 0;
    unsigned vmid = 0;
    bool privileged = true;
    std::uint64_t va = 0;  // 0: fresh VRAM pages, in the frame buffer aperture
    unsigned log2_dwords = 10;
  };
  Ring(Bench& bench, const Options& options);
  explicit Ring(Bench& bench) : Ring(bench, Options{}) {}

  Ring& push(std::initializer_list<std::uint32_t> dwords);
  Ring& copy(std::uint64_t from, std::uint64_t to, std::uint64_t bytes);
  Ring& fill(std::uint64_t to, std::uint32_t value, std::uint64_t bytes);
  Ring& fence(std::uint64_t at, std::uint32_t value);
  Ring& trap(std::uint32_t context);
  // NOPs up to the place where an INDIRECT may stand, then the INDIRECT.
  Ring& indirect(unsigned vmid, std::uint64_t at, std::uint32_t dwords);
  // Rings the doorbell.
  Ring& submit();
  // Steps the engine until it does nothing more; `limit` keeps a broken model from hanging a test.
  void run(unsigned limit = 1000);
  bool step();

  std::uint64_t rptr() const;
  std::uint64_t wptr() const { return wptr_; }
  bool empty() const { return rptr() == wptr_; }
  std::uint32_t reg(std::uint32_t offset) const;  // absolute dword of a queue register
  SdmaEngine& engine() const;
  void enable();

 private:
  Bench& bench_;
  Options options_;
  std::uint64_t memory_ = 0;  // VRAM offset
  std::uint64_t wptr_ = 0;
};

constexpr std::uint32_t lo(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
constexpr std::uint32_t hi(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }

}  // namespace gpusim::test
