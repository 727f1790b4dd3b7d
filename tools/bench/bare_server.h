// The limits that a round trip is measured against: the other end of rings in shared memory with
// nothing behind them, in a process of its own on the core where the daemon runs. It sleeps while
// no block runs.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "base/result.h"
#include "base/shared_memory.h"
#include "tools/bench/measure.h"

namespace bench {

class BareServer {
 public:
  // Forks: before the caller has threads. The child ends with its parent.
  static base::Result<std::unique_ptr<BareServer>> start(int core);
  ~BareServer();

  // A cache line there and another back.
  Block ping_pong(unsigned count);
  // 64 bytes through a ring with head and tail, and 64 bytes back through another; both ends poll.
  Block polled_ring(unsigned count);
  // The same, but both ends sleep in read() of an eventfd. `pause` before each, so that the other
  // side does sleep.
  Block sleeping_ring(unsigned count, std::chrono::nanoseconds pause);

 private:
  struct Shared;
  BareServer() = default;
  void serve();
  void serve_ping_pong();
  void serve_polled();
  void serve_sleeping();
  void enter(std::uint32_t mode);
  void leave();
  void send(std::uint64_t word);
  void receive();

  base::Mapping memory_;
  Shared* shared_ = nullptr;
  base::UniqueFd to_server_, to_client_;
  pid_t pid_ = -1;
};

}  // namespace bench
