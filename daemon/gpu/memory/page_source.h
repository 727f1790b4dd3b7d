// The kernel calls that give and take pages, with errors a caller can act on. Each may block; they
// are the memory worker's. No state.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"

namespace gpuumd {

// kNoMemory when there are no pages: an empty huge-page pool, a full tmpfs, a cgroup's limit.
inline base::Result<void> allocate_pages(int fd, std::uint64_t offset, std::uint64_t bytes) {
  int result;
  do {
    result = ::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0) return {};
  const bool shortage = errno == ENOSPC || errno == ENOMEM || errno == EDQUOT;
  return base::fail(shortage ? base::Errc::kNoMemory : base::Errc::kSystem, "pages of a memfd",
                    errno);
}

inline base::Result<void> punch_pages(int fd, std::uint64_t offset, std::uint64_t bytes) {
  if (::fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                  static_cast<off_t>(bytes)) == 0)
    return {};
  return base::fail(base::Errc::kSystem, "punch a memfd", errno);
}

// Page-table entries of this process, without touching the pages' content.
inline base::Result<void> populate_pages(std::span<std::byte> pages) {
  if (::madvise(pages.data(), pages.size(), MADV_POPULATE_WRITE) == 0) return {};
  return base::fail(errno == ENOMEM ? base::Errc::kNoMemory : base::Errc::kSystem,
                    "populate a mapping", errno);
}

}  // namespace gpuumd
