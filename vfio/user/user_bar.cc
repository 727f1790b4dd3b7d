#include "vfio/user/user_bar.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/address.h"
#include "base/bytes.h"
#include "base/fence.h"
#include "vfio/mmio.h"

namespace vfio {

void DoorbellWake::stored() const {
  // The server publishes its sleep, then looks at the doorbells once more; we store the doorbell,
  // then look whether it sleeps. A full fence on each side, so that one of us sees the other.
  base::full_fence();
  if (std::atomic_ref(*sleeping_).load(std::memory_order_relaxed) != 1) return;
  const std::uint64_t one = 1;
  // A full eventfd (EAGAIN) wakes as well.
  [[maybe_unused]] const ssize_t put = ::write(eventfd_, &one, sizeof(one));
}

base::Result<std::unique_ptr<UserBar>> UserBar::create(RegionIo& io, std::uint32_t index,
                                                       const Region& region,
                                                       const base::UniqueFd& fd,
                                                       const DoorbellWake* wake) {
  std::unique_ptr<UserBar> bar(new UserBar(io, index, region.size, wake));
  if (region.mappable)
    if (auto mapped = bar->map(region, fd); !mapped) return std::unexpected(mapped.error());
  return bar;
}

base::Result<void> UserBar::map(const Region& region, const base::UniqueFd& fd) {
  const auto file_size = base::sealed_size(fd.get());
  if (!file_size) return {};  // it could shrink under us, and a load would raise SIGBUS
  std::vector<base::Mapping> mappings;
  std::vector<MappedArea> areas;
  for (const auto& area : region.areas) {
    if (!base::fits(region.file_offset + area.offset, area.size, *file_size))
      return base::fail(base::Errc::kProtocol, "region's descriptor is shorter than the region");
    auto mapping = base::Mapping::map(fd.get(), region.file_offset + area.offset, area.size,
                                      PROT_READ | PROT_WRITE);
    if (!mapping) {
      if (mapping.error().sys == EACCES || mapping.error().sys == EPERM) return {};
      return base::fail_within("BAR " + std::to_string(index_), mapping.error());
    }
    areas.push_back({area.offset, area.size, mapping->data()});
    mappings.push_back(std::move(*mapping));
  }
  if (areas.empty()) return {};
  auto memory = BarMemory::create(std::move(mappings), std::move(areas));
  if (!memory) return base::fail_within("BAR " + std::to_string(index_), memory.error());
  memory_ = std::move(*memory);
  return {};
}

std::span<const MappedArea> UserBar::mapped() const {
  if (memory_ == nullptr) return {};
  return memory_->areas();
}

std::byte* UserBar::mapped_at(std::uint64_t offset) const {
  return memory_ == nullptr ? nullptr : memory_->at(offset);
}

template <class Word>
Word UserBar::read_word(std::uint64_t offset) {
  assert(offset % sizeof(Word) == 0 && base::fits(offset, sizeof(Word), size_));
  if (std::byte* at = mapped_at(offset)) {
    if (!io_.settle()) return static_cast<Word>(-1);
    return word_at<Word>(at).load(std::memory_order_relaxed);
  }
  Word value;
  if (!io_.region_read(index_, offset, base::as_writable_bytes(value)))
    return static_cast<Word>(-1);
  return value;
}

template <class Word>
void UserBar::write_word(std::uint64_t offset, Word value) {
  assert(offset % sizeof(Word) == 0 && base::fits(offset, sizeof(Word), size_));
  std::byte* at = mapped_at(offset);
  if (at == nullptr) return io_.region_post(index_, offset, base::as_bytes(value));
  if (io_.settle()) word_at<Word>(at).store(value, std::memory_order_relaxed);
}

template <class Word>
void UserBar::ring(std::uint64_t offset, Word value) {
  assert(offset % sizeof(Word) == 0 && base::fits(offset, sizeof(Word), size_));
  std::byte* at = mapped_at(offset);
  if (at == nullptr) return io_.region_post(index_, offset, base::as_bytes(value));
  if (!io_.settle()) return;
  word_at<Word>(at).store(value, std::memory_order_release);
  if (wake_ != nullptr) wake_->stored();
}

std::uint32_t UserBar::read32(std::uint64_t offset) { return read_word<std::uint32_t>(offset); }
std::uint64_t UserBar::read64(std::uint64_t offset) { return read_word<std::uint64_t>(offset); }
void UserBar::write32(std::uint64_t offset, std::uint32_t value) { write_word(offset, value); }
void UserBar::write64(std::uint64_t offset, std::uint64_t value) { write_word(offset, value); }
void UserBar::ring_doorbell32(std::uint64_t offset, std::uint32_t value) { ring(offset, value); }
void UserBar::ring_doorbell64(std::uint64_t offset, std::uint64_t value) { ring(offset, value); }

base::Result<void> UserBar::read(std::uint64_t offset, std::span<std::byte> to) {
  if (!base::fits(offset, to.size(), size_))
    return base::fail(base::Errc::kOutOfRange,
                      "read past the end of BAR " + std::to_string(index_));
  while (!to.empty()) {
    const auto piece = to.first(step_at(offset, to.size()));
    if (std::byte* at = mapped_at(offset)) {
      if (!io_.settle()) return base::fail(base::Errc::kDeviceLost, "read of a BAR");
      load_step(at, piece);
    } else if (auto done = io_.region_read(index_, offset, piece); !done) {
      return done;
    }
    offset += piece.size();
    to = to.subspan(piece.size());
  }
  return {};
}

base::Result<void> UserBar::write(std::uint64_t offset, std::span<const std::byte> from) {
  if (!base::fits(offset, from.size(), size_))
    return base::fail(base::Errc::kOutOfRange,
                      "write past the end of BAR " + std::to_string(index_));
  while (!from.empty()) {
    const auto piece = from.first(step_at(offset, from.size()));
    if (std::byte* at = mapped_at(offset)) {
      if (!io_.settle()) return base::fail(base::Errc::kDeviceLost, "write of a BAR");
      store_step(at, piece);
    } else if (auto done = io_.region_write(index_, offset, piece); !done) {
      return done;
    }
    offset += piece.size();
    from = from.subspan(piece.size());
  }
  return {};
}

}  // namespace vfio
