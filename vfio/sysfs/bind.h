// Taking devices from their drivers for vfio-pci, and giving them back (docs/vfio.md "Bind").
//
// A plan is made first, from what sysfs says, and refused as a whole; carrying it out is a list of
// writes to attributes, each with a deadline. No device that anybody uses is taken or given back.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "vfio/sysfs/bind_state.h"
#include "vfio/sysfs/inventory.h"

namespace vfio::sysfs {

struct Step {
  std::string what;              // "unbind from amdgpu"
  std::string path;              // the attribute
  std::string value;             // what is written; a new line alone empties an attribute
  bool restores_resets = false;  // as far as can be; the steps after it are made all the same
};

struct DevicePlan {
  PciAddress address;
  std::string from;             // driver now; empty: none
  std::string to;               // driver afterwards; empty: none, or what the kernel chooses
  bool kernel_chooses = false;  // who takes it afterwards
  Remembered before;
  bool was_remembered = false;
  std::vector<Step> steps;  // none: all is as it should be
  std::vector<std::string> warnings;
  std::vector<std::string> not_restored;  // by carry_out(): what is not as before, and why
};

struct Plan {
  bool binds = true;  // else: unbinds
  std::vector<DevicePlan> devices;
  std::size_t hidden_processes = 0;  // who may use a device unseen
};

struct BindOptions {
  bool any_kind = false;             // devices that gpuumd does not drive, too
  bool accept_deadly_reset = false;  // parts that do not survive their last close
};

// kNotFound: no such device, or vfio-pci is not loaded. kBusy: in use, or a member of its IOMMU
// group is under another driver and not in `addresses`. kUnsupported: no IOMMU, not our kind, or a
// reset that cannot be avoided would kill it. kInvalidArgument: an address twice, or none.
base::Result<Plan> plan_bind(const Roots& roots, const std::vector<PciAddress>& addresses,
                             const BindOptions& options);

// kNotFound: no such device, or the driver to give it back to is not loaded. kBusy: a process has
// it, or another member of its group, open. kUnsupported: not under vfio-pci. kInvalidArgument: an
// address twice, or none.
base::Result<Plan> plan_unbind(const Roots& roots, const BindState& state,
                               const std::vector<PciAddress>& addresses);

// Carries the plan out, device by device, and stops at the first error, which names the device and
// the step, and the devices that were done before it and stay so. What bind had done to that device
// is undone, except after kTimeout: then the kernel still holds it, and nothing more is written.
// kDeviceLost when the device went away. Reset methods that cannot be restored are no error:
// `not_restored` says so. `state` must be locked. Takes no longer than `patience`, and for undoing
// 10 s more.
base::Result<void> carry_out(const Roots& roots, Plan& plan, BindState& state,
                             std::chrono::milliseconds patience);

}  // namespace vfio::sysfs
