// memfds and their mappings, each with one owner.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "base/fd.h"
#include "base/result.h"

namespace base {

// A mapping of (part of) a descriptor; unmapped by its destructor.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      reset();
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }
  ~Mapping() { reset(); }

  // `protection` as for mmap. kSystem with the errno of mmap.
  static Result<Mapping> map(int fd, std::uint64_t offset, std::size_t size, int protection) {
    void* at = ::mmap(nullptr, size, protection, MAP_SHARED, fd, static_cast<off_t>(offset));
    if (at == MAP_FAILED) return fail(Errc::kSystem, "mmap", errno);
    return Mapping(static_cast<std::byte*>(at), size);
  }

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }
  explicit operator bool() const { return data_ != nullptr; }

  // The object of type T at byte `offset`, which must lie inside and be aligned: the caller's duty.
  template <class T>
  T* at(std::size_t offset = 0) const {
    return reinterpret_cast<T*>(data_ + offset);
  }

 private:
  Mapping(std::byte* data, std::size_t size) : data_(data), size_(size) {}
  void reset() {
    if (data_ != nullptr) ::munmap(data_, size_);
    data_ = nullptr;
  }

  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

// Seals of every memfd that we hand out: its size can never change under the other side, which
// could otherwise raise SIGBUS in us.
inline constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Makes a memfd of `size` bytes, zeroed, with `seals` set (0 to seal later: leave out F_SEAL_SEAL).
// `name` shows in /proc. `flags` are those of memfd_create, e.g. MFD_HUGETLB.
inline Result<UniqueFd> make_memfd(const char* name, std::uint64_t size, int seals = kSizeSeals,
                                   unsigned flags = 0) {
  UniqueFd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags));
  if (!fd) return fail(Errc::kSystem, std::string("memfd_create ") + name, errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0)
    return fail(Errc::kSystem, std::string("size of memfd ") + name, errno);
  if (seals != 0 && ::fcntl(fd.get(), F_ADD_SEALS, seals) != 0)
    return fail(Errc::kSystem, std::string("seal memfd ") + name, errno);
  return fd;
}

// Size in bytes of a memfd that somebody else made, if it cannot shrink any more. kPermission if
// it is no memfd or lacks F_SEAL_SHRINK.
inline Result<std::uint64_t> sealed_size(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
    return fail(Errc::kPermission, "descriptor is not a memfd with F_SEAL_SHRINK");
  struct stat status{};
  if (::fstat(fd, &status) != 0) return fail(Errc::kSystem, "fstat", errno);
  return static_cast<std::uint64_t>(status.st_size);
}

}  // namespace base
