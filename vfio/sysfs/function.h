// One PCI function as sysfs describes it now. A snapshot: it may go away at any moment.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "vfio/sysfs/pci_address.h"
#include "vfio/sysfs/tree.h"

namespace vfio::sysfs {

struct BarInfo {
  unsigned index = 0;  // 0 to 5
  std::uint64_t size = 0;
  bool io = false;  // ports, not memory
  bool prefetchable = false;
  bool wide = false;  // 64-bit
};

struct Function {
  PciAddress address;
  std::uint16_t vendor = 0;
  std::uint16_t device = 0;
  std::uint32_t class_code = 0;  // 24 bits
  std::string driver;            // empty: none
  std::optional<unsigned> iommu_group;
  std::optional<int> numa_node;  // nullopt: the kernel does not say
  std::vector<BarInfo> bars;     // those that have a size
  std::string power_state;       // "D0", "D3hot", ...; empty: the kernel does not say
  std::string vfio_device;       // "vfio0", when bound to a VFIO driver that has it
  bool boot_vga = false;
  unsigned virtual_functions = 0;  // switched on at this physical function
  // Attributes that hold nonsense or may not be read, one text each. What they would have said
  // is missing above.
  std::vector<std::string> unread;

  std::string part() const;  // "1002:75f0"

  // PCI to PCI: it moves other devices' traffic and starts none of its own.
  bool is_bridge() const { return class_code >> 8 == 0x0604 || class_code >> 8 == 0x0609; }
};

// Whether this is a device of the kind that gpuumd drives (docs/hardware/pci.md "The function"):
// AMD, and a display controller or a processing accelerator.
bool is_our_kind(const Function& function);

// kNotFound when there is none there (any more). Vendor, device and class must be there; whatever
// else is malformed goes to `unread`.
base::Result<Function> read_function(const Roots& roots, const PciAddress& address);

// All functions of the machine, in the order of their addresses; one whose identity cannot be read
// or that goes away meanwhile is left out. kNotFound on a machine without PCI.
base::Result<std::vector<Function>> all_functions(const Roots& roots);

// A driver under which the kernel leaves the device to user space, or does nothing with it.
bool is_vfio_driver(std::string_view driver);
// Whether the kernel lets user space have a group in which `member` is: no driver, a VFIO driver,
// pci-stub, or a bridge.
bool is_harmless_in_group(const Function& member);

struct Group {
  unsigned id = 0;
  bool no_iommu = false;  // made by VFIO for a device without an IOMMU
  // The PCI functions. One whose identity cannot be read has its address, its driver and, in
  // `unread`, why not; the rest of it is empty.
  std::vector<Function> members;
  // Members that keep the group from user space and are no such function: devices of other buses
  // with a driver, and whatever has a driver that cannot be told. "PNP0103:00 (hpet)".
  std::vector<std::string> strangers;
  // Ranges that firmware wants mapped one to one; the kernel does not give such a group away.
  bool firmware_mapped = false;

  // Those of `members` that keep the group from user space.
  std::vector<const Function*> offenders() const;
  std::string dev_node() const;  // "vfio/7", "vfio/noiommu-0"; below /dev
};

// kNotFound when there is no such group.
base::Result<Group> read_group(const Roots& roots, unsigned id);

// "0000:03:00.1 (snd_hda_intel), 0000:03:00.2 (xhci_hcd)".
std::string names_of(const std::vector<const Function*>& functions);

// What stands in the way of the group's use through VFIO, in one line with the remedy; empty:
// nothing. No-IOMMU groups are judged by their members alone.
std::string group_obstacle(const Group& group);

}  // namespace vfio::sysfs
