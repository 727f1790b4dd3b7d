#include "libgpuumd/error.h"

#include <cerrno>

namespace gpuumd::client {
namespace {

// The only thing that outlives a call, and one a thread.
std::string& last_error() {
  thread_local std::string text;
  return text;
}

}  // namespace

std::unexpected<Failure> system_failure(const std::string& what, int error) {
  gpuumd_status status = GPUUMD_SYSTEM;
  if (error == ENOMEM || error == EMFILE || error == ENFILE) status = GPUUMD_NO_MEMORY;
  if (error == EACCES || error == EPERM) status = GPUUMD_PERMISSION;
  return fail(status, what + ": " + std::strerror(error));
}

std::unexpected<Failure> system_failure(const base::Error& error) {
  if (error.sys != 0) return system_failure(error.step, error.sys);
  return fail(GPUUMD_SYSTEM, error.message());
}

gpuumd_status report(Failure failure) {
  last_error() = std::move(failure.text);
  return failure.status;
}

}  // namespace gpuumd::client

extern "C" {

const char* gpuumd_last_error(void) { return gpuumd::client::last_error().c_str(); }

const char* gpuumd_status_text(gpuumd_status status) {
  switch (status) {
    case GPUUMD_OK:
      return "ok";
    case GPUUMD_INVALID_ARGUMENT:
      return "invalid argument";
    case GPUUMD_OUT_OF_RANGE:
      return "out of range";
    case GPUUMD_EXISTS:
      return "exists";
    case GPUUMD_NOT_FOUND:
      return "not found";
    case GPUUMD_PERMISSION:
      return "no permission";
    case GPUUMD_NO_MEMORY:
      return "out of host memory";
    case GPUUMD_NO_SPACE:
      return "out of space";
    case GPUUMD_LIMIT:
      return "limit reached";
    case GPUUMD_TIMEOUT:
      return "timed out";
    case GPUUMD_DISCONNECTED:
      return "disconnected";
    case GPUUMD_DEVICE_LOST:
      return "device lost";
    case GPUUMD_DEVICE_ERROR:
      return "device error";
    case GPUUMD_PROTOCOL:
      return "protocol error";
    case GPUUMD_UNSUPPORTED:
      return "not supported";
    case GPUUMD_REVOKED:
      return "revoked";
    case GPUUMD_PEER_LOST:
      return "peer lost";
    case GPUUMD_REFUSED:
      return "refused by the peer";
    case GPUUMD_FAULT:
      return "GPU fault";
    case GPUUMD_RESET:
      return "reset";
    case GPUUMD_AGAIN:
      return "try again";
    case GPUUMD_SYSTEM:
      return "system call failed";
    case GPUUMD_WRONG_PROCESS:
      return "wrong process";
    case GPUUMD_WRONG_VERSION:
      return "wrong version";
  }
  return "unknown status";
}

}  // extern "C"
