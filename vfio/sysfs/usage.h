// Who uses a device: the processes that hold one of its nodes open, and what the kernel itself does
// with it. Nobody takes a device away from either.
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
                     // "vfio device"
};

// All descriptors for device nodes that the processes of this machine have open, read once.
class OpenNodes {
 public:
  using DeviceNumber = std::pair<unsigned, unsigned>;  // major, minor

  // Reads /proc. Processes that end meanwhile are left out.
  static OpenNodes scan(const Roots& roots);

  // Who has the node open, by its path below /dev or by its device number: a process in a container
  // has another path for it.
  std::vector<Holder> holders(const std::string& node, std::optional<DeviceNumber> number) const;
  // Who has the VFIO descriptor of the function open itself, where the kernel tells (6.18).
  std::vector<Holder> vfio_holders(const PciAddress& address) const;
  // Processes whose descriptors we may not see: for everything else than root that is most.
  std::size_t hidden() const { return hidden_; }

 private:
  struct Open {
    int pid;
    std::string target;  // of the link in /proc/PID/fd
    std::optional<DeviceNumber> number;
    std::string vfio_path;  // of a VFIO descriptor: the device's path in sysfs
  };
  void scan_process(const Roots& roots, int pid);
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

// Of what hangs below the function: DRM and KFD clients, displays, VFIO users, network interfaces
// that are up, mounted block devices, virtual functions.
Usage usage_of(const Roots& roots, const OpenNodes& nodes, const Function& function);

}  // namespace vfio::sysfs
