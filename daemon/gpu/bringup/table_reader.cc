#include "daemon/gpu/bringup/table_reader.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/address.h"
#include "base/bytes.h"
#include "daemon/gpu/bringup/discovery.h"
#include "daemon/gpu/registers/describe.h"
#include "daemon/gpu/registers/nbio.h"

namespace gpuumd {
namespace {

// Absolute dwords, fixed on every part.
constexpr std::uint32_t kScratch0 = 0x0094;  // offset low, offset high, size
constexpr std::uint32_t kMmIndex = nbio::MM_INDEX::kOffset;
constexpr std::uint32_t kMmData = nbio::MM_DATA::kOffset;
constexpr std::uint32_t kMmIndexHigh = nbio::MM_INDEX_HI::kOffset;

// Bytes a step. Through the window each dword is two trapped accesses, some 10 us each.
constexpr std::size_t kPieceByBar = 1024;
constexpr std::size_t kPieceByWindow = 64;

}  // namespace

base::Result<bool> TableReader::step() {
  switch (phase_) {
    case Phase::kDefaultPlace:
      return try_default_place();
    case Phase::kScratch:
      return try_scratch();
    case Phase::kBody:
      return read_piece();
  }
  std::unreachable();
}

std::string TableReader::where() const {
  return "discovery table at VRAM " + hex(at_, 16) +
         (in_bar(at_, bytes_.size()) ? " by BAR 0" : " by MM_INDEX") + ", " +
         std::to_string(done_) + " of " + std::to_string(bytes_.size()) + " bytes read";
}

base::Result<bool> TableReader::try_default_place() {
  if (vram_size_ < discovery::kFromTop)
    return base::fail(base::Errc::kUnsupported, "VRAM of " + std::to_string(vram_size_) + " bytes");
  at_ = vram_size_ - discovery::kFromTop;
  bytes_.resize(discovery::kHeaderBytes);
  if (auto got = read(at_, bytes_); !got) return std::unexpected(std::move(got.error()));
  if (discovery::has_signature(bytes_)) return begin_body(discovery::kDefaultBytes);
  phase_ = Phase::kScratch;
  return false;
}

base::Result<bool> TableReader::try_scratch() {
  const auto size = io_.read(kScratch0 + 2);
  if (size == 0)
    return base::fail(base::Errc::kNotFound,
                      "no signature at VRAM " + hex(at_, 16) + " and DRIVER_SCRATCH_2 reads 0");
  at_ = std::uint64_t{io_.read(kScratch0 + 1)} << 32 | io_.read(kScratch0);
  if (at_ % 4 != 0 || size < discovery::kHeaderBytes || !base::fits(at_, size, vram_size_))
    return base::fail(base::Errc::kProtocol, "DRIVER_SCRATCH names " + std::to_string(size) +
                                                 " bytes at VRAM " + hex(at_, 16));
  if (auto got = read(at_, bytes_); !got) return std::unexpected(std::move(got.error()));
  if (!discovery::has_signature(bytes_))
    return base::fail(base::Errc::kNotFound,
                      "no signature where DRIVER_SCRATCH points, at VRAM " + hex(at_, 16));
  return begin_body(size);
}

base::Result<bool> TableReader::begin_body(std::size_t limit) {
  const auto size = discovery::total_size(bytes_);
  if (!size) return std::unexpected(size.error());
  if (*size > limit)
    return base::fail(base::Errc::kProtocol, "discovery table of " + std::to_string(*size) +
                                                 " bytes in a place of " + std::to_string(limit));
  bytes_.resize(*size);
  done_ = 0;
  phase_ = Phase::kBody;
  return false;
}

base::Result<bool> TableReader::read_piece() {
  const auto piece = in_bar(at_, bytes_.size()) ? kPieceByBar : kPieceByWindow;
  const auto size = std::min(piece, bytes_.size() - done_);
  if (auto got = read(at_ + done_, std::span(bytes_).subspan(done_, size)); !got)
    return std::unexpected(std::move(got.error()));
  done_ += size;
  return done_ == bytes_.size();
}

bool TableReader::in_bar(std::uint64_t at, std::size_t size) const {
  return base::fits(at, size, vram_.size());
}

base::Result<void> TableReader::read(std::uint64_t at, std::span<std::byte> to) {
  if (in_bar(at, to.size())) return vram_.read(at, to);
  read_window(at, to);
  return {};
}

void TableReader::read_window(std::uint64_t at, std::span<std::byte> to) {
  using Index = nbio::MM_INDEX;
  io_.write(kMmIndexHigh, static_cast<std::uint32_t>(at >> 31));
  std::uint64_t high = at >> 31;
  for (std::size_t i = 0; i < to.size(); i += 4) {
    const std::uint64_t byte = at + i;
    if (byte >> 31 != high) {
      high = byte >> 31;
      io_.write(kMmIndexHigh, static_cast<std::uint32_t>(high));
    }
    io_.write(kMmIndex, base::Value<Index>()
                            .with<Index::MM_OFFSET>(byte & Index::MM_OFFSET::kMax)
                            .with<Index::MM_APER>(true)
                            .raw());
    const std::uint32_t word = io_.read(kMmData);
    const auto source = base::as_bytes(word);
    std::ranges::copy(source.first(std::min<std::size_t>(4, to.size() - i)), to.subspan(i).begin());
  }
}

}  // namespace gpuumd
