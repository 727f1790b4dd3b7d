#include "fabric/accelerator.h"

namespace fabric {

std::string_view to_string(AccelState state) {
  switch (state) {
    case AccelState::kUnconfigured:
      return "UNCONFIGURED";
    case AccelState::kPodConfigured:
      return "PPOD_CONFIGURED";
    case AccelState::kVirtualPodConfigured:
      return "VPOD_CONFIGURED";
    case AccelState::kReady:
      return "READY";
    case AccelState::kActive:
      return "ACTIVE";
    case AccelState::kError:
      return "ERROR";
  }
  return "?";
}

base::Result<void> check_physical_pod(const PodConfig& config) {
  if (config.ppod_size < 1 || config.ppod_size > kMaxAccelerators) {
    return base::fail(Errc::kProtocol, "size of the physical pod");
  }
  if (config.accel_id >= config.ppod_size) return base::fail(Errc::kProtocol, "accelerator id");
  return {};
}

base::Result<void> check_virtual_pod(const PodConfig& config) {
  if (auto physical = check_physical_pod(config); !physical) return physical;
  if (!config.has_virtual_pod()) return base::fail(Errc::kProtocol, "virtual pod id");
  if (config.vpod_size > config.ppod_size) {
    return base::fail(Errc::kProtocol, "size of the virtual pod");
  }
  if (config.members.count() != config.vpod_size) {
    return base::fail(Errc::kProtocol, "number of active accelerators");
  }
  if (!config.members.test(config.accel_id)) {
    return base::fail(Errc::kProtocol, "active accelerators without this one");
  }
  for (std::size_t id = config.ppod_size; id < config.members.size(); ++id) {
    if (config.members.test(id)) return base::fail(Errc::kProtocol, "active accelerator id");
  }
  if (config.addr_mode > 1) return base::fail(Errc::kProtocol, "address mode");
  return {};
}

AccelState state_of(const PodConfig& config) {
  switch (config.state) {
    case ConfigState::kIdle:
      return AccelState::kUnconfigured;
    case ConfigState::kPhysicalPod:
      return check_physical_pod(config) ? AccelState::kPodConfigured : AccelState::kError;
    case ConfigState::kVirtualPod:
    case ConfigState::kPause:
    case ConfigState::kStation:
      return check_virtual_pod(config) ? AccelState::kVirtualPodConfigured : AccelState::kError;
    case ConfigState::kComplete:
      if (check_physical_pod(config) && !config.has_virtual_pod()) {
        return AccelState::kPodConfigured;
      }
      return check_virtual_pod(config) ? AccelState::kReady : AccelState::kError;
    case ConfigState::kInvalid:
      return AccelState::kError;
  }
  return AccelState::kError;
}

base::Result<void> check_same_host(const PodConfig& a, const PodConfig& b) {
  if (a.ppod_id != b.ppod_id || a.ppod_size != b.ppod_size) {
    return base::fail(Errc::kProtocol, "accelerators of this host in different physical pods");
  }
  if (a.has_virtual_pod() != b.has_virtual_pod()) {
    return base::fail(Errc::kProtocol, "accelerators of this host: only some in a virtual pod");
  }
  if (a.has_virtual_pod() && (a.vpod_id != b.vpod_id || a.vpod_size != b.vpod_size ||
                              a.addr_mode != b.addr_mode || a.members != b.members)) {
    return base::fail(Errc::kProtocol, "accelerators of this host in different virtual pods");
  }
  if (a.accel_id == b.accel_id) return base::fail(Errc::kProtocol, "accelerator id used twice");
  return {};
}

}  // namespace fabric
