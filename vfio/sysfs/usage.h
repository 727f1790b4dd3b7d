// Who uses a device: the processes that have one of its nodes open or mapped, and what the kernel
// itself does with it. Nobody takes a device away from either.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vfio/sysfs/function.h"
#include "vfio/sysfs/tree.h"

namespace vfio::sysfs {

struct Holder {
  int pid = 0;
  std::string command;
  std::string node;  // what it holds, below /dev: "dri/renderD128"; of a bare VFIO descriptor
                     // "vfio device", of a BAR's file in sysfs "resource0"
};

// All device nodes, and files of BARs in sysfs, that the processes of this machine have open or
// mapped: a mapping holds the device without its descriptor. Read once.
class OpenNodes {
 public:
  using DeviceNumber = std::pair<unsigned, unsigned>;  // major, minor

  // Reads /proc. Processes that end meanwhile are left out. The list of a process's mappings comes
  // when no other thread of it changes them: in the worst case, one that waits for a device's
  // reset, after a minute.
  static OpenNodes scan(const Roots& roots);

  // Who has the node, by its path below /dev or by its device number: a process in a container has
  // another path for it. For mappings root alone is told the number.
  std::vector<Holder> holders(const std::string& node, std::optional<DeviceNumber> number) const;
  // Who has the VFIO descriptor of the function open itself, where the kernel tells (6.18).
  std::vector<Holder> vfio_holders(const PciAddress& address) const;
  // Who has one of the function's BARs through its files resource0 to resource5 in sysfs.
  std::vector<Holder> bar_holders(const PciAddress& address) const;
  // Processes whose descriptors we may not see: for everything else than root that is most.
  std::size_t hidden() const { return hidden_; }

 private:
  struct Open {
    int pid;
    std::string target;  // of the link in /proc/PID/fd, or the path in /proc/PID/maps
    std::optional<DeviceNumber> number;
    std::string vfio_path;  // of a VFIO descriptor: the device's path in sysfs
  };
  void scan_process(const Roots& roots, int pid);
  void scan_mappings(const std::string& process, int pid);
  void keep(Open open);
  Holder holder(int pid, std::string node) const;

  std::vector<Open> open_;
  std::string proc_;
  std::size_t hidden_ = 0;
};

struct Usage {
  std::vector<Holder> holders;
  // What is not a process: "it drives the display DP-1", "network interface eth0 is up", one
  // text each.
  std::vector<std::string> activities;

  bool in_use() const { return !holders.empty() || !activities.empty(); }
  std::string text() const;  // "held by amdtool (pid 71, dri/renderD128); ..."
};

// Of what hangs below the function: clients of DRM, accel, frame buffers and KFD, displays, VFIO
// users, users of its BARs, network interfaces that are up, mounted block devices, virtual
// functions.
Usage usage_of(const Roots& roots, const OpenNodes& nodes, const Function& function);

// What keeps a device under VFIO from being opened because of another device of its group, in one
// line with the remedy; empty: nothing. All DMA of a group has one owner, and each of our devices
// has an IOVA space of its own. Who has the group's node may have any GPU of it, the function
// itself, too; then the line names them all.
std::string group_user(const Roots& roots, const OpenNodes& nodes, const Group& group,
                       const Function& function);

}  // namespace vfio::sysfs
