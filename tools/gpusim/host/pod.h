// The GPUs of one process: each behind its server, all on one switch, stepped by one thread.
#pragma once

#include <poll.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "tools/gpusim/model/access_log.h"
#include "tools/gpusim/model/gpu_device.h"
#include "tools/gpusim/model/scenario.h"
#include "tools/gpusim/server/gpu_server.h"

namespace gpusim {

// Something of the pod that is no GPU: the switch, a link to another process.
class PodPart : public Steppable {
 public:
  // What wakes it from sleep: descriptors to add, in any number.
  virtual void add_poll_fds(std::vector<pollfd>& fds) { (void)fds; }
};

// What a pod is made of. Destroyed in reverse: GPUs first, then parts from the last to the first.
struct PodParts {
  std::vector<std::unique_ptr<PodPart>> parts;
  std::vector<std::unique_ptr<GpuDevice>> gpus;
};

// Makes the parts; what they log, inject and time by is given. The one that puts real GPUs on a
// switch is in assembly.h.
using PodFactory =
    std::function<base::Result<PodParts>(ScenarioHooks&, AccessLog&, const ModelClock&)>;

// Thread: the one that steps it, for everything.
class Pod {
 public:
  // `clock` outlives the pod. `server.name` gets the index of each GPU behind it.
  static base::Result<std::unique_ptr<Pod>> create(const PodFactory& factory,
                                                   const ModelClock& clock,
                                                   const ServerOptions& server = {});
  ~Pod();
  Pod(const Pod&) = delete;
  Pod& operator=(const Pod&) = delete;

  std::size_t size() const { return servers_.size(); }
  GpuServer& server(std::size_t index) { return *servers_[index]; }
  ScenarioHooks& hooks() { return hooks_; }
  AccessLog& log() { return log_; }

  // One turn of everything. True when anything was done.
  bool step();
  // Only what clients sent: for a client that waits for its answer on this very thread.
  bool serve();
  // Something becomes due by time alone: do not sleep for long.
  bool waiting() const;

  // As of GpuServer, for all. False: there is work, everybody was told that we are awake.
  bool prepare_sleep();
  void wake_up();
  void add_poll_fds(std::vector<pollfd>& fds);

 private:
  Pod() = default;

  ScenarioHooks hooks_;
  AccessLog log_;
  PodParts parts_;
  std::vector<std::unique_ptr<GpuServer>> servers_;
};

}  // namespace gpusim
