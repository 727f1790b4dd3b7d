// A pod as a process: sockets in a directory, until SIGTERM or SIGINT.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "tools/gpusim/host/control.h"
#include "tools/gpusim/host/pod.h"
#include "tools/gpusim/host/runner.h"

namespace gpusim {

struct ProcessOptions {
  std::string directory;      // made if it is not there; gpu0.sock, gpu1.sock, ..., control.sock
  std::string scenario_file;  // commands to run before the first client (empty: none)
  std::string log_file;       // where the access log goes at the end (empty: nowhere)
};

class ProcessHost {
 public:
  // kBusy when another process uses the directory or a socket in it; the text names it.
  static base::Result<std::unique_ptr<ProcessHost>> open(std::unique_ptr<Pod> pod,
                                                         const ProcessOptions& options);
  ~ProcessHost();

  const std::vector<std::string>& sockets() const { return sockets_; }
  // Until stop(); then writes the log.
  base::Result<void> run();
  void stop() { runner_.stop(); }  // any thread, signal handlers

 private:
  ProcessHost(std::unique_ptr<Pod> pod, Runner runner, const ProcessOptions& options);
  base::Result<void> lock();
  base::Result<void> listen();

  ProcessOptions options_;
  std::unique_ptr<Pod> pod_;
  Runner runner_;
  Control control_;
  base::UniqueFd lock_;
  std::vector<std::unique_ptr<PollSource>> sources_;
  std::vector<std::string> sockets_;
};

}  // namespace gpusim
