#include "daemon/ipc/status.h"

namespace gpuumd {

gpuumd_status to_status(base::Errc code) {
  using base::Errc;
  switch (code) {
    case Errc::kInvalidArgument:
      return GPUUMD_INVALID_ARGUMENT;
    case Errc::kOutOfRange:
      return GPUUMD_OUT_OF_RANGE;
    case Errc::kExists:
      return GPUUMD_EXISTS;
    case Errc::kNotFound:
      return GPUUMD_NOT_FOUND;
    case Errc::kPermission:
      return GPUUMD_PERMISSION;
    case Errc::kNoMemory:
      return GPUUMD_NO_MEMORY;
    case Errc::kNoSpace:
      return GPUUMD_NO_SPACE;
    case Errc::kLimit:
      return GPUUMD_LIMIT;
    case Errc::kTimeout:
      return GPUUMD_TIMEOUT;
    case Errc::kDisconnected:
      return GPUUMD_DISCONNECTED;
    case Errc::kDeviceLost:
      return GPUUMD_DEVICE_LOST;
    case Errc::kDeviceError:
      return GPUUMD_DEVICE_ERROR;
    case Errc::kProtocol:
      return GPUUMD_PROTOCOL;
    case Errc::kUnsupported:
      return GPUUMD_UNSUPPORTED;
    case Errc::kRevoked:
      return GPUUMD_REVOKED;
    case Errc::kPeerLost:
      return GPUUMD_PEER_LOST;
    case Errc::kRefused:
      return GPUUMD_REFUSED;
    case Errc::kFault:
      return GPUUMD_FAULT;
    case Errc::kReset:
      return GPUUMD_RESET;
    case Errc::kBusy:  // of whoever serves the device; it passes
    case Errc::kAgain:
      return GPUUMD_AGAIN;
    case Errc::kSystem:
      return GPUUMD_SYSTEM;
  }
  return GPUUMD_SYSTEM;
}

}  // namespace gpuumd
