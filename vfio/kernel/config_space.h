// Configuration space of a device of the kernel's VFIO, and what it tells of the device's health.
//
// The kernel keeps copies of some registers (vendor and device id among them) and answers reads of
// those itself; the class code and revision at 0x08 always come from the device, and all ones
// there is no class that exists: who reads that has no device.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "vfio/kernel/device_file.h"
#include "vfio/kernel/loss.h"

namespace vfio {

// Reactor thread. `file` and `loss` must outlive it. Every call gives kDeviceLost when the device
// is lost, and notes a loss that it finds.
class ConfigSpace {
 public:
  // `region`: where in the file it lies. Touches the device not yet.
  ConfigSpace(DeviceFile& file, Loss& loss, KernelRegion region)
      : file_(&file), loss_(&loss), region_(std::move(region)) {}
  // Asks the kernel where it lies. kProtocol when there is none.
  static base::Result<ConfigSpace> open(DeviceFile& file, Loss& loss);

  // `width` is 1, 2 or 4, `offset` a multiple of it.
  base::Result<std::uint32_t> read(std::uint32_t offset, unsigned width);
  base::Result<void> write(std::uint32_t offset, unsigned width, std::uint32_t value);

  // Whether the device is there: asks it.
  bool answers();

  // Brings the function to D0 if it says that it sleeps; waits up to 100 ms. kDeviceError when it
  // stays asleep.
  base::Result<void> wake_up();
  base::Result<void> set_memory_space();
  // Bus mastering off, whatever state the device is in: it starts no transfer any more.
  void silence();

 private:
  base::Result<std::uint32_t> fetch(std::uint32_t offset, unsigned width) const;
  base::Result<std::uint32_t> power_capability();  // 0: none

  DeviceFile* file_;
  Loss* loss_;
  KernelRegion region_;
};

}  // namespace vfio
