#include "vfio/user/user_dma.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <utility>

#include "base/shared_memory.h"

namespace vfio {
namespace {

bool allows(Rights has, Rights wants) {
  return (static_cast<unsigned>(has) & static_cast<unsigned>(wants)) ==
         static_cast<unsigned>(wants);
}

// Whole transfers by pread or pwrite; EFAULT when the file gives less.
template <class Call, class Bytes>
int transfer(Call call, int fd, std::uint64_t offset, Bytes bytes) {
  while (!bytes.empty()) {
    const ssize_t done = call(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return errno;
    if (done == 0) return EFAULT;
    bytes = bytes.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
  return 0;
}

// hugetlbfs has no write(): through a mapping then. The kernel does the stores, so that a huge page
// that cannot be had is an errno and no SIGBUS.
int write_mapped(int fd, std::uint64_t offset, std::span<const std::byte> from) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) return errno;
  const auto page = static_cast<std::uint64_t>(status.st_blksize);
  const std::uint64_t first = base::align_down(offset, page);
  const std::uint64_t size = base::align_up(offset + from.size(), page) - first;
  auto mapping = base::Mapping::map(fd, first, size, PROT_READ | PROT_WRITE);
  if (!mapping) return mapping.error().sys;
  while (!from.empty()) {
    iovec source{const_cast<std::byte*>(from.data()), from.size()};
    iovec target{mapping->data() + (offset - first), from.size()};
    const ssize_t done = ::process_vm_writev(::getpid(), &source, 1, &target, 1, 0);
    if (done < 0) return errno;
    if (done == 0) return EFAULT;
    from = from.subspan(static_cast<std::size_t>(done));
    offset += static_cast<std::uint64_t>(done);
  }
  return 0;
}

}  // namespace

base::Result<std::shared_ptr<base::UniqueFd>> DmaTable::file_of(int fd, const FileKey& key) {
  if (auto known = files_[key].lock()) return known;
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
  if (copy < 0) {
    const int error = errno;
    files_.erase(key);
    return base::fail(base::Errc::kSystem, "duplicate the descriptor of a DMA mapping", error);
  }
  auto file = std::make_shared<base::UniqueFd>(copy);
  files_[key] = file;
  return file;
}

base::Result<void> DmaTable::reserve(int fd, std::uint64_t offset, std::uint64_t size,
                                     base::Iova at, Rights rights, std::uint64_t max_mappings) {
  struct stat status{};
  const int mode = ::fcntl(fd, F_GETFL);
  if (mode < 0 || ::fstat(fd, &status) != 0)
    return base::fail(base::Errc::kInvalidArgument, "descriptor of a DMA mapping", errno);
  if (!base::fits(offset, size, static_cast<std::uint64_t>(status.st_size)))
    return base::fail(base::Errc::kOutOfRange, "DMA mapping past the end of its memory");
  const FileKey key{status.st_dev, status.st_ino, mode & O_ACCMODE};

  const std::lock_guard lock(mutex_);
  const auto next = table_.upper_bound(at.value());
  const bool hits_next = next != table_.end() && next->first - at.value() < size;
  const bool hits_last =
      next != table_.begin() && at.value() - std::prev(next)->first < std::prev(next)->second.size;
  if (hits_next || hits_last)
    return base::fail(base::Errc::kExists, "part of the DMA range is mapped");
  if (table_.size() >= max_mappings)
    return base::fail(base::Errc::kLimit, "DMA mappings that the server takes");
  auto file = file_of(fd, key);
  if (!file) return std::unexpected(file.error());
  table_.emplace(at.value(), Mapping{std::move(*file), key, offset, size, rights, false});
  return {};
}

void DmaTable::commit(base::Iova at) {
  const std::lock_guard lock(mutex_);
  const auto found = table_.find(at.value());
  assert(found != table_.end());
  found->second.settled = true;
}

base::Result<void> DmaTable::claim(base::Iova at, std::uint64_t size) {
  const std::lock_guard lock(mutex_);
  const auto found = table_.find(at.value());
  if (found == table_.end() || found->second.size != size || !found->second.settled)
    return base::fail(base::Errc::kNotFound, "no such DMA mapping");
  found->second.settled = false;
  return {};
}

void DmaTable::drop(base::Iova at) {
  const std::lock_guard lock(mutex_);
  const auto found = table_.find(at.value());
  assert(found != table_.end());
  const FileKey key = found->second.key;
  table_.erase(found);
  if (const auto file = files_.find(key); file != files_.end() && file->second.expired())
    files_.erase(file);
}

void DmaTable::clear() {
  const std::lock_guard lock(mutex_);
  std::erase_if(table_, [](const auto& entry) { return entry.second.settled; });
  std::erase_if(files_, [](const auto& entry) { return entry.second.expired(); });
}

template <class Copy>
int DmaTable::for_each_piece(base::Iova at, std::uint64_t size, Rights right, Copy copy) {
  if (size == 0 || at.value() > UINT64_MAX - (size - 1)) return EINVAL;
  const std::lock_guard lock(mutex_);
  const auto after = table_.upper_bound(at.value());
  if (after == table_.begin()) return EFAULT;
  const auto first = std::prev(after);

  // All of it first, so that a refused access has no effect. `done` bytes are behind us.
  std::uint64_t done = 0;
  for (auto it = first; done < size; ++it) {
    if (it == table_.end()) return EFAULT;
    const std::uint64_t inside = at.value() + done - it->first;
    if (it->first > at.value() + done || inside >= it->second.size) return EFAULT;
    if (!allows(it->second.rights, right)) return EACCES;
    done += std::min(size - done, it->second.size - inside);
  }

  done = 0;
  for (auto it = first; done < size; ++it) {
    const std::uint64_t inside = at.value() + done - it->first;
    const std::uint64_t bytes = std::min(size - done, it->second.size - inside);
    if (copy(it->second, it->second.offset + inside, done, bytes) != 0) return EFAULT;
    done += bytes;
  }
  return 0;
}

int DmaTable::read(base::Iova at, std::span<std::byte> to) {
  return for_each_piece(at, to.size(), Rights::kRead,
                        [&](const Mapping& mapping, std::uint64_t file_offset, std::uint64_t done,
                            std::uint64_t bytes) {
                          return transfer(::pread, mapping.file->get(), file_offset,
                                          to.subspan(done, bytes));
                        });
}

int DmaTable::write(base::Iova at, std::span<const std::byte> from) {
  return for_each_piece(
      at, from.size(), Rights::kWrite,
      [&](const Mapping& mapping, std::uint64_t file_offset, std::uint64_t done,
          std::uint64_t bytes) {
        const auto piece = from.subspan(done, bytes);
        const int error = transfer(::pwrite, mapping.file->get(), file_offset, piece);
        return error == EINVAL ? write_mapped(mapping.file->get(), file_offset, piece) : error;
      });
}

std::vector<DmaTable::Range> DmaTable::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<Range> ranges;
  ranges.reserve(table_.size());
  for (const auto& [start, mapping] : table_) ranges.push_back({base::Iova(start), mapping.size});
  return ranges;
}

}  // namespace vfio
