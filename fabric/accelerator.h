// The state of one accelerator on the fabric and the rules by which its configuration moves it
// (docs/hardware/nht.md, "Accelerator states").
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "base/result.h"
#include "fabric/types.h"

namespace fabric {

// The values are those of the control surface. They are names, not an order: no code compares them
// with < or > (errata A18).
enum class AccelState : std::uint8_t {
  kUnconfigured = 0,
  kPodConfigured = 1,
  kVirtualPodConfigured = 2,
  kReady = 3,
  kActive = 4,
  kError = 5,
};
std::string_view to_string(AccelState state);

// How far the controller got, as the security processor reports it (docs/hardware/psp.md).
enum class ConfigState : std::uint8_t {
  kIdle = 0,
  kPhysicalPod = 1,
  kVirtualPod = 2,
  kPause = 3,
  kStation = 4,
  kComplete = 5,
  kInvalid = 0xFF,
};

// The configuration record, decoded by the caller, not yet believed.
struct PodConfig {
  std::uint32_t accel_id = 0xFFFF'FFFF;
  std::array<std::uint8_t, 16> ppod_id{};
  std::uint32_t ppod_size = 0;
  std::uint32_t vpod_id = 0;  // 0 or 0xFFFF_FFFF: none
  std::uint32_t vpod_size = 0;
  AccelSet members;  // active bitmap, this accelerator included
  std::uint32_t addr_mode = 0;
  ConfigState state = ConfigState::kIdle;
  friend bool operator==(const PodConfig&, const PodConfig&) = default;

  bool has_virtual_pod() const { return vpod_id != 0 && vpod_id != 0xFFFF'FFFF && vpod_size != 0; }
};

// kProtocol with the name of the bad field.
base::Result<void> check_physical_pod(const PodConfig& config);
base::Result<void> check_virtual_pod(const PodConfig& config);
// The state that `config` stands for, short of kActive; kError when it contradicts itself.
AccelState state_of(const PodConfig& config);
// Accelerators of one host must be in the same pods in the same way. kProtocol otherwise.
base::Result<void> check_same_host(const PodConfig& a, const PodConfig& b);

}  // namespace fabric
