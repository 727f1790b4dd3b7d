// The PCI side of a GPU: who it is, which BARs it has, and its command register.
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "daemon/gpu/registers/register_io.h"
#include "vfio/pci_device.h"

namespace gpuumd {

// The BARs that the driver uses besides the registers (register_bus.h). Must not outlive the
// device.
struct GpuBars {
  std::unique_ptr<vfio::Bar> vram;       // 0
  std::unique_ptr<vfio::Bar> doorbells;  // 2
  std::uint64_t doorbell_address = 0;    // of BAR 2 on the bus
};

// Checks vendor and class (docs/hardware/pci.md, "The function"), opens BARs 0 and 2, and switches
// memory space on and bus mastering off. kUnsupported names what is not as it should be.
base::Result<GpuBars> set_up_pci(vfio::PciDevice& device);

// Memory space on, bus mastering off, INTx off: again, after a reset that PCI did not see.
base::Result<void> enable_memory(vfio::PciDevice& device);

// Lets the function assert its INTx line, or forbids it.
base::Result<void> set_intx(vfio::PciDevice& device, bool on);

// Lets the device reach host memory, or stops it. Off is read back: nothing of the device's is in
// flight in posted writes after it returns.
base::Result<void> set_bus_master(vfio::PciDevice& device, bool on);

}  // namespace gpuumd
