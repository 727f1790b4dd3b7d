// A descriptor that a client passed in. Closing one can block for as long as the client likes (a
// TCP socket with SO_LINGER, a file of a FUSE server, a Unix socket with either in flight), so it
// is done by a thread that does nothing else, and no other call is made on one except those that
// cannot block.
#pragma once

#include <cstdint>
#include <utility>

namespace gpuumd {

class ForeignFd {
 public:
  ForeignFd() = default;
  explicit ForeignFd(int fd) : fd_(fd) {}
  ForeignFd(ForeignFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ForeignFd& operator=(ForeignFd&& other) noexcept {
    if (this != &other) {
      give_away();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~ForeignFd() { give_away(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  // Hands the descriptor to the closing thread; never blocks. Any thread.
  void give_away();

  int fd_ = -1;
};

// Descriptors given away and not closed yet. Any thread.
std::uint64_t foreign_fds_waiting();

}  // namespace gpuumd
