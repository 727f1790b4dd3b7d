// What a shell learns from gpuctl (docs/gpuctl.md "Exit codes").
#pragma once

#include "base/result.h"
#include "gpuumd/gpuumd.h"

namespace gpuctl {

enum ExitCode : int {
  kOk = 0,
  kFailed = 1,  // whatever has no code of its own
  kUsage = 2,
  kNoDaemon = 3,  // nobody listens there, or who does went away or does not run
  kTimeout = 4,
  kNotFound = 5,  // no such device
  kPermission = 6,
  kDeviceLost = 7,
  kBusy = 8,  // bind, unbind: somebody uses the device, or its group is shared
};

ExitCode exit_code(gpuumd_status status);
ExitCode exit_code(base::Errc code);

}  // namespace gpuctl
