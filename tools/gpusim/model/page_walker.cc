#include "tools/gpusim/model/page_walker.h"

#include <algorithm>
#include <atomic>

#include "base/bytes.h"

namespace gpusim {
namespace {

constexpr unsigned kRangeBit = 10, kPde0Bit = 14, kValidBit = 16, kReadBit = 18, kWriteBit = 20;
constexpr unsigned kRangeDefault = 2, kPde0Default = 3, kValidDefault = 10, kReadDefault = 11,
                   kWriteDefault = 12;
constexpr std::uint64_t kTableMask = PDE::TABLE::kMask;

}  // namespace

FaultCause FaultCause::range() {
  FaultCause cause;
  cause.interrupt_bit = kRangeBit;
  cause.default_bit = kRangeDefault;
  cause.walker_error = 1;
  cause.mapping_error = true;
  cause.permissions = 1 << 4;
  return cause;
}

FaultCause FaultCause::directory(unsigned level, bool final) {
  FaultCause cause;
  cause.interrupt_bit = kPde0Bit;
  cause.default_bit = kPde0Default + (level - 1);
  cause.walker_error = 1 + level;
  cause.mapping_error = true;
  cause.not_valid = true;
  cause.retryable = true;
  cause.never_retried = final;
  return cause;
}

FaultCause FaultCause::page(bool final) {
  FaultCause cause;
  cause.interrupt_bit = kValidBit;
  cause.default_bit = kValidDefault;
  cause.not_valid = true;
  cause.retryable = true;
  cause.never_retried = final;
  return cause;
}

FaultCause FaultCause::malformed() {
  FaultCause cause = page(true);
  cause.walker_error = 6;  // our choice: apart from all values that D17 gives out
  return cause;
}

FaultCause FaultCause::right(bool write) {
  FaultCause cause;
  cause.interrupt_bit = write ? kWriteBit : kReadBit;
  cause.default_bit = write ? kWriteDefault : kReadDefault;
  cause.permissions = write ? 1u << 2 : 1u << 1;
  cause.rights = true;
  cause.retryable = true;
  return cause;
}

FaultCause FaultCause::misplaced() {
  FaultCause cause = page(true);
  cause.mapping_error = true;
  return cause;
}

bool PageWalker::to_vram(std::uint64_t physical, std::uint64_t& offset) const {
  if (physical < vram_physical_ || physical - vram_physical_ >= vram_.size()) return false;
  offset = physical - vram_physical_;
  return true;
}

bool PageWalker::place(std::uint64_t entry, TableAddress& at) const {
  const base::Value<PDE> pde(entry);
  at.system = pde.get<PDE::S>();
  at.address = entry & kTableMask;
  return at.system || to_vram(at.address, at.address);
}

bool PageWalker::start(std::uint8_t vmid, std::uint64_t page, Start& from, Walk& failed) const {
  const auto cntl = registers_.context_cntl(vmid);
  const unsigned depth = std::min(cntl.get<CONTEXT_CNTL::PAGE_TABLE_DEPTH>(), 4u);
  const unsigned block = cntl.get<CONTEXT_CNTL::PAGE_TABLE_BLOCK_SIZE>();
  for (unsigned level = 1; level <= depth; ++level) {
    const auto table = cache_.directory(vmid, level, page, level_shift(level, block));
    if (!table) continue;
    from = {level - 1, *table};
    return true;
  }
  auto root = cache_.root(vmid);
  if (!root) {
    root = registers_.root(vmid);
    if (!base::Value<PDE>(*root).get<PDE::V>()) {
      failed.cause = depth == 0 ? FaultCause::page(true) : FaultCause::directory(depth, true);
      return false;
    }
    cache_.insert_root(vmid, *root);
  }
  from.level = depth;
  if (place(*root, from.table)) return true;
  failed.cause = FaultCause::misplaced();
  return false;
}

bool PageWalker::load(TableAddress at, std::uint64_t& entry, Walk& failed) {
  if (!at.system) {
    if (at.address + sizeof entry > vram_.size()) {
      failed.cause = FaultCause::misplaced();
      return false;
    }
    entry = vram_.load64(at.address);
    return true;
  }
  failed.kind = Walk::Kind::kBusError;
  failed.iova = at.address;
  HostBus* bus = bus_();
  if (bus == nullptr) return false;
  if (std::byte* direct = bus->direct(base::Iova(at.address), sizeof entry, false)) {
    entry =
        std::atomic_ref(*reinterpret_cast<std::uint64_t*>(direct)).load(std::memory_order_acquire);
    return true;
  }
  return bus->read(base::Iova(at.address), base::as_writable_bytes(entry));
}

Walk PageWalker::walk(std::uint8_t vmid, std::uint64_t page) {
  Walk result;
  Start from{};
  if (!start(vmid, page, from, result)) return result;
  const auto cntl = registers_.context_cntl(vmid);
  const unsigned depth = std::min(cntl.get<CONTEXT_CNTL::PAGE_TABLE_DEPTH>(), 4u);
  const unsigned block = cntl.get<CONTEXT_CNTL::PAGE_TABLE_BLOCK_SIZE>();
  const std::uint64_t index_page = page - registers_.start_page(vmid);
  TableAddress table = from.table;
  for (unsigned level = from.level;; --level) {
    const unsigned shift = level_shift(level, block);
    std::uint64_t index = index_page >> shift;
    if (level != depth) index &= (std::uint64_t{1} << (level == 0 ? 9 + block : 9)) - 1;
    TableAddress at = table;
    at.address += index * sizeof(std::uint64_t);
    std::uint64_t raw = 0;
    if (!load(at, raw, result)) return result;
    const base::Value<PTE> entry(raw);
    switch (const EntryKind kind = classify(entry, level)) {
      case EntryKind::kDirectory:
        if (!place(raw, table)) {
          result.cause = FaultCause::misplaced();
          return result;
        }
        cache_.insert_directory(vmid, level, page, shift, table);
        continue;
      case EntryKind::kLeaf:
      case EntryKind::kRemote:
        return leaf(entry, kind, level, shift, page, at);
      case EntryKind::kSparse:
        result.kind = Walk::Kind::kSparse;
        result.leaf.span_log2 = static_cast<std::uint8_t>(shift);
        return result;
      case EntryKind::kMalformed:
        result.cause = FaultCause::malformed();
        return result;
      case EntryKind::kRetryable:
      case EntryKind::kFinal:
        result.cause = level == 0 ? FaultCause::page(kind == EntryKind::kFinal)
                                  : FaultCause::directory(level, kind == EntryKind::kFinal);
        return result;
    }
  }
}

// FRAGMENT is believed: one entry serves the whole aligned run round it, as if memory went on
// contiguously in both directions, whatever the other entries say.
Walk PageWalker::leaf(base::Value<PTE> entry, EntryKind kind, unsigned level, unsigned shift,
                      std::uint64_t page, TableAddress at) const {
  Walk result;
  std::uint64_t address = entry.raw() & PTE::ADDRESS::kMask;
  if ((address & ((std::uint64_t{1} << (12 + shift)) - 1)) != 0) {
    result.cause = FaultCause::misplaced();
    return result;
  }
  Leaf& leaf = result.leaf;
  leaf.level = static_cast<std::uint8_t>(level);
  leaf.span_log2 = static_cast<std::uint8_t>(std::max(shift, entry.get<PTE::FRAGMENT>()));
  leaf.first_page = page >> leaf.span_log2 << leaf.span_log2;
  if (kind == EntryKind::kRemote) {
    leaf.kind = Leaf::Kind::kRemote;
  } else if (entry.get<PTE::S>()) {
    leaf.kind = Leaf::Kind::kSystem;
  } else if (!to_vram(address, address)) {
    result.cause = FaultCause::misplaced();
    return result;
  }
  // A wrong FRAGMENT may take this below 0; the hub checks the place of each access.
  leaf.address = address - ((page >> shift << shift) - leaf.first_page) * base::kPageSize;
  leaf.raw = entry.raw();
  leaf.at = at;
  leaf.readable = entry.get<PTE::R>();
  leaf.writeable = entry.get<PTE::W>();
  leaf.executable = entry.get<PTE::X>();
  leaf.bus_atomics = entry.get<PTE::B>();
  result.kind = Walk::Kind::kLeaf;
  return result;
}

bool PageWalker::still_there(const Leaf& leaf) {
  std::uint64_t now = 0;
  if (!leaf.at.system) {
    now = vram_.load64(leaf.at.address);
  } else {
    HostBus* bus = bus_();
    std::byte* direct =
        bus == nullptr ? nullptr : bus->direct(base::Iova(leaf.at.address), sizeof now, false);
    if (direct == nullptr) return true;
    now =
        std::atomic_ref(*reinterpret_cast<std::uint64_t*>(direct)).load(std::memory_order_acquire);
  }
  return now == leaf.raw;
}

}  // namespace gpusim
