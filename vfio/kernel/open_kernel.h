// Names of devices behind the kernel's VFIO, and how one is opened: what sysfs says of it is
// looked at first, so that each reason why it cannot be had is one line with its remedy.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "vfio/kernel/iommufd_space.h"
#include "vfio/kernel/kernel_device.h"
#include "vfio/sysfs/pci_address.h"
#include "vfio/sysfs/tree.h"

namespace vfio {

enum class KernelBackend : std::uint8_t { kBest, kIommufd, kGroup };

// "pci:0000:03:00.0[,backend=iommufd|group][,accept-deadly-reset][,i-know-that-this-device-can-overwrite-all-memory]"
struct KernelName {
  sysfs::PciAddress address;
  KernelBackend backend = KernelBackend::kBest;  // iommufd where it can be had, else the group
  bool without_iommu = false;        // a device that no IOMMU holds is taken all the same
  bool accept_deadly_reset = false;  // and one that the kernel's reset at its last close kills

  static constexpr std::string_view kPrefix = "pci:";
  // kInvalidArgument with what is wrong and what is known; also for an option given twice.
  static base::Result<KernelName> parse(std::string_view name);
};

struct KernelOptions {
  sysfs::Roots roots;  // those of this machine, unless a test has others
  MapBy map_by = MapBy::kFileWherePossible;
};

// Tries once. Nothing stays open when it fails, and nothing is changed: binding is gpuctl's.
// sysfs is looked at before the device is opened, and not afterwards: while it is open, the kernel
// may hold locks that sysfs needs.
//   kNotFound     no such PCI function, or a node below /dev is missing
//   kPermission   not bound to a VFIO driver; the group is not viable; a node may not be opened
//   kUnsupported  no IOMMU; firmware keeps the group; no reset that the part would survive;
//                 interrupts that are not remapped
//   kBusy         somebody has it open, or another device of its IOMMU group
//   kDeviceLost   configuration space reads all ones
base::Result<std::unique_ptr<KernelDevice>> open_kernel_device(std::string name,
                                                               const KernelName& what,
                                                               const KernelOptions& options = {});

}  // namespace vfio
