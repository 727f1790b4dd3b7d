// Which resets a part survives (docs/vfio.md "Reset").
//
// The kernel resets a device by the first of its reset methods that works: when a process opens its
// VFIO descriptor, on VFIO_DEVICE_RESET, and when the last descriptor is closed. Some parts do not
// survive some methods and stay off the bus until the machine is started anew. For them the list of
// methods (sysfs attribute reset_method) is cut to what they survive before anybody opens them.
//
// A part that is not in the table survives every reset, as far as anybody has said.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "vfio/sysfs/pci_address.h"
#include "vfio/sysfs/tree.h"

namespace vfio::sysfs {

// A part that must not be reset in the ways of forbidden_methods().
struct ResetQuirk {
  std::uint16_t vendor;
  std::uint16_t device;
  std::string_view part;  // "MI300X"
  bool reported;          // else: of the same family as one of which it is reported
};

// nullptr: none. Lives for ever.
const ResetQuirk* reset_quirk(std::uint16_t vendor, std::uint16_t device);

// In the kernel's names: flr, af_flr, bus, cxl_bus. A method with a name that nobody knew when this
// was written counts as forbidden too.
bool is_forbidden(std::string_view method);

// What is left of `methods` for this part, in their order; all of them without a quirk.
std::vector<std::string> harmless_methods(const ResetQuirk* quirk,
                                          std::span<const std::string> methods);

// May a process ask the kernel for a reset while `methods` is what the kernel would try?
// kUnsupported, with the reason, when one of them would kill the part, or when there is none.
base::Result<void> check_reset(std::uint16_t vendor, std::uint16_t device,
                               std::span<const std::string> methods);

// Whether a process may open such a device: the kernel then resets it by itself. `methods` are what
// it would try, an error when they could not be read, which comes back for a part that some kill.
// kUnsupported with the reason.
base::Result<void> check_opening(const ResetQuirk* quirk,
                                 const base::Result<std::vector<std::string>>& methods);

// Whether the part outlives being closed by its last user once its methods are cut to the harmless
// ones: without any left the kernel resets the bus, where there is a bridge above. kUnsupported
// with the reason.
base::Result<void> check_last_close(const Roots& roots, const PciAddress& address,
                                    const ResetQuirk* quirk, std::span<const std::string> methods);

// That a part which some resets kill has no attribute to cut.
base::Error no_methods_to_cut(const ResetQuirk& quirk);

// What the attribute reset_method holds now; empty when the kernel has no method, or none is
// allowed. kNotFound when the function has gone or the kernel is older than the attribute (5.15);
// kTimeout when whoever holds the device's lock keeps it for a second.
base::Result<std::vector<std::string>> read_reset_methods(const Roots& roots,
                                                          const PciAddress& address);

}  // namespace vfio::sysfs
