#include "vfio/kernel/kernel_bar.h"

#include <sys/mman.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <string>
#include <utility>

#include "base/address.h"
#include "base/bytes.h"
#include "vfio/mmio.h"

namespace vfio {

base::Result<std::unique_ptr<KernelBar>> KernelBar::create(DeviceFile& file, ConfigSpace& config,
                                                           Loss& loss, unsigned index,
                                                           const KernelRegion& region) {
  std::unique_ptr<KernelBar> bar(new KernelBar(file, config, loss, index, region));
  if (auto mapped = bar->map(); !mapped)
    return base::fail_within("BAR " + std::to_string(index), mapped.error());
  return bar;
}

base::Result<void> KernelBar::map() {
  std::vector<base::Mapping> mappings;
  std::vector<MappedArea> areas;
  for (const SparseArea& area : region_.areas) {
    auto mapping = base::Mapping::map(file_.fd(), region_.offset + area.offset, area.size,
                                      PROT_READ | PROT_WRITE);
    if (!mapping && mapping.error().sys == EINVAL) continue;
    if (!mapping) return std::unexpected(mapping.error());
    // A child would hold the device open by it for as long as it lives.
    if (::madvise(mapping->data(), mapping->size(), MADV_DONTFORK) != 0)
      return base::fail(base::Errc::kSystem, "madvise(MADV_DONTFORK)", errno);
    areas.push_back({area.offset, area.size, mapping->data()});
    mappings.push_back(std::move(*mapping));
  }
  if (areas.empty()) return {};
  auto memory = BarMemory::create(std::move(mappings), std::move(areas));
  if (!memory) return std::unexpected(memory.error());
  memory_ = std::move(*memory);
  for (const MappedArea& area : memory_->areas()) {
    auto guard = BusErrorGuard::cover(area.data, area.size, memory_->ones(), loss_, index_);
    if (!guard) return std::unexpected(guard.error());
    guards_.push_back(std::move(*guard));
  }
  return {};
}

std::span<const MappedArea> KernelBar::mapped() const {
  if (memory_ == nullptr) return {};
  return memory_->areas();
}

template <class Word>
Word KernelBar::read_word(std::uint64_t offset) {
  assert(offset % sizeof(Word) == 0 && base::fits(offset, sizeof(Word), region_.size));
  constexpr Word kOnes = static_cast<Word>(-1);
  if (loss_.lost()) return kOnes;
  Word value = kOnes;
  if (std::byte* at = mapped_at(offset))
    value = word_at<Word>(at).load(std::memory_order_relaxed);
  else if (!file_.read(region_.offset + offset, base::as_writable_bytes(value)))
    value = kOnes;
  if (value == kOnes) [[unlikely]]
    (void)config_.answers();
  return value;
}

template <class Word>
void KernelBar::write_word(std::uint64_t offset, Word value) {
  assert(offset % sizeof(Word) == 0 && base::fits(offset, sizeof(Word), region_.size));
  if (loss_.lost()) return;
  if (std::byte* at = mapped_at(offset))
    word_at<Word>(at).store(value, std::memory_order_release);
  else if (!file_.write(region_.offset + offset, base::as_bytes(value)))
    (void)config_.answers();
}

std::uint32_t KernelBar::read32(std::uint64_t offset) { return read_word<std::uint32_t>(offset); }
std::uint64_t KernelBar::read64(std::uint64_t offset) { return read_word<std::uint64_t>(offset); }
void KernelBar::write32(std::uint64_t offset, std::uint32_t value) { write_word(offset, value); }
void KernelBar::write64(std::uint64_t offset, std::uint64_t value) { write_word(offset, value); }
void KernelBar::ring_doorbell32(std::uint64_t offset, std::uint32_t value) {
  order_before_doorbell();
  write_word(offset, value);
}
void KernelBar::ring_doorbell64(std::uint64_t offset, std::uint64_t value) {
  order_before_doorbell();
  write_word(offset, value);
}

base::Result<void> KernelBar::read(std::uint64_t offset, std::span<std::byte> to) {
  const std::string what = "read of BAR " + std::to_string(index_);
  if (!base::fits(offset, to.size(), region_.size))
    return base::fail(base::Errc::kOutOfRange, what + " past its end");
  for (auto left = to; !left.empty();) {
    if (loss_.lost()) return base::fail(base::Errc::kDeviceLost, what);
    const auto piece = left.first(step_at(offset, left.size()));
    if (std::byte* at = mapped_at(offset)) {
      load_step(at, piece);
    } else if (auto done = file_.read(region_.offset + offset, piece); !done) {
      if (!config_.answers()) return base::fail(base::Errc::kDeviceLost, what);
      return base::fail_within(what, done.error());
    }
    offset += piece.size();
    left = left.subspan(piece.size());
  }
  const bool ones = std::ranges::all_of(to, [](std::byte byte) { return byte == std::byte{0xff}; });
  if (ones && !to.empty()) (void)config_.answers();
  // A signal may have come in the middle: what was read then is no data.
  if (loss_.lost()) return base::fail(base::Errc::kDeviceLost, what);
  return {};
}

base::Result<void> KernelBar::write(std::uint64_t offset, std::span<const std::byte> from) {
  const std::string what = "write of BAR " + std::to_string(index_);
  if (!base::fits(offset, from.size(), region_.size))
    return base::fail(base::Errc::kOutOfRange, what + " past its end");
  while (!from.empty()) {
    if (loss_.lost()) return base::fail(base::Errc::kDeviceLost, what);
    const auto piece = from.first(step_at(offset, from.size()));
    if (std::byte* at = mapped_at(offset)) {
      store_step(at, piece);
    } else if (auto done = file_.write(region_.offset + offset, piece); !done) {
      if (!config_.answers()) return base::fail(base::Errc::kDeviceLost, what);
      return base::fail_within(what, done.error());
    }
    offset += piece.size();
    from = from.subspan(piece.size());
  }
  if (loss_.lost()) return base::fail(base::Errc::kDeviceLost, what);
  return {};
}

}  // namespace vfio
