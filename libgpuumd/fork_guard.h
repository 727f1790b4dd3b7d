// Tells a forked child from its parent without a system call: a page that the kernel wipes in
// children.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <utility>

#include "libgpuumd/error.h"

namespace gpuumd::client {

class ForkGuard {
 public:
  static Outcome<ForkGuard> create() {
    void* page =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return system_failure("fork guard", errno);
    ForkGuard guard(static_cast<unsigned*>(page));
    if (::madvise(page, kBytes, MADV_WIPEONFORK) != 0) return system_failure("fork guard", errno);
    *guard.word_ = 1;
    return guard;
  }
  ForkGuard(ForkGuard&& other) noexcept : word_(std::exchange(other.word_, nullptr)) {}
  ForkGuard& operator=(ForkGuard&&) = delete;
  ~ForkGuard() {
    if (word_ != nullptr) ::munmap(word_, kBytes);
  }

  bool in_child() const { return *static_cast<const volatile unsigned*>(word_) == 0; }

 private:
  static constexpr std::size_t kBytes = 4096;
  explicit ForkGuard(unsigned* word) : word_(word) {}
  unsigned* word_;
};

}  // namespace gpuumd::client
