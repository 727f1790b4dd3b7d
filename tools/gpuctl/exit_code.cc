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

ExitCode exit_code(base::Errc code) {
  switch (code) {
    case base::Errc::kInvalidArgument:
      return kUsage;
    case base::Errc::kTimeout:
      return kTimeout;
    case base::Errc::kNotFound:
      return kNotFound;
    case base::Errc::kPermission:
      return kPermission;
    case base::Errc::kDeviceLost:
      return kDeviceLost;
    case base::Errc::kBusy:
      return kBusy;
    default:
      return kFailed;
  }
}

}  // namespace gpuctl
