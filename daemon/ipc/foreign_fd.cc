#include "daemon/ipc/foreign_fd.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>

namespace gpuumd {
namespace {

// The thread is never joined: a close() that a client holds up may keep it for ever, and nothing
// else waits for it. The pipe is the queue: writes of four bytes are atomic, so that any thread may
// give.
class Closer {
 public:
  Closer() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return;
    ::fcntl(ends[1], F_SETFL, O_NONBLOCK);  // the giving end only
    give_ = ends[1];
    std::thread([this, take = ends[0]] { run(take); }).detach();
  }

  void give(int fd) {
    waiting_.fetch_add(1, std::memory_order_relaxed);
    // With thousands of descriptors stuck in front of it this one stays open: counted as waiting,
    // and the process's limit makes the clients who did it run out of descriptors to send.
    while (give_ >= 0 && ::write(give_, &fd, sizeof(fd)) < 0 && errno == EINTR) {
    }
  }

  std::uint64_t waiting() const { return waiting_.load(std::memory_order_relaxed); }

 private:
  void run(int take) {
    int fd = -1;
    for (;;) {
      const ssize_t got = ::read(take, &fd, sizeof(fd));
      if (got < 0 && errno == EINTR) continue;
      if (got != sizeof(fd)) return;
      ::close(fd);
      waiting_.fetch_sub(1, std::memory_order_relaxed);
    }
  }

  int give_ = -1;
  std::atomic<std::uint64_t> waiting_{0};
};

Closer& closer() {
  static auto* instance = new Closer;  // outlives every thread
  return *instance;
}

}  // namespace

void ForeignFd::give_away() {
  if (fd_ >= 0) closer().give(std::exchange(fd_, -1));
}

std::uint64_t foreign_fds_waiting() { return closer().waiting(); }

}  // namespace gpuumd
