#include "vfio/all_ones.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <string>

#include "base/address.h"

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

base::Result<void> fill(int fd, std::uint64_t tile) {
  for (std::uint64_t at = 0; at < tile;) {
    const auto size = std::min<std::uint64_t>(kOnes.size(), tile - at);
    const ssize_t done = ::pwrite(fd, kOnes.data(), size, static_cast<off_t>(at));
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0)
      return base::fail(
          base::Errc::kNoMemory,
          std::to_string(tile / base::kKiB) + " KiB to stand in for a BAR that goes away", errno);
    at += static_cast<std::uint64_t>(done);
  }
  return {};
}

}  // namespace

base::Result<std::unique_ptr<AllOnes>> AllOnes::create(std::uint64_t size) {
  const std::uint64_t tile = tile_for(size);
  auto fd = base::make_memfd("gpuumd-all-ones", tile);
  if (!fd) return std::unexpected(fd.error());
  if (auto filled = fill(fd->get(), tile); !filled) return std::unexpected(filled.error());
  auto spare = base::Mapping::map(fd->get(), 0, base::kPageSize, PROT_NONE);
  if (!spare) return std::unexpected(spare.error());
  return std::unique_ptr<AllOnes>(new AllOnes(std::move(*fd), tile, std::move(*spare)));
}

bool AllOnes::stand_in(std::byte* at, std::uint64_t size) const noexcept {
  const KeepErrno keep;
  for (std::uint64_t done = 0; done < size; done += tile_) {
    const auto piece = std::min(tile_, size - done);
    if (::mmap(at + done, piece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd_.get(), 0) ==
        MAP_FAILED)
      return false;
  }
  return true;
}

bool AllOnes::close_off(std::byte* at, std::uint64_t size) {
  // The kernel maps nothing for a process that has more mappings than it may, and the last one that
  // stood in may have been that one.
  spare_ = base::Mapping();
  return ::mmap(at, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
                0) != MAP_FAILED;
}

}  // namespace vfio
