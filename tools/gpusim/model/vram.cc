#include "tools/gpusim/model/vram.h"

#include <linux/memfd.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstdlib>
#include <cstring>

#include "base/address.h"
#include "tools/gpusim/model/memory_access.h"

namespace gpusim {
namespace {

constexpr std::uint64_t kWordsInPage = base::kPageSize / sizeof(std::uint64_t);
constexpr ModelTime kHold = std::chrono::milliseconds(1);
// A flush refreshes the held pages while they are few, so that the next store to one of them is
// noticed too; many are dropped, and taken anew when they are looked at.
constexpr std::size_t kRefreshAtFlush = 16;

std::uint64_t load_word(const std::byte* at, std::memory_order order) {
  // Atomic loads need a non-const object before C++26.
  return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(at))).load(order);
}

}  // namespace

void Vram::FreeArray::operator()(void* array) const { std::free(array); }

base::Result<std::unique_ptr<Vram>> Vram::create(const VramOptions& options,
                                                 const ModelClock& clock) {
  if (options.bytes == 0 || !base::is_aligned(options.bytes, 2 * base::kMiB) ||
      options.visible_bytes > options.bytes ||
      !base::is_aligned(options.visible_bytes, base::kPageSize))
    return base::fail(base::Errc::kInvalidArgument, "size of VRAM or of its visible part");
  bool huge = options.huge_pages;
  base::Result<base::UniqueFd> fd = base::make_memfd("gpusim-vram", options.bytes, base::kSizeSeals,
                                                     huge ? MFD_HUGETLB | MFD_HUGE_2MB : 0u);
  if (huge && !fd) {
    huge = false;
    fd = base::make_memfd("gpusim-vram", options.bytes);
  }
  if (!fd) return std::unexpected(fd.error());
  auto memory = base::Mapping::map(fd->get(), 0, options.bytes, PROT_READ | PROT_WRITE);
  if (!memory && huge) {
    // The pool is reserved when a mapping is made, so it shows here that it is too small.
    huge = false;
    fd = base::make_memfd("gpusim-vram", options.bytes);
    if (!fd) return std::unexpected(fd.error());
    memory = base::Mapping::map(fd->get(), 0, options.bytes, PROT_READ | PROT_WRITE);
  }
  if (!memory) return std::unexpected(memory.error());
  ::madvise(memory->data(), memory->size(), MADV_HUGEPAGE);
  return std::unique_ptr<Vram>(new Vram(options, clock, std::move(*fd), std::move(*memory), huge));
}

Vram::Vram(const VramOptions& options, const ModelClock& clock, base::UniqueFd fd,
           base::Mapping memory, bool huge)
    : options_(options),
      clock_(clock),
      fd_(std::move(fd)),
      memory_(std::move(memory)),
      huge_(huge),
      references_(static_cast<std::uint32_t*>(
          std::calloc(options.bytes / base::kPageSize, sizeof(std::uint32_t)))),
      freed_by_(static_cast<std::uint32_t*>(
          std::calloc(options.bytes / base::kPageSize, sizeof(std::uint32_t)))) {
  assert(references_ != nullptr && freed_by_ != nullptr);
}

// --- the held pages of the visible part ---

void Vram::refresh(std::uint64_t page, HeldPage& copy) const {
  const std::byte* from = memory_.data() + page * base::kPageSize;
  copy.words.resize(kWordsInPage);
  for (std::uint64_t i = 0; i < kWordsInPage; ++i)
    copy.words[i] = load_word(from + i * sizeof(std::uint64_t), std::memory_order_relaxed);
  copy.differs = false;
}

Vram::HeldPage& Vram::held(std::uint64_t page) {
  const auto [at, added] = held_.try_emplace(page);
  if (added) refresh(page, at->second);
  return at->second;
}

// A difference was met: whether it may be seen by now.
bool Vram::visible_now(HeldPage& copy) {
  const ModelTime now = clock_.now();
  if (!copy.differs) {
    copy.differs = true;
    copy.differs_since = now;
  }
  if (now - copy.differs_since >= kHold) return true;
  ++counters_.held_stores;
  return false;
}

void Vram::hdp_flush() {
  ++counters_.hdp_flushes;
  if (held_.size() > kRefreshAtFlush) {
    held_.clear();
    return;
  }
  for (auto& [page, copy] : held_) refresh(page, copy);
}

std::uint64_t Vram::load64(std::uint64_t offset) {
  assert(base::is_aligned(offset, 8) && base::fits(offset, 8, size()));
  const std::uint64_t now = load_word(memory_.data() + offset, std::memory_order_acquire);
  if (!strict(offset)) return now;
  const std::uint64_t page = offset / base::kPageSize;
  HeldPage& copy = held(page);
  const std::uint64_t& kept = copy.words[offset % base::kPageSize / sizeof(std::uint64_t)];
  if (kept == now) return now;
  if (visible_now(copy)) refresh(page, copy);
  return kept;
}

void Vram::fetch(std::uint64_t offset, std::span<std::byte> to) {
  assert(base::fits(offset, to.size(), size()));
  while (!to.empty()) {
    const std::uint64_t in_page = offset % base::kPageSize;
    const std::size_t piece = std::min<std::uint64_t>(to.size(), base::kPageSize - in_page);
    const std::byte* now = memory_.data() + offset;
    if (strict(offset)) {
      const std::uint64_t page = offset / base::kPageSize;
      HeldPage& copy = held(page);
      const auto* kept = reinterpret_cast<const std::byte*>(copy.words.data()) + in_page;
      if (std::memcmp(kept, now, piece) != 0 && visible_now(copy)) refresh(page, copy);
      std::memcpy(to.data(), kept, piece);
    } else if (piece == 8 && in_page % 8 == 0) {
      const std::uint64_t word = load_word(now, std::memory_order_acquire);
      std::memcpy(to.data(), &word, sizeof word);
    } else {
      std::memcpy(to.data(), now, piece);
    }
    offset += piece;
    to = to.subspan(piece);
  }
}

std::span<const std::byte> Vram::bulk(std::uint64_t offset, std::uint64_t bytes) const {
  assert(base::fits(offset, bytes, size()));
  if (held_.empty() || !strict(offset)) return {memory_.data() + offset, bytes};
  const std::uint64_t first = offset / base::kPageSize;
  if (const auto at = held_.find(first); at != held_.end()) {
    const std::uint64_t in_page = offset % base::kPageSize;
    return {reinterpret_cast<const std::byte*>(at->second.words.data()) + in_page,
            std::min(bytes, base::kPageSize - in_page)};
  }
  const std::uint64_t last = (offset + bytes - 1) / base::kPageSize;
  for (std::uint64_t page = first + 1; page <= last; ++page)
    if (held_.contains(page)) return {memory_.data() + offset, page * base::kPageSize - offset};
  return {memory_.data() + offset, bytes};
}

// --- stores of engines ---

void Vram::note_write(std::uint64_t offset, std::uint64_t bytes) {
  const std::uint64_t first = offset / base::kPageSize;
  const std::uint64_t last = (offset + bytes - 1) / base::kPageSize;
  for (std::uint64_t page = first; page <= last; ++page) {
    if (poisoned_ != 0 && freed_by_[page] != 0) {
      freed_by_[page] = 0;
      --poisoned_;
    }
    const auto at = held_.empty() ? held_.end() : held_.find(page);
    if (at == held_.end()) continue;
    // Only these bytes: what the CPU stored elsewhere in the page stays held back.
    const std::uint64_t start = page * base::kPageSize;
    const std::uint64_t from = std::max(offset, start);
    const std::uint64_t to = std::min(offset + bytes, start + base::kPageSize);
    std::memcpy(reinterpret_cast<std::byte*>(at->second.words.data()) + (from - start),
                memory_.data() + from, to - from);
  }
}

void Vram::write(std::uint64_t offset, std::span<const std::byte> from) {
  assert(base::fits(offset, from.size(), size()));
  std::memcpy(writable(offset), from.data(), from.size());
  wrote(offset, from.size());
}

std::uint64_t Vram::atomic(std::uint64_t offset, AtomicOp op, std::uint64_t operand,
                           std::uint64_t compare) {
  const unsigned bytes = operand_bytes(op);
  assert(base::is_aligned(offset, bytes) && base::fits(offset, bytes, size()));
  const std::uint64_t old = atomic_at(writable(offset), op, operand, compare);
  wrote(offset, bytes);
  return old;
}

// --- poison ---

void Vram::reference(std::uint64_t offset, std::uint64_t bytes) {
  if (!poisons()) return;
  const std::uint64_t first = offset / base::kPageSize;
  for (std::uint64_t page = first; page < first + bytes / base::kPageSize; ++page)
    ++references_[page];
}

void Vram::unreference(std::uint64_t offset, std::uint64_t bytes, bool gone, std::uint16_t owner) {
  if (!poisons()) return;
  const std::uint64_t first = offset / base::kPageSize;
  for (std::uint64_t page = first; page < first + bytes / base::kPageSize; ++page) {
    assert(references_[page] != 0);
    if (--references_[page] != 0 || !gone) continue;
    if (freed_by_[page] == 0) ++poisoned_;
    freed_by_[page] = std::uint32_t{owner} + 1;
    ++counters_.poisoned_pages;
    if (options_.poison != PoisonMode::kFill) continue;
    auto* words = reinterpret_cast<std::uint64_t*>(memory_.data() + page * base::kPageSize);
    std::fill_n(words, kWordsInPage, kPoisonPattern);
    held_.erase(page);
  }
}

bool Vram::poisoned(std::uint64_t offset, std::uint64_t bytes, std::uint16_t reader) const {
  if (poisoned_ == 0 || reader == 0 || bytes == 0) return false;
  const std::uint64_t last = (offset + bytes - 1) / base::kPageSize;
  for (std::uint64_t page = offset / base::kPageSize; page <= last; ++page)
    if (freed_by_[page] != 0 && freed_by_[page] != std::uint32_t{reader} + 1) return true;
  return false;
}

void Vram::count_poison_read(std::uint64_t offset) {
  ++counters_.poison_reads;
  counters_.last_poison_read = offset;
}

}  // namespace gpusim
