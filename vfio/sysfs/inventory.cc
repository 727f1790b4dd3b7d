#include "vfio/sysfs/inventory.h"

#include <unistd.h>

namespace vfio::sysfs {
namespace {

// Of one without a group that could be read.
std::string missing_group_text(const Candidate& candidate) {
  if (candidate.function.iommu_group)
    return "its IOMMU group " + std::to_string(*candidate.function.iommu_group) + " has gone";
  return "it is in no IOMMU group: the IOMMU is off or does not cover it (gpuctl doctor)";
}

// What keeps this process from the nodes of a bound device; empty: nothing. One of the two is
// enough.
std::string node_obstacle(const Roots& roots, const Candidate& candidate) {
  const auto group = roots.dev + "/" + candidate.group->dev_node();
  const auto device = roots.dev + "/vfio/devices/" + candidate.function.vfio_device;
  const bool has_device = !candidate.function.vfio_device.empty() && exists(device);
  if (has_device && ::access(device.c_str(), R_OK | W_OK) == 0) return {};
  if (::access(group.c_str(), R_OK | W_OK) == 0) return {};
  if (!has_device && !exists(group))
    return "neither " + group + " nor /dev/vfio/devices is there: is /dev a devtmpfs?";
  return "this user may not open " + (has_device ? device : group) + " (docs/vfio.md)";
}

// What of the kernel's resets keeps the device from being bound, or once bound from being opened;
// empty: nothing. With the remedy.
std::string reset_obstacle(const Roots& roots, const Candidate& candidate,
                           const base::Result<std::vector<std::string>>& methods) {
  const auto address = candidate.function.address.text();
  const auto may_open = check_opening(candidate.quirk, methods);
  const bool bound = is_vfio_driver(candidate.function.driver);
  if (!methods) return may_open ? std::string() : may_open.error().step;
  if (bound && !may_open)
    return may_open.error().step + " (gpuctl bind " + address + " keeps it from that)";
  const auto outlives =
      check_last_close(roots, candidate.function.address, candidate.quirk, *methods);
  if (outlives) return {};
  return outlives.error().step +
         (bound ? " (append ,accept-deadly-reset to the device's name: gpuumd --device " +
                      candidate.name() + ",accept-deadly-reset)"
                : " (gpuctl bind --accept-deadly-reset " + address + " takes it)");
}

void judge(const Roots& roots, const OpenNodes& nodes, Candidate& candidate,
           const base::Result<std::vector<std::string>>& methods) {
  const auto& function = candidate.function;
  const auto set = [&](Readiness readiness, std::string why) {
    candidate.readiness = readiness;
    candidate.why = std::move(why);
  };
  if (candidate.usage.in_use()) return set(Readiness::kInUse, candidate.usage.text());
  if (!candidate.group) return set(Readiness::kBlocked, missing_group_text(candidate));
  const bool bound = is_vfio_driver(function.driver);
  Group others = *candidate.group;
  if (!bound)
    std::erase_if(others.members,
                  [&](const Function& member) { return member.address == function.address; });
  if (auto obstacle = group_obstacle(others); !obstacle.empty())
    return set(Readiness::kBlocked, std::move(obstacle));
  if (bound)
    if (auto obstacle = group_user(roots, nodes, *candidate.group, function); !obstacle.empty())
      return set(Readiness::kInUse, std::move(obstacle));
  if (auto obstacle = reset_obstacle(roots, candidate, methods); !obstacle.empty())
    return set(Readiness::kBlocked, std::move(obstacle));
  if (!bound)
    return set(Readiness::kBindable,
               (function.driver.empty() ? std::string("no driver has it")
                                        : "driver " + function.driver + " has it") +
                   ": gpuctl bind " + function.address.text());
  if (candidate.group->no_iommu)
    return set(Readiness::kBlocked,
               "no-IOMMU mode: its group is not behind an IOMMU, and nothing would keep the device "
               "from all of memory");
  if (auto obstacle = node_obstacle(roots, candidate); !obstacle.empty())
    return set(Readiness::kBlocked, std::move(obstacle));
  set(Readiness::kReady, "");
}

Candidate examine_function(const Roots& roots, const OpenNodes& nodes, Function function) {
  Candidate candidate;
  candidate.function = std::move(function);
  auto& found = candidate.function;
  if (found.iommu_group)
    if (auto group = read_group(roots, *found.iommu_group)) candidate.group = std::move(*group);
  const auto methods = read_reset_methods(roots, found.address);
  if (methods)
    candidate.reset_methods = *methods;
  else if (methods.error().code != base::Errc::kNotFound)
    found.unread.push_back(methods.error().message());
  candidate.quirk = reset_quirk(found.vendor, found.device);
  candidate.usage = usage_of(roots, nodes, found);
  judge(roots, nodes, candidate, methods);
  return candidate;
}

}  // namespace

const char* to_string(Readiness readiness) {
  switch (readiness) {
    case Readiness::kReady:
      return "ready";
    case Readiness::kBindable:
      return "bindable";
    case Readiness::kInUse:
      return "in use";
    case Readiness::kBlocked:
      return "blocked";
  }
  return "unknown";
}

base::Result<Inventory> take_inventory(const Roots& roots, bool any) {
  auto functions = all_functions(roots);
  if (!functions) return std::unexpected(functions.error());
  Inventory inventory;
  std::optional<OpenNodes> nodes;
  for (auto& function : *functions) {
    if (!any && !is_our_kind(function)) continue;
    if (!nodes) nodes = OpenNodes::scan(roots);
    inventory.candidates.push_back(examine_function(roots, *nodes, std::move(function)));
  }
  inventory.hidden_processes = nodes ? nodes->hidden() : 0;
  return inventory;
}

base::Result<Candidate> examine(const Roots& roots, const OpenNodes& nodes,
                                const PciAddress& address) {
  auto function = read_function(roots, address);
  if (!function) return std::unexpected(function.error());
  return examine_function(roots, nodes, std::move(*function));
}

}  // namespace vfio::sysfs
