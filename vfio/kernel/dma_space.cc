#include "vfio/kernel/dma_space.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace vfio {
namespace {

// Whether the kernel lets this process lock as much as it likes.
bool may_lock_all() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, _LINUX_CAPABILITY_U32S_3> data{};
  if (::syscall(SYS_capget, &header, data.data()) != 0) return false;
  return (data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0;
}

// As mmap() would have it; the kernel maps by file without asking.
bool is_writable(int fd) {
  const int mode = ::fcntl(fd, F_GETFL);
  const int seals = ::fcntl(fd, F_GET_SEALS);
  return mode >= 0 && (mode & O_ACCMODE) == O_RDWR &&
         (seals < 0 || (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) == 0);
}

template <class Call>
int until_done(Call call) {
  for (;;) {
    const int done = call();
    if (done >= 0) return done;
    if (errno != EINTR) return -errno;
  }
}

std::string kibibytes(std::uint64_t bytes) { return std::to_string(bytes / base::kKiB) + " KiB"; }

}  // namespace

int call_kernel(int fd, unsigned long request, void* argument) {
  return until_done([&] { return ::ioctl(fd, request, argument); });
}

int call_kernel(int fd, unsigned long request, int argument) {
  return until_done([&] { return ::ioctl(fd, request, argument); });
}

base::Error map_error(int error, std::uint64_t size) {
  const std::string what = "DMA mapping of " + kibibytes(size);
  rlimit limit{};
  const bool limited = ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 &&
                       limit.rlim_cur != RLIM_INFINITY && !may_lock_all();
  if ((error == ENOMEM || error == EPERM || error == EAGAIN) && limited)
    return {base::Errc::kNoMemory, error,
            what + ": this process may lock " + kibibytes(limit.rlim_cur) +
                " of memory (RLIMIT_MEMLOCK) and DMA memory is locked; raise it (ulimit -l, or "
                "LimitMEMLOCK= of the service) or give it CAP_IPC_LOCK"};
  switch (error) {
    case ENOMEM:
    case EAGAIN:
      return {base::Errc::kNoMemory, error, what + ": the kernel cannot pin so much memory"};
    case ENOSPC:
      return {base::Errc::kLimit, error,
              what + ": as many as vfio_iommu_type1.dma_entry_limit lets one have are mapped"};
    case EEXIST:
      return {base::Errc::kExists, error, what + ": the IOMMU has part of the range mapped"};
    case EACCES:
    case EPERM:
      return {base::Errc::kPermission, error, what + ": its memory may not be written"};
    default:
      return {base::Errc::kSystem, error, what};
  }
}

base::Result<void> DmaSpace::map(int fd, std::uint64_t offset, std::uint64_t size, base::Iova at,
                                 Rights rights) {
  if (auto ok = usable(); !ok) return ok;
  struct stat status{};
  if (::fstat(fd, &status) != 0)
    return base::fail(base::Errc::kInvalidArgument, "descriptor of a DMA mapping", errno);
  if (!base::fits(offset, size, static_cast<std::uint64_t>(status.st_size)))
    return base::fail(base::Errc::kOutOfRange, "DMA mapping past the end of its memory");
  if (may(rights, Rights::kWrite) && !is_writable(fd))
    return base::fail(base::Errc::kPermission, "DMA mapping: its memory may not be written");
  if (auto ok = record_.reserve(offset, size, at); !ok) return ok;
  auto done = kernel_map(fd, offset, size, at, rights);
  if (done)
    record_.commit(at);
  else
    record_.drop(at);
  return done;
}

base::Result<void> DmaSpace::unmap(base::Iova at, std::uint64_t size) {
  if (auto ok = record_.claim(at, size); !ok) return ok;
  auto done = kernel_unmap(at, size);
  // Where the kernel says no the device may still reach the memory: the mapping stands.
  if (done)
    record_.drop(at);
  else
    record_.commit(at);
  return done;
}

void DmaSpace::close() {
  record_.stop();
  kernel_close();
}

base::Result<AddressOf> AddressOf::range(int fd, std::uint64_t offset, std::uint64_t size,
                                         Rights rights) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) return base::fail(base::Errc::kSystem, "fstat", errno);
  // hugetlbfs maps whole huge pages alone; this is their size.
  const auto page =
      std::max<std::uint64_t>(base::kPageSize, static_cast<std::uint64_t>(status.st_blksize));
  const std::uint64_t first = base::align_down(offset, page);
  const std::uint64_t bytes = base::align_up(offset + size, page) - first;
  const int protection = PROT_READ | (may(rights, Rights::kWrite) ? PROT_WRITE : 0);
  auto mapping = base::Mapping::map(fd, first, bytes, protection);
  if (!mapping) return std::unexpected(map_error(mapping.error().sys, size));
  return AddressOf(std::move(*mapping), offset - first);
}

}  // namespace vfio
