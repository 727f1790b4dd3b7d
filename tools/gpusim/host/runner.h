// The loop of a thread that owns a pod: steps it while there is work, spins a little, then sleeps
// in one poll() until a client, a doorbell or a link wakes it.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "tools/gpusim/host/pod.h"

namespace gpusim {

// Descriptors beside the pod's that the loop serves: listening sockets, the control socket.
class PollSource {
 public:
  virtual ~PollSource() = default;
  virtual void add_poll_fds(std::vector<pollfd>& fds) = 0;
  // Serves what is ready, without blocking. Called after a sleep and now and then between steps.
  virtual void handle() = 0;
};

struct RunnerOptions {
  // How long it looks for new work before it sleeps (0 where the machine has a single core: there
  // it would take the core from the one who brings the work).
  std::chrono::microseconds spin{50};
  // How long it sleeps at most while something becomes due by time alone.
  std::chrono::microseconds nap{50};
};

class Runner {
 public:
  // `pod` outlives the runner. kSystem without descriptors.
  static base::Result<Runner> create(Pod& pod, RunnerOptions options = {});

  void add(PollSource& source) { sources_.push_back(&source); }
  // Until stop(). The calling thread owns the pod from here on.
  void run();
  // Any thread, and signal handlers.
  void stop();

  // How often run() woke from a poll(); for tests of idleness. Any thread.
  std::uint64_t wakes() const { return wakes_->load(std::memory_order_relaxed); }

 private:
  Runner(Pod& pod, RunnerOptions options, base::UniqueFd stop_event);
  bool spin();
  void sleep();
  void handle_sources();

  Pod* pod_;
  RunnerOptions options_;
  base::UniqueFd stop_event_;
  std::vector<PollSource*> sources_;
  std::vector<pollfd> fds_;
  std::unique_ptr<std::atomic<std::uint64_t>> wakes_;
  bool stopped_ = false;
};

}  // namespace gpusim
