#include "tools/gpuctl/exit_code.h"

namespace gpuctl {

ExitCode exit_code(gpuumd_status status) {
  switch (status) {
    case GPUUMD_OK:
      return kOk;
    case GPUUMD_DISCONNECTED:
      return kNoDaemon;
    case GPUUMD_TIMEOUT:
      return kTimeout;
    case GPUUMD_NOT_FOUND:
      return kNotFound;
    case GPUUMD_PERMISSION:
      return kPermission;
    case GPUUMD_DEVICE_LOST:
      return kDeviceLost;
    default:
      return kFailed;
  }
}

}  // namespace gpuctl
