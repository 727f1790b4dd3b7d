#include "vfio/all_ones.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>

#include "base/address.h"
#include "base/shared_memory.h"

namespace vfio {
namespace {

constexpr std::uint64_t kUsualTile = 2 * base::kMiB;
constexpr std::uint64_t kMaxTiles = 4096;  // an area

constexpr std::uint64_t tile_for(std::uint64_t size) {
  const std::uint64_t pages = base::align_up(size, base::kPageSize);
  return std::bit_ceil(std::max(
      {base::kPageSize, std::min(pages, kUsualTile), (pages + kMaxTiles - 1) / kMaxTiles}));
}
static_assert(tile_for(1) == base::kPageSize);
static_assert(tile_for(8 * base::kGiB) == 2 * base::kMiB);
static_assert(tile_for(256 * base::kGiB) == 64 * base::kMiB);

constexpr auto kOnes = [] {
  std::array<unsigned char, 64 * base::kKiB> bytes{};
  bytes.fill(0xff);
  return bytes;
}();

// errno belongs to whoever a signal handler has interrupted.
class KeepErrno {
 public:
  KeepErrno() : kept_(errno) {}
  ~KeepErrno() { errno = kept_; }
  KeepErrno(const KeepErrno&) = delete;
  KeepErrno& operator=(const KeepErrno&) = delete;

 private:
  int kept_;
};

}  // namespace

base::Result<std::unique_ptr<AllOnes>> AllOnes::create(std::uint64_t size) {
  const std::uint64_t tile = tile_for(size);
  auto fd = base::make_memfd("gpuumd-all-ones", tile);
  if (!fd) return std::unexpected(fd.error());
  return std::unique_ptr<AllOnes>(new AllOnes(std::move(*fd), tile));
}

bool AllOnes::fill() const noexcept {
  if (filled_.load(std::memory_order_acquire)) return true;
  for (std::uint64_t at = 0; at < tile_;) {
    const auto size = std::min<std::uint64_t>(kOnes.size(), tile_ - at);
    const ssize_t done = ::pwrite(fd_.get(), kOnes.data(), size, static_cast<off_t>(at));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    at += static_cast<std::uint64_t>(done);
  }
  filled_.store(true, std::memory_order_release);
  return true;
}

bool AllOnes::stand_in(std::byte* at, std::uint64_t size) const noexcept {
  const KeepErrno keep;
  if (!fill()) return false;
  for (std::uint64_t done = 0; done < size; done += tile_) {
    const auto piece = std::min(tile_, size - done);
    if (::mmap(at + done, piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_.get(), 0) ==
        MAP_FAILED)
      return false;
  }
  return true;
}

}  // namespace vfio
