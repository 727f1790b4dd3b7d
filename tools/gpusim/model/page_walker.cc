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

unsigned PageWalker::depth(std::uint8_t vmid) const {
  return std::min(registers_.context_cntl(vmid).get<CONTEXT_CNTL::PAGE_TABLE_DEPTH>(), 4u);
}

// Where the table of a level has its entry over `page`.
TableAddress PageWalker::entry_at(TableAddress table, std::uint8_t vmid, std::uint64_t page,
                                  unsigned level) const {
  const unsigned block = registers_.context_cntl(vmid).get<CONTEXT_CNTL::PAGE_TABLE_BLOCK_SIZE>();
  std::uint64_t index = (page - registers_.start_page(vmid)) >> level_shift(level, block);
  if (level != depth(vmid)) index &= (std::uint64_t{1} << (level == 0 ? 9 + block : 9)) - 1;
  table.address += index * sizeof(std::uint64_t);
  return table;
}

bool PageWalker::start(std::uint8_t vmid, std::uint64_t page, Start& from, Walk& failed) const {
  const unsigned top = depth(vmid);
  const unsigned block = registers_.context_cntl(vmid).get<CONTEXT_CNTL::PAGE_TABLE_BLOCK_SIZE>();
  for (unsigned level = 1; level <= top; ++level) {
    const auto table = cache_.directory(vmid, level, page, level_shift(level, block));
    if (!table) continue;
    from = {level - 1, *table};
    return true;
  }
  auto root = cache_.root(vmid);
  if (!root) {
    root = registers_.root(vmid);
    if (!base::Value<PDE>(*root).get<PDE::V>()) {
      failed.cause = top == 0 ? FaultCause::page(true) : FaultCause::directory(top, true);
      return false;
    }
    cache_.insert_root(vmid, *root);
  }
  from.level = top;
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
  const unsigned block = registers_.context_cntl(vmid).get<CONTEXT_CNTL::PAGE_TABLE_BLOCK_SIZE>();
  TableAddress table = from.table;
  for (unsigned level = from.level;; --level) {
    const unsigned shift = level_shift(level, block);
    const TableAddress at = entry_at(table, vmid, page, level);
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
        result = leaf(entry, kind, level, shift, page, at);
        result.leaf.vmid = vmid;
        result.leaf.root = cache_.root(vmid).value_or(registers_.root(vmid));
        return result;
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

// An entry as engines see it, without asking the client; nothing when that cannot be.
std::optional<std::uint64_t> PageWalker::word(TableAddress at) {
  if (!at.system) {
    if (at.address + sizeof(std::uint64_t) > vram_.size()) return 0;
    return vram_.load64(at.address);
  }
  HostBus* bus = bus_();
  std::byte* direct =
      bus == nullptr ? nullptr : bus->direct(base::Iova(at.address), sizeof(std::uint64_t), false);
  if (direct == nullptr) return std::nullopt;
  return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(direct)).load(std::memory_order_acquire);
}

bool PageWalker::still_there(const Leaf& leaf) {
  if (registers_.root(leaf.vmid) != leaf.root) return false;
  if (const auto now = word(leaf.at); now && *now != leaf.raw) return false;
  const unsigned top = depth(leaf.vmid);
  TableAddress table;
  if (!place(leaf.root, table)) return false;
  for (unsigned level = top; level > leaf.level; --level) {
    const auto entry = word(entry_at(table, leaf.vmid, leaf.first_page, level));
    if (!entry) return true;
    if (classify(base::Value<PTE>(*entry), level) != EntryKind::kDirectory || !place(*entry, table))
      return false;
  }
  // In this table, and not in one that was taken out since.
  return leaf.level == top || (leaf.at.system == table.system &&
                               base::align_down(leaf.at.address, base::kPageSize) == table.address);
}

}  // namespace gpusim
