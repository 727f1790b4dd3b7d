#include "tools/gpusim/model/memory_access.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>

#include "base/bytes.h"

namespace gpusim {
namespace {

template <class Word>
std::uint64_t atomic_word(std::byte* at, AtomicOp op, std::uint64_t operand,
                          std::uint64_t compare) {
  const std::atomic_ref word(*reinterpret_cast<Word*>(at));
  const Word value = static_cast<Word>(operand);
  switch (op) {
    case AtomicOp::kAdd32:
    case AtomicOp::kAdd64:
      return word.fetch_add(value);
    case AtomicOp::kSwap32:
    case AtomicOp::kSwap64:
      return word.exchange(value);
    case AtomicOp::kCompareSwap32:
    case AtomicOp::kCompareSwap64: {
      Word expected = static_cast<Word>(compare);
      word.compare_exchange_strong(expected, value);
      return expected;
    }
  }
  return 0;
}

// One aligned word at a time where the piece is one, so that a pointer, a fence or a doorbell word
// is never seen in halves.
void copy_out(std::byte* to, std::span<const std::byte> from) {
  const auto address = reinterpret_cast<std::uintptr_t>(to);
  if (from.size() == 8 && address % 8 == 0) {
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(to))
        .store(base::load<std::uint64_t>(from, 0), std::memory_order_release);
  } else if (from.size() == 4 && address % 4 == 0) {
    std::atomic_ref(*reinterpret_cast<std::uint32_t*>(to))
        .store(base::load<std::uint32_t>(from, 0), std::memory_order_release);
  } else {
    std::memcpy(to, from.data(), from.size());
  }
}

void copy_in(std::span<std::byte> to, std::byte* from) {
  const auto address = reinterpret_cast<std::uintptr_t>(from);
  if (to.size() == 8 && address % 8 == 0) {
    base::store(
        to, 0,
        std::atomic_ref(*reinterpret_cast<std::uint64_t*>(from)).load(std::memory_order_acquire));
  } else if (to.size() == 4 && address % 4 == 0) {
    base::store(
        to, 0,
        std::atomic_ref(*reinterpret_cast<std::uint32_t*>(from)).load(std::memory_order_acquire));
  } else {
    std::memcpy(to.data(), from, to.size());
  }
}

// The bytes of an access to the bus up to the end of its page: no request crosses it, so what is
// refused is a page, and what lay before it is done.
std::size_t to_page_end(std::uint64_t iova, std::size_t bytes) {
  return std::min<std::size_t>(bytes, base::kPageSize - iova % base::kPageSize);
}

}  // namespace

std::uint64_t atomic_at(std::byte* at, AtomicOp op, std::uint64_t operand, std::uint64_t compare) {
  return operand_bytes(op) == 4 ? atomic_word<std::uint32_t>(at, op, operand, compare)
                                : atomic_word<std::uint64_t>(at, op, operand, compare);
}

void MemoryAccess::log(const Requester& who, AccessKind kind, bool write, std::uint64_t address,
                       std::uint64_t bytes, Outcome outcome) {
  if (context_.log == nullptr) return;
  context_.log->add({context_.clock.now(), context_.gpu, std::string(who.engine), kind, write,
                     address, bytes, outcome});
}

void MemoryAccess::bus_failed(const Requester& who, std::uint64_t iova, std::uint64_t bytes,
                              bool write) {
  ++counters_.bus_errors;
  error_ = {};
  error_.iova = iova;
  on_bus_error_();
  log(who, AccessKind::kBus, write, iova, bytes, Outcome::kBusError);
}

std::uint64_t MemoryAccess::bus_address(std::uint64_t iova) {
  if (misled_ == 0) return iova;
  --misled_;
  return wrong_page_ ? *wrong_page_ + iova % base::kPageSize : iova + iova_add_;
}

Outcome MemoryAccess::read_bus(const Requester& who, std::uint64_t iova, std::span<std::byte> to) {
  HostBus* bus = context_.bus();
  for (iova = bus_address(iova); !to.empty();) {
    const auto piece = to.first(to_page_end(iova, to.size()));
    std::byte* direct =
        bus == nullptr ? nullptr : bus->direct(base::Iova(iova), piece.size(), false);
    if (direct != nullptr) {
      copy_in(piece, direct);
    } else if (bus == nullptr || !bus->read(base::Iova(iova), piece)) {
      bus_failed(who, iova, piece.size(), false);
      return Outcome::kBusError;
    }
    counters_.bus_reads += piece.size();
    iova += piece.size();
    to = to.subspan(piece.size());
  }
  return Outcome::kOk;
}

Outcome MemoryAccess::write_bus(const Requester& who, std::uint64_t iova,
                                std::span<const std::byte> from) {
  HostBus* bus = context_.bus();
  for (iova = bus_address(iova); !from.empty();) {
    const auto piece = from.first(to_page_end(iova, from.size()));
    std::byte* direct =
        bus == nullptr ? nullptr : bus->direct(base::Iova(iova), piece.size(), true);
    if (direct != nullptr) {
      copy_out(direct, piece);
    } else if (bus == nullptr || !bus->write(base::Iova(iova), piece)) {
      bus_failed(who, iova, piece.size(), true);
      return Outcome::kBusError;
    }
    counters_.bus_writes += piece.size();
    iova += piece.size();
    from = from.subspan(piece.size());
  }
  return Outcome::kOk;
}

Outcome MemoryAccess::remote(const Requester& who, RemoteAccess& access, std::uint64_t bytes) {
  const Outcome outcome = context_.fabric.access(access);
  const bool write = access.kind != RemoteAccess::Kind::kRead;
  log(who, AccessKind::kRemote, write, access.npa, bytes, outcome);
  if (outcome == Outcome::kOk) {
    (write ? counters_.remote_writes : counters_.remote_reads) += bytes;
    return outcome;
  }
  error_ = {};
  error_.npa = access.npa;
  error_.remote_or_prt = true;
  error_.exporter_retry = outcome == Outcome::kRetry;
  return outcome;
}

void MemoryAccess::look_for_poison(const Run& run, std::uint64_t bytes) {
  if (run.poison_reader == 0) return;
  if (vram_.poisoned(run.address, bytes, run.poison_reader)) vram_.count_poison_read(run.address);
}

Outcome MemoryAccess::read(const Requester& who, const Run& run, std::span<std::byte> to) {
  switch (run.kind) {
    case Run::Kind::kVram:
    case Run::Kind::kDefault: {
      look_for_poison(run, to.size());
      if (to.size() <= kFetch) {
        vram_.fetch(run.address, to);
        return Outcome::kOk;
      }
      std::uint64_t at = run.address;
      while (!to.empty()) {
        const auto piece = vram_.bulk(at, to.size());
        std::memcpy(to.data(), piece.data(), piece.size());
        at += piece.size();
        to = to.subspan(piece.size());
      }
      return Outcome::kOk;
    }
    case Run::Kind::kZero:
      std::ranges::fill(to, std::byte{0});
      return Outcome::kOk;
    case Run::Kind::kSystem:
      return read_bus(who, run.address, to);
    case Run::Kind::kRemote: {
      RemoteAccess access;
      access.kind = RemoteAccess::Kind::kRead;
      access.npa = run.address;
      access.read_to = to;
      return remote(who, access, to.size());
    }
  }
  return Outcome::kFault;
}

Outcome MemoryAccess::write(const Requester& who, const Run& run, std::span<const std::byte> from) {
  switch (run.kind) {
    case Run::Kind::kVram:
      copy_out(vram_.writable(run.address), from);
      vram_.wrote(run.address, from.size());
      return Outcome::kOk;
    case Run::Kind::kZero:
    case Run::Kind::kDefault:
      return Outcome::kOk;
    case Run::Kind::kSystem:
      return write_bus(who, run.address, from);
    case Run::Kind::kRemote: {
      RemoteAccess access;
      access.kind = RemoteAccess::Kind::kWrite;
      access.npa = run.address;
      access.write_from = from;
      return remote(who, access, from.size());
    }
  }
  return Outcome::kFault;
}

Outcome MemoryAccess::atomic(const Requester& who, const Run& run, AtomicOp op,
                             std::uint64_t operand, std::uint64_t compare, std::uint64_t& result) {
  const unsigned bytes = operand_bytes(op);
  switch (run.kind) {
    case Run::Kind::kVram:
      look_for_poison(run, bytes);
      result = vram_.atomic(run.address, op, operand, compare);
      return Outcome::kOk;
    case Run::Kind::kZero:
    case Run::Kind::kDefault:
      result = 0;
      return Outcome::kOk;
    case Run::Kind::kSystem: {
      const std::uint64_t iova = bus_address(run.address);
      HostBus* bus = context_.bus();
      std::byte* direct = bus == nullptr ? nullptr : bus->direct(base::Iova(iova), bytes, true);
      // An atomic that would have to be put to the client as a read and a write is none.
      if (direct == nullptr) {
        bus_failed(who, iova, bytes, true);
        return Outcome::kBusError;
      }
      result = atomic_at(direct, op, operand, compare);
      counters_.bus_writes += bytes;
      return Outcome::kOk;
    }
    case Run::Kind::kRemote: {
      RemoteAccess access;
      access.kind = RemoteAccess::Kind::kAtomic;
      access.npa = run.address;
      access.op = op;
      access.operand = operand;
      access.compare = compare;
      const Outcome outcome = remote(who, access, bytes);
      if (outcome == Outcome::kOk) result = access.result;
      return outcome;
    }
  }
  return Outcome::kFault;
}

std::span<const std::byte> MemoryAccess::source(const Requester& who, const Run& run) {
  switch (run.kind) {
    case Run::Kind::kVram:
      look_for_poison(run, run.bytes);
      return vram_.bulk(run.address, run.bytes);
    case Run::Kind::kSystem: {
      HostBus* bus = context_.bus();
      if (bus == nullptr || misled_ != 0) return {};
      const std::byte* at = bus->direct(base::Iova(run.address), run.bytes, false);
      if (at == nullptr) return {};
      counters_.bus_reads += run.bytes;
      return {at, run.bytes};
    }
    case Run::Kind::kRemote: {
      const auto memory = context_.fabric.source(run.address, run.bytes);
      if (memory.empty()) return {};
      counters_.remote_reads += memory.size();
      log(who, AccessKind::kRemote, false, run.address, memory.size(), Outcome::kOk);
      return memory;
    }
    default:
      return {};
  }
}

std::span<std::byte> MemoryAccess::target(const Run& run) {
  switch (run.kind) {
    case Run::Kind::kVram:
      return {vram_.writable(run.address), run.bytes};
    case Run::Kind::kSystem: {
      HostBus* bus = context_.bus();
      if (bus == nullptr || misled_ != 0) return {};
      std::byte* at = bus->direct(base::Iova(run.address), run.bytes, true);
      if (at == nullptr) return {};
      return {at, run.bytes};
    }
    case Run::Kind::kRemote:
      return context_.fabric.target(run.address, run.bytes);
    default:
      return {};
  }
}

void MemoryAccess::stored(const Requester& who, const Run& run, std::uint64_t bytes) {
  if (run.kind == Run::Kind::kVram) vram_.wrote(run.address, bytes);
  if (run.kind == Run::Kind::kSystem) counters_.bus_writes += bytes;
  if (run.kind != Run::Kind::kRemote) return;
  context_.fabric.stored(run.address, bytes);
  counters_.remote_writes += bytes;
  log(who, AccessKind::kRemote, true, run.address, bytes, Outcome::kOk);
}

}  // namespace gpusim
