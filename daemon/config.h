// What the daemon is told: by command line and by a TOML file, of which the command line wins.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"

namespace gpuumd {

struct DaemonConfig {
  std::vector<std::string> devices;  // names of docs/architecture.md "Device names"
  std::string runtime_dir = "/run/gpuumd";
  std::string log_level = "info";
  bool same_host = true;                   // handles of this daemon's own GPUs skip the fabric
  std::uint64_t fault_deadline_ms = 1000;  // then a page fault is fatal for its VM
  std::uint64_t turn_limit_ms = 0;         // longer turns of a reactor are logged; 0: not measured
};

// Reads `path` into `config`. kNotFound, or kInvalidArgument with the line ("file:12: ...") for
// what is no TOML, an unknown key, or a value of the wrong kind.
base::Result<void> load_config(const std::string& path, DaemonConfig& config);

// What does not make sense, in one line that says how it is meant: no device, a name of no known
// form, a runtime directory that is none.
base::Result<void> check_config(const DaemonConfig& config);

}  // namespace gpuumd
