#include "tools/gpusim/server/dma_map.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "tools/gpusim/server/wire.h"

namespace gpusim {

bool ClientFile::read(std::uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t got = ::pread(fd_.get(), to.data(), to.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    to = to.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return true;
}

bool ClientFile::write(std::uint64_t offset, std::span<const std::byte> from) const {
  // A write past the end would make the client's file longer.
  struct stat status{};
  if (::fstat(fd_.get(), &status) != 0 ||
      !base::fits(offset, from.size(), static_cast<std::uint64_t>(status.st_size)))
    return false;
  while (!from.empty()) {
    const ssize_t put = ::pwrite(fd_.get(), from.data(), from.size(), static_cast<off_t>(offset));
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return false;
    from = from.subspan(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
  return true;
}

// An errno, or nothing when `file` is set.
std::optional<int> DmaMap::open_file(base::UniqueFd fd, std::uint64_t end, bool writable,
                                     std::shared_ptr<ClientFile>& file) {
  struct stat status{};
  if (::fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return EINVAL;
  const auto size = static_cast<std::uint64_t>(status.st_size);
  if (end > size) return EINVAL;
  const int mode = ::fcntl(fd.get(), F_GETFL) & O_ACCMODE;
  if (mode == O_WRONLY || (writable && mode != O_RDWR)) return EACCES;

  const FileKey key{status.st_dev, status.st_ino, writable};
  if ((file = files_[key].lock()) && file->covers(end)) return std::nullopt;
  base::Mapping mapping;
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0) {
    auto mapped =
        base::Mapping::map(fd.get(), 0, size, writable ? PROT_READ | PROT_WRITE : PROT_READ);
    if (!mapped) return mapped.error().sys == EPERM ? EACCES : mapped.error().sys;
    mapping = std::move(*mapped);
  }
  file = std::make_shared<ClientFile>(std::move(fd), std::move(mapping));
  files_[key] = file;
  return std::nullopt;
}

int DmaMap::map(std::uint64_t at, std::uint64_t size, bool readable, bool writable,
                base::UniqueFd fd, std::uint64_t offset) {
  if (size == 0 || at + size - 1 < at) return EINVAL;
  if (!base::is_aligned(at | size | offset, base::kPageSize) || offset + size < offset)
    return EINVAL;
  if (!readable && !writable) return EINVAL;
  const auto next = ranges_.lower_bound(at);
  if (next != ranges_.end() && next->first - at < size) return EEXIST;
  if (next != ranges_.begin()) {
    const auto& [start, before] = *std::prev(next);
    if (at - start < before.size) return EEXIST;
  }
  if (ranges_.size() >= wire::kMaxDmaMaps) return ENOSPC;

  Range range{size, readable, writable, nullptr, offset};
  if (fd) {
    if (const auto error = open_file(std::move(fd), offset + size, writable, range.file))
      return *error;
  }
  ranges_.emplace(at, std::move(range));
  return 0;
}

int DmaMap::unmap(std::uint64_t at, std::uint64_t size) {
  if (size == 0 || at + size - 1 < at || !base::is_aligned(at | size, base::kPageSize))
    return EINVAL;
  const std::uint64_t last = at + size - 1;
  const auto first = ranges_.lower_bound(at);
  if (first != ranges_.begin()) {
    const auto& [start, before] = *std::prev(first);
    if (at - start < before.size) return EINVAL;
  }
  auto end = first;
  for (; end != ranges_.end() && end->first <= last; ++end) {
    if (end->second.size - 1 > last - end->first) return EINVAL;
  }
  ranges_.erase(first, end);
  std::erase_if(files_, [](const auto& entry) { return entry.second.expired(); });
  return 0;
}

std::vector<std::pair<std::uint64_t, std::uint64_t>> DmaMap::covered() const {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> joined;
  for (const auto& [at, range] : ranges_) {
    if (!joined.empty() && joined.back().first + joined.back().second == at)
      joined.back().second += range.size;
    else
      joined.emplace_back(at, range.size);
  }
  return joined;
}

void DmaMap::clear() {
  ranges_.clear();
  files_.clear();
}

DmaMap::Piece DmaMap::piece(std::uint64_t at, std::uint64_t size) const {
  const auto next = ranges_.upper_bound(at);
  if (next != ranges_.begin()) {
    const auto& [start, range] = *std::prev(next);
    const std::uint64_t inside = at - start;
    if (inside < range.size) return {&range, inside, std::min(size, range.size - inside)};
  }
  if (next != ranges_.end()) size = std::min(size, next->first - at);
  return {nullptr, 0, size};
}

std::byte* DmaMap::direct(std::uint64_t at, std::uint64_t size, bool write) const {
  const Piece found = piece(at, size);
  if (found.range == nullptr || found.size != size || found.range->file == nullptr) return nullptr;
  if (!(write ? found.range->writable : found.range->readable)) return nullptr;
  return found.range->file->mapped(found.range->offset + found.inside);
}

}  // namespace gpusim
