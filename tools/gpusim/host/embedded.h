// The model inside another process: on a thread of its own, or in line on the caller's thread. Both
// give the client's end of a socketpair, for vfio::connect_vfio_user(); the client is the same as
// that of a model in another process.
#pragma once

#include <poll.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "tools/gpusim/host/pod.h"
#include "tools/gpusim/host/runner.h"

namespace gpusim {

// A pod on its own thread, which ends with this object.
class ThreadHost {
 public:
  // Errors of the factory, or kSystem.
  static base::Result<std::unique_ptr<ThreadHost>> start(const PodFactory& factory,
                                                         ServerOptions server = {},
                                                         RunnerOptions runner = {});
  ~ThreadHost();
  ThreadHost(const ThreadHost&) = delete;
  ThreadHost& operator=(const ThreadHost&) = delete;

  std::size_t size() const;

  // The client's end of a new connection to a GPU. Any thread. When the GPU has a client already
  // the connection is closed at once. kOutOfRange for a GPU that does not exist.
  base::Result<base::UniqueFd> connect(std::size_t gpu);
  // One control command (docs/model.md), run on the model's thread. Any thread; waits for it.
  std::string control(const std::string& line);

  std::uint64_t wakes() const;  // see Runner::wakes()

 private:
  struct Impl;
  explicit ThreadHost(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A pod that its user steps: no thread, no second core. Everything on one thread.
//
// The client waits for answers on the thread that has to give them: hand pump() to
// vfio::UserOptions::pump. The model in turn may wait for the client, for memory that is not
// mapped: `while_waiting` then calls the client's handle_events().
class InlineHost {
 public:
  static base::Result<std::unique_ptr<InlineHost>> create(const PodFactory& factory,
                                                          const ModelClock& clock,
                                                          std::function<void()> while_waiting = {});
  ~InlineHost();
  InlineHost(const InlineHost&) = delete;
  InlineHost& operator=(const InlineHost&) = delete;

  Pod& pod() { return *pod_; }
  base::Result<base::UniqueFd> connect(std::size_t gpu);  // as of ThreadHost
  std::string control(const std::string& line);

  // Serves what clients sent, nothing else; returns soon. Inside step() it does nothing.
  void pump();
  // One turn of the pod. True when something was done or becomes due by time alone: stay awake.
  bool step();

  // Before and after a sleep; after arm(true) call step() once more. A sleeper wakes by wake_fd():
  // readable when a client sent something or rang a doorbell.
  void arm(bool sleeping);
  int wake_fd() const { return outer_.get(); }

 private:
  InlineHost(std::unique_ptr<Pod> pod, base::UniqueFd outer);
  void watch_current();

  std::unique_ptr<Pod> pod_;
  base::UniqueFd outer_;  // an epoll set that holds inner_ alone, so that its number stays
  base::UniqueFd inner_;  // what the pod watches; made anew when that changes
  std::vector<pollfd> watched_;
  std::uint64_t watched_clients_ = 0;
  bool stepping_ = false;
};

}  // namespace gpusim
