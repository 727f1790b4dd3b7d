// The devices that gpuumd could drive, and what each still needs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "vfio/sysfs/function.h"
#include "vfio/sysfs/reset_policy.h"
#include "vfio/sysfs/usage.h"

namespace vfio::sysfs {

enum class Readiness : std::uint8_t {
  kReady,     // bound, its group whole, held by nobody: a daemon can open it now
  kBindable,  // not bound to vfio-pci; nothing keeps it from being bound
  kInUse,     // somebody uses it, a daemon of ours perhaps
  kBlocked,   // cannot be used as things are
};
const char* to_string(Readiness readiness);

struct Candidate {
  Function function;
  std::optional<Group> group;
  std::vector<std::string> reset_methods;  // that the kernel would try now
  const ResetQuirk* quirk = nullptr;
  Usage usage;
  Readiness readiness = Readiness::kBlocked;
  std::string why;  // one line with the remedy; empty when ready

  // "pci:0000:03:00.0", for gpuumd's --device.
  std::string name() const { return "pci:" + function.address.text(); }
};

struct Inventory {
  std::vector<Candidate> candidates;
  std::size_t hidden_processes = 0;  // whose descriptors could not be looked at
};

// All functions of our kind, or of any kind with `any`. kNotFound on a machine without PCI.
// Takes a second for each device whose lock somebody keeps, at most.
base::Result<Inventory> take_inventory(const Roots& roots, bool any = false);

// The same for one function, of whatever kind.
base::Result<Candidate> examine(const Roots& roots, const OpenNodes& nodes,
                                const PciAddress& address);

}  // namespace vfio::sysfs
