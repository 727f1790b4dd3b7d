// One SDMA instance over plain memory: takes its queues' settings from fake registers, reads rings
// and indirect buffers, and does what the packets say when the test lets it. Offsets and packet
// fields are spelled out once more here (docs/hardware/sdma.md). Its read pointer is written back
// only when a queue is empty, which is the latest that the contract allows.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <functional>
#include <list>
#include <optional>
#include <vector>

#include "base/address.h"
#include "tests/fake/fake_pci_device.h"
#include "tests/fake/fake_register_io.h"

namespace fake {

// Memory by VMID and address. Every piece has an address of its own in every VMID.
class GpuMemory {
 public:
  struct Piece {
    std::byte* cpu;
    std::uint64_t at;
    std::size_t bytes;
    std::uint64_t& word(std::size_t offset = 0) const {
      return *reinterpret_cast<std::uint64_t*>(cpu + offset);
    }
    std::uint32_t& half(std::size_t offset = 0) const {
      return *reinterpret_cast<std::uint32_t*>(cpu + offset);
    }
  };

  Piece allocate(unsigned vmid, std::size_t bytes) {
    auto& area = areas_.emplace_back(vmid, next_, std::vector<std::uint64_t>((bytes + 7) / 8));
    next_ += base::align_up(bytes, base::kPageSize) + base::kPageSize;
    return {reinterpret_cast<std::byte*>(area.words.data()), area.at, bytes};
  }
  // The bytes that `vmid` sees at `at`; null when any of them is not there.
  std::byte* find(unsigned vmid, std::uint64_t at, std::uint64_t bytes) {
    for (auto& area : areas_)
      if (area.vmid == vmid && at >= area.at &&
          base::fits(at - area.at, bytes, area.words.size() * 8))
        return reinterpret_cast<std::byte*>(area.words.data()) + (at - area.at);
    return nullptr;
  }

 private:
  struct Area {
    unsigned vmid;
    std::uint64_t at;
    std::vector<std::uint64_t> words;
  };
  std::list<Area> areas_;
  std::uint64_t next_ = 0x7'0000'0000;
};

class SdmaEngine {
 public:
  static constexpr unsigned kQueues = 10;
  static constexpr std::uint32_t kGc0 = 0x1260, kGc1 = 0xA000;

  // Registers of instance 0 at kGc0 and kGc1 of `io`; `doorbells` are listened to.
  SdmaEngine(FakeRegisterIo& io, FakeBar& doorbells, GpuMemory& memory) : io_(io), memory_(memory) {
    io_.on_write[kGc0 + 0x06C] = [this](std::uint32_t mask) {
      for (unsigned q = 0; q < kQueues; ++q)
        if ((mask >> q & 1) != 0 && !deaf[q]) reset_queue(q);
      std::uint32_t left = 0;
      for (unsigned q = 0; q < kQueues; ++q) left |= deaf[q] ? mask & 1u << q : 0;
      io_.values[kGc0 + 0x06C] = left;
      ++queue_resets;
    };
    io_.on_write[kGc1 + 0x588E] = [this](std::uint32_t value) {
      if ((value & 2) == 0) return;
      for (unsigned q = 0; q < kQueues; ++q) {
        reset_queue(q);
        hung[q] = deaf[q] = false;
      }
      io_.values[kGc0 + 0x06C] = 0;
      ++instance_resets;
    };
    for (unsigned q = 0; q < kQueues; ++q)
      io_.on_write[reg(q, 0x200)] = [this, q](std::uint32_t value) {
        if ((value & 1) == 0) return;
        queues_[q] = {};
        queues_[q].rptr = pair(q, 0x203);
        queues_[q].wptr = pair(q, 0x205);
      };
    doorbells.state().on_doorbell = [this](std::uint64_t offset, std::uint64_t value) {
      for (unsigned q = 0; q < kQueues; ++q)
        if ((get(q, 0x20F) >> 28 & 1) != 0 && get(q, 0x211) == offset) queues_[q].wptr = value;
    };
  }

  // Does up to `limit` packets of the ring of one queue; an INDIRECT counts as one with all that it
  // leads to. Returns how many.
  unsigned run(unsigned q, unsigned limit = ~0u) {
    unsigned done = 0;
    auto& queue = queues_[q];
    while (done < limit && can_run(q) && queue.rptr < queue.wptr) {
      const auto dwords = ring_packet(q);
      if (dwords == 0) {
        queue.stopped = true;
        break;
      }
      queue.rptr += dwords * 4;
      ++done;
    }
    if (queue.rptr == queue.wptr) write_back(q);
    return done;
  }
  // Everything that is there.
  unsigned run_all() {
    unsigned done = 0;
    for (unsigned q = 0; q < kQueues; ++q) done += run(q);
    return done;
  }
  bool pending(unsigned q) const { return queues_[q].rptr < queues_[q].wptr; }
  bool enabled(unsigned q) { return (get(q, 0x200) & 1) != 0; }
  bool stopped(unsigned q) const { return queues_[q].stopped; }

  std::array<bool, kQueues> hung{};  // stands still
  std::array<bool, kQueues> deaf{};  // and does not answer QUEUE_RESET_REQ
  unsigned queue_resets = 0;
  unsigned instance_resets = 0;
  struct Trap {
    unsigned queue;
    std::uint32_t context;
  };
  std::vector<Trap> traps;
  struct Indirect {
    unsigned queue;
    unsigned vmid;
    std::uint64_t at;
    std::uint32_t dwords;
  };
  std::vector<Indirect> indirects;
  std::function<void(const Indirect&)> on_indirect;

 private:
  struct Queue {
    std::uint64_t rptr = 0;
    std::uint64_t wptr = 0;
    bool stopped = false;
  };

  std::uint32_t reg(unsigned q, std::uint32_t offset) const { return kGc0 + offset + q * 0x3C; }
  std::uint32_t get(unsigned q, std::uint32_t offset) { return io_.values[reg(q, offset)]; }
  std::uint64_t pair(unsigned q, std::uint32_t offset) {
    return get(q, offset) | std::uint64_t{get(q, offset + 1)} << 32;
  }
  bool can_run(unsigned q) {
    return enabled(q) && !hung[q] && !queues_[q].stopped && (io_.values[kGc1 + 0x588E] & 3) == 0;
  }
  void reset_queue(unsigned q) {
    io_.values[reg(q, 0x200)] &= ~1u;
    queues_[q] = {};
  }
  void write_back(unsigned q) {
    if ((get(q, 0x200) >> 12 & 1) == 0) return;
    if (auto* at = memory_.find(0, pair(q, 0x207), 8))
      std::memcpy(at, &queues_[q].rptr, 8);
    else
      queues_[q].stopped = true;
  }

  // Dwords of the packet at the read pointer, done; 0 when it is none that this engine can do.
  std::uint64_t ring_packet(unsigned q) {
    const auto& queue = queues_[q];
    const std::uint64_t size = std::uint64_t{4} << (get(q, 0x200) >> 1 & 0x1F);
    if (queue.wptr - queue.rptr > size) return 0;
    auto* ring = memory_.find(0, pair(q, 0x201) << 8, size);
    if (ring == nullptr) return 0;
    std::vector<std::uint32_t> words((queue.wptr - queue.rptr) / 4);
    for (std::size_t i = 0; i < words.size(); ++i)
      std::memcpy(&words[i], ring + ((queue.rptr + 4 * i) & (size - 1)), 4);
    if ((words[0] & 0xFFFF) != 4) return packet(q, 0, words);
    if (words.size() < 6 || (queue.rptr / 4 + 6) % 8 != 0) return 0;
    const Indirect ib{q, words[0] >> 16 & 0xF, address(words, 1), words[3]};
    if (ib.at % 32 != 0 || ib.dwords % 8 != 0) return 0;
    auto* buffer = memory_.find(ib.vmid, ib.at, ib.dwords * 4);
    if (buffer == nullptr) return 0;
    indirects.push_back(ib);
    if (on_indirect) on_indirect(ib);
    std::vector<std::uint32_t> inside(ib.dwords);
    std::memcpy(inside.data(), buffer, ib.dwords * 4);
    for (std::size_t at = 0; at < inside.size();) {
      const auto dwords = packet(q, ib.vmid, std::span(inside).subspan(at));
      if (dwords == 0) return 0;
      at += dwords;
    }
    return 6;
  }

  static std::uint64_t address(std::span<const std::uint32_t> words, unsigned at) {
    return words[at] | std::uint64_t{words[at + 1]} << 32;
  }

  std::uint64_t packet(unsigned q, unsigned vmid, std::span<const std::uint32_t> words) {
    const auto need = [&](std::uint64_t dwords) { return words.size() >= dwords; };
    const auto memory = [&](std::uint64_t at, std::uint64_t bytes) {
      return memory_.find(vmid, at, bytes);
    };
    switch (words[0] & 0xFFFF) {
      case 0: {
        const std::uint64_t dwords = 1 + (words[0] >> 16 & 0x3FFF);
        return need(dwords) ? dwords : 0;
      }
      case 1: {
        if (!need(7)) return 0;
        const std::uint64_t bytes = std::uint64_t{words[1]} + 1;
        const auto* from = memory(address(words, 3), bytes);
        auto* to = memory(address(words, 5), bytes);
        if (from == nullptr || to == nullptr) return 0;
        std::memmove(to, from, bytes);
        return 7;
      }
      case 2: {
        if (!need(4) || !need(5 + std::uint64_t{words[3]})) return 0;
        const std::uint64_t count = std::uint64_t{words[3]} + 1;
        auto* to = memory(address(words, 1), count * 4);
        if (to == nullptr) return 0;
        std::memcpy(to, words.data() + 4, count * 4);
        return 4 + count;
      }
      case 5: {
        if (!need(4)) return 0;
        auto* to = memory(address(words, 1), 4);
        if (to == nullptr) return 0;
        std::memcpy(to, &words[3], 4);
        return 4;
      }
      case 6:
        if (!need(2) || vmid != 0) return 0;
        traps.push_back({q, words[1]});
        return 2;
      case 10: {  // 64-bit add, 32-bit add
        if (!need(8)) return 0;
        const bool wide = words[0] >> 25 == 47;
        auto* at = memory(address(words, 1), wide ? 8 : 4);
        if (at == nullptr || (!wide && words[0] >> 25 != 15)) return 0;
        std::uint64_t value = 0;
        std::memcpy(&value, at, wide ? 8 : 4);
        value += address(words, 3);
        std::memcpy(at, &value, wide ? 8 : 4);
        return 8;
      }
      case 11: {
        if (!need(5) || words[0] >> 30 != 2) return 0;
        const std::uint64_t bytes = std::uint64_t{words[4]} + 1;
        auto* to = memory(address(words, 1), bytes);
        if (to == nullptr || bytes % 4 != 0) return 0;
        for (std::uint64_t i = 0; i < bytes; i += 4) std::memcpy(to + i, &words[3], 4);
        return 5;
      }
      case 2 << 8 | 13: {
        if (!need(3)) return 0;
        auto* to = memory(address(words, 1), 8);
        if (to == nullptr) return 0;
        std::memcpy(to, &++clock_, 8);
        return 3;
      }
      default:
        return 0;
    }
  }

  FakeRegisterIo& io_;
  GpuMemory& memory_;
  std::array<Queue, kQueues> queues_{};
  std::uint64_t clock_ = 0;
};

}  // namespace fake
