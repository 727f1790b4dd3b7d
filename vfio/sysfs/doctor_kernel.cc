// Drivers and nodes of the kernel.
#include <unistd.h>

#include <charconv>

#include "vfio/sysfs/doctor.h"
#include "vfio/sysfs/function.h"

namespace vfio::sysfs::doctor {
namespace {

// (6, 18) of "6.18.44-1"; (0, 0) when it is none.
std::pair<unsigned, unsigned> version_of(const std::string& release) {
  unsigned major = 0, minor = 0;
  const char* end = release.data() + release.size();
  const auto [dot, error] = std::from_chars(release.data(), end, major);
  if (error != std::errc{} || dot == end || *dot != '.') return {};
  if (std::from_chars(dot + 1, end, minor).ec != std::errc{}) return {};
  return {major, minor};
}

std::string load(const Roots& roots, const std::string& module, const std::string& option) {
  if (!exists(roots.proc + "/modules"))
    return "this kernel loads no modules: it must be built with " + option;
  return "modprobe " + module + ", and for every start: echo " + module +
         " > /etc/modules-load.d/" + module + ".conf";
}

bool has_type1(const Roots& roots) {
  return exists(roots.sys + "/module/vfio_iommu_type1") || exists(roots.dev + "/vfio/vfio");
}

bool has_iommufd(const Roots& roots) { return exists(roots.dev + "/iommu"); }

// The nodes through which this user could open the devices that are bound now.
std::vector<std::string> nodes_in_use(const Roots& roots) {
  std::vector<std::string> nodes;
  if (has_iommufd(roots)) nodes.push_back(roots.dev + "/iommu");
  if (exists(roots.dev + "/vfio/vfio")) nodes.push_back(roots.dev + "/vfio/vfio");
  for (const auto& name : names_in(roots.dev + "/vfio"))
    if (name != "vfio" && name != "devices") nodes.push_back(roots.dev + "/vfio/" + name);
  for (const auto& name : names_in(roots.dev + "/vfio/devices"))
    nodes.push_back(roots.dev + "/vfio/devices/" + name);
  return nodes;
}

}  // namespace

Check check_driver(const Roots& roots) {
  Check check{"vfio-pci"};
  if (exists(roots.pci_drivers() + "/vfio-pci")) {
    check.found = "loaded";
    return check;
  }
  check.level = Level::kProblem;
  check.found = "driver vfio-pci is not there";
  check.remedy = load(roots, "vfio-pci", "CONFIG_VFIO_PCI");
  return check;
}

Check check_iommufd(const Roots& roots, const Surroundings& surroundings) {
  Check check{"iommufd"};
  const auto version = version_of(surroundings.kernel_release);
  const bool nodes = exists(roots.dev + "/vfio/devices");
  const bool bound = !names_in(roots.sys + "/class/vfio-dev").empty();
  if (has_iommufd(roots) && (nodes || !bound)) {
    check.found = nodes ? "there, with device nodes" : "there; device nodes come with binding";
    if (version < std::pair(6u, 13u))
      check.found += "; memory is mapped by address (by file from Linux 6.13 on)";
    return check;
  }
  check.level = has_type1(roots) ? Level::kWarning : Level::kProblem;
  check.found = !has_iommufd(roots) ? "no /dev/iommu" : "/dev/iommu, but no /dev/vfio/devices";
  check.found += check.level == Level::kWarning ? ": devices are used by group" : "";
  if (version < std::pair(6u, 6u))
    check.remedy = "Linux 6.6 has it; this is " + surroundings.kernel_release;
  else
    check.remedy =
        "a kernel with CONFIG_IOMMUFD and CONFIG_VFIO_DEVICE_CDEV (Debian's have "
        "neither); where they are modules, modprobe iommufd";
  return check;
}

Check check_group_container(const Roots& roots) {
  Check check{"vfio_iommu_type1"};
  if (has_type1(roots)) {
    check.found = "there: devices can be used by group";
    return check;
  }
  check.level = has_iommufd(roots) ? Level::kWarning : Level::kProblem;
  check.found = has_iommufd(roots) ? "not there: devices are used by iommufd alone"
                                   : "neither this nor iommufd is there";
  check.remedy = load(roots, "vfio_iommu_type1", "CONFIG_VFIO_IOMMU_TYPE1");
  return check;
}

Check check_nodes(const Roots& roots, const Surroundings& surroundings) {
  Check check{"/dev/vfio"};
  const auto nodes = nodes_in_use(roots);
  std::vector<std::string> closed;
  for (const auto& node : nodes)
    if (::access(node.c_str(), R_OK | W_OK) != 0) closed.push_back(node);
  if (nodes.empty()) {
    check.found = "no node yet: they come with the drivers and with binding";
  } else if (closed.empty()) {
    check.found = "this user may open " + joined(nodes);
  } else {
    check.level = Level::kWarning;
    check.found = "user " + std::to_string(surroundings.uid) + " may not open " + joined(closed);
    check.remedy =
        "run the daemon as root, or give its group the nodes by a udev rule "
        "(docs/vfio.md)";
  }
  return check;
}

}  // namespace vfio::sysfs::doctor
