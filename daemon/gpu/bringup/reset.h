// Bring-up begins with a device as after power on: reset by its function, or, where that must not
// or cannot be (docs/vfio.md, "Reset"), by its security processor.
#pragma once

#include "daemon/gpu/bringup/bring_up.h"
#include "daemon/gpu/bringup/steps.h"
#include "vfio/pci_device.h"

namespace gpuumd {

// Resets the function. Where the backend refuses to (kUnsupported), leaves the reason in
// `boot.function_reset_refused` and goes on; any other error ends bring-up.
Step reset_step(vfio::PciDevice& device, BootState& boot);

// After PciReady, which has turned bus mastering off. Does nothing to a function that was reset,
// nor to a device that has not booted since power on: nothing runs on it. Else, and where the mark
// that an earlier driver left says that the reset has done nothing, the mode-1 reset of
// docs/hardware/psp.md, and the command register again. Leaves the mark.
Step mode1_reset_step(vfio::PciDevice& device, BootState& boot);

// Whether somebody has reset the device since discovery: the mark is gone, and the size of VRAM,
// which a reset keeps, says that registers are still answered. Reads two registers.
bool reset_since(const BootState& boot);

}  // namespace gpuumd
