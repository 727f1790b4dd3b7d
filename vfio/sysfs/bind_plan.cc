#include <algorithm>

#include "vfio/sysfs/bind.h"
#include "vfio/sysfs/guarded_io.h"

namespace vfio::sysfs {
namespace {

using base::Errc;

constexpr const char* kVfio = "vfio-pci";
constexpr std::chrono::seconds kReadPatience{2};

// An attribute that another process may keep from us; nullopt: the kernel does not have it.
base::Result<std::optional<std::string>> attribute(const std::string& path) {
  auto text = read_guarded(path, kReadPatience);
  if (text) return std::optional(std::move(*text));
  if (text.error().code == Errc::kNotFound) return std::optional<std::string>();
  return std::unexpected(text.error());
}

base::Result<Remembered> remembered_now(const Roots& roots, const Function& function) {
  const auto directory = roots.function(function.address);
  auto forced = attribute(directory + "/driver_override");
  if (!forced) return std::unexpected(forced.error());
  auto reset = attribute(directory + "/reset_method");
  if (!reset) return std::unexpected(reset.error());
  auto power = attribute(directory + "/power/control");
  if (!power) return std::unexpected(power.error());
  const bool none = !*forced || **forced == "(null)";
  return Remembered{function.driver, none ? "" : **forced, std::move(*reset), std::move(*power),
                    function.part()};
}

base::Result<void> check_list(const std::vector<PciAddress>& addresses) {
  if (addresses.empty()) return base::fail(Errc::kInvalidArgument, "no device named");
  for (auto it = addresses.begin(); it != addresses.end(); ++it)
    if (std::find(addresses.begin(), it, *it) != it)
      return base::fail(Errc::kInvalidArgument, it->text() + " is named twice");
  return {};
}

bool contains(const std::vector<PciAddress>& addresses, const PciAddress& address) {
  return std::find(addresses.begin(), addresses.end(), address) != addresses.end();
}

bool no_iommu_mode(const Roots& roots) {
  return read_text(roots.sys + "/module/vfio/parameters/enable_unsafe_noiommu_mode").value_or("") ==
         "Y";
}

// A function that is no GPU but stands in the way of one that is bound with it.
bool is_companion(const Candidate& candidate, const std::vector<PciAddress>& addresses) {
  if (!candidate.group) return false;
  for (const auto& member : candidate.group->members)
    if (contains(addresses, member.address) && is_our_kind(member)) return true;
  return false;
}

base::Result<void> check_group(const Candidate& candidate,
                               const std::vector<PciAddress>& addresses) {
  Group others = *candidate.group;
  std::erase_if(others.members,
                [&](const Function& member) { return contains(addresses, member.address); });
  const auto obstacle = group_obstacle(others);
  if (!obstacle.empty())
    return base::fail(others.firmware_mapped ? Errc::kUnsupported : Errc::kBusy,
                      candidate.function.address.text() + ": " + obstacle);
  return {};
}

base::Result<void> check_bindable(const Roots& roots, const Candidate& candidate,
                                  const std::vector<PciAddress>& addresses,
                                  const BindOptions& options) {
  const auto name = candidate.function.address.text();
  const bool bound = is_vfio_driver(candidate.function.driver);
  if (!options.any_kind && !is_our_kind(candidate.function) && !is_companion(candidate, addresses))
    return base::fail(Errc::kUnsupported,
                      name + " is no GPU that gpuumd drives (--any takes it all the same)");
  if (candidate.function.is_bridge())
    return base::fail(Errc::kUnsupported, name + " is a bridge; it can stay where it is");
  if (!bound && candidate.usage.in_use())
    return base::fail(Errc::kBusy, name + " is in use: " + candidate.usage.text());
  if (!candidate.group && !no_iommu_mode(roots))
    return base::fail(Errc::kUnsupported,
                      name +
                          ": no IOMMU group: the IOMMU is off or does not cover it (gpuctl "
                          "doctor says what to do)");
  return candidate.group ? check_group(candidate, addresses) : base::Result<void>{};
}

// What must be so before anybody opens it, for a part that some resets kill.
base::Result<void> plan_reset(const Roots& roots, const Candidate& candidate,
                              const BindOptions& options, DevicePlan& plan) {
  if (candidate.quirk == nullptr) return {};
  const std::string part(candidate.quirk->part);
  if (!plan.before.reset_method)
    return base::fail_within(plan.address.text(), no_methods_to_cut(*candidate.quirk));
  const auto all = words(*plan.before.reset_method);
  const auto kept = harmless_methods(candidate.quirk, all);
  if (kept != all)
    plan.steps.push_back({"keep the kernel from resets that kill this part (" + part + ")",
                          roots.function(plan.address) + "/reset_method",
                          joined(kept, " ") + "\n"});
  const auto outlives = check_last_close(roots, plan.address, candidate.quirk, all);
  if (outlives) return {};
  if (!options.accept_deadly_reset)
    return base::fail(Errc::kUnsupported, plan.address.text() + ": " + outlives.error().step +
                                              " (--accept-deadly-reset binds it)");
  plan.warnings.push_back(outlives.error().step);
  return {};
}

base::Result<DevicePlan> plan_device(const Roots& roots, const Candidate& candidate,
                                     const BindOptions& options) {
  DevicePlan plan;
  const auto& function = candidate.function;
  plan.address = function.address;
  plan.from = function.driver;
  plan.to = kVfio;
  auto before = remembered_now(roots, function);
  if (!before) return std::unexpected(before.error());
  plan.before = std::move(*before);
  const auto directory = roots.function(plan.address);
  const auto address = plan.address.text();
  const bool bound = is_vfio_driver(function.driver);
  if (bound) plan.to = function.driver;
  if (!bound) {
    plan.steps.push_back(
        {"let vfio-pci alone have it", directory + "/driver_override", "vfio-pci\n"});
    if (!function.driver.empty())
      plan.steps.push_back({"unbind from " + function.driver,
                            roots.pci_drivers() + "/" + function.driver + "/unbind", address});
  }
  if (auto done = plan_reset(roots, candidate, options, plan); !done)
    return std::unexpected(done.error());
  if (!bound)
    plan.steps.push_back({"bind to vfio-pci", roots.sys + "/bus/pci/drivers_probe", address});
  if (plan.before.power_control && (!bound || *plan.before.power_control != "on"))
    plan.steps.push_back({"keep it in D0", directory + "/power/control", "on\n"});
  if (!candidate.group)
    plan.warnings.emplace_back("no-IOMMU mode: whoever opens this device can overwrite all memory");
  return plan;
}

// Nobody may have a member of the group open: the kernel gives none of it to another driver then.
base::Result<void> check_group_unused(const Roots& roots, const OpenNodes& nodes,
                                      const Candidate& candidate) {
  const auto name = candidate.function.address.text();
  if (candidate.usage.in_use())
    return base::fail(Errc::kBusy, name + " is in use: " + candidate.usage.text());
  if (!candidate.group) return {};
  for (const auto& member : candidate.group->members) {
    if (!is_vfio_driver(member.driver)) continue;
    const auto usage = usage_of(roots, nodes, member);
    if (!usage.holders.empty())
      return base::fail(Errc::kBusy, name + ": its IOMMU group is in use through " +
                                         member.address.text() + ": " + usage.text());
  }
  return {};
}

// The kernel has them as they are remembered as a rule, and need not take the same text again.
bool has_methods(const std::string& path, const std::string& methods) {
  const auto now = read_guarded(path, kReadPatience);
  return now && words(*now) == words(methods);
}

void add_return_steps(const Roots& roots, DevicePlan& plan) {
  const auto directory = roots.function(plan.address);
  const auto address = plan.address.text();
  const auto& before = plan.before;
  if (!plan.from.empty())
    plan.steps.push_back(
        {"unbind from " + plan.from, roots.pci_drivers() + "/" + plan.from + "/unbind", address});
  plan.steps.push_back(
      {before.driver_override.empty() ? "let any driver have it" : "restore its driver_override",
       directory + "/driver_override", before.driver_override + "\n"});
  const auto resets = directory + "/reset_method";
  if (before.reset_method && exists(resets) && !has_methods(resets, *before.reset_method))
    plan.steps.push_back({.what = "restore its reset methods",
                          .path = resets,
                          .value = *before.reset_method + "\n",
                          .restores_resets = true});
  if (before.power_control && exists(directory + "/power/control"))
    plan.steps.push_back(
        {"restore its power control", directory + "/power/control", *before.power_control + "\n"});
  if (plan.kernel_chooses || !plan.to.empty())
    plan.steps.push_back({plan.to.empty() ? "let the kernel choose a driver" : "bind to " + plan.to,
                          roots.sys + "/bus/pci/drivers_probe", address});
}

base::Result<DevicePlan> plan_return(const Roots& roots, const BindState& state,
                                     const Candidate& candidate) {
  DevicePlan plan;
  plan.address = candidate.function.address;
  plan.from = candidate.function.driver;
  const auto remembered = state.find(plan.address, candidate.function.part());
  // Without a driver and remembered: an earlier command came to no end.
  if (!is_vfio_driver(plan.from) && !(plan.from.empty() && remembered))
    return base::fail(Errc::kUnsupported, plan.address.text() +
                                              " is not bound to vfio-pci but to " +
                                              (plan.from.empty() ? "no driver" : plan.from));
  plan.was_remembered = remembered.has_value();
  plan.kernel_chooses = !remembered;
  if (remembered) plan.before = *remembered;
  plan.to = plan.before.driver;
  if (!plan.to.empty() && !exists(roots.pci_drivers() + "/" + plan.to))
    return base::fail(Errc::kNotFound, "driver " + plan.to + ", which " + plan.address.text() +
                                           " came from, is not loaded: modprobe " + plan.to);
  if (!remembered) {
    plan.warnings.emplace_back(
        "gpuctl has not bound it since the machine started: the kernel chooses its driver");
    if (candidate.quirk != nullptr) plan.before.reset_method = "default";
  }
  add_return_steps(roots, plan);
  return plan;
}

}  // namespace

base::Result<Plan> plan_bind(const Roots& roots, const std::vector<PciAddress>& addresses,
                             const BindOptions& options) {
  if (auto fine = check_list(addresses); !fine) return std::unexpected(fine.error());
  const auto nodes = OpenNodes::scan(roots);
  Plan plan;
  plan.hidden_processes = nodes.hidden();
  for (const auto& address : addresses) {
    const auto candidate = examine(roots, nodes, address);
    if (!candidate) return std::unexpected(candidate.error());
    if (auto fine = check_bindable(roots, *candidate, addresses, options); !fine)
      return std::unexpected(fine.error());
    if (!exists(roots.pci_drivers() + "/" + kVfio))
      return base::fail(Errc::kNotFound, "driver vfio-pci is not loaded: modprobe vfio-pci");
    auto device = plan_device(roots, *candidate, options);
    if (!device) return std::unexpected(device.error());
    plan.devices.push_back(std::move(*device));
  }
  return plan;
}

base::Result<Plan> plan_unbind(const Roots& roots, const BindState& state,
                               const std::vector<PciAddress>& addresses) {
  if (auto fine = check_list(addresses); !fine) return std::unexpected(fine.error());
  const auto nodes = OpenNodes::scan(roots);
  Plan plan;
  plan.binds = false;
  plan.hidden_processes = nodes.hidden();
  for (const auto& address : addresses) {
    const auto candidate = examine(roots, nodes, address);
    if (!candidate) return std::unexpected(candidate.error());
    auto device = plan_return(roots, state, *candidate);
    if (!device) return std::unexpected(device.error());
    if (auto fine = check_group_unused(roots, nodes, *candidate); !fine)
      return std::unexpected(fine.error());
    plan.devices.push_back(std::move(*device));
  }
  return plan;
}

}  // namespace vfio::sysfs
