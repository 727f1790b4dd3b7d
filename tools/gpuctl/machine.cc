#include "tools/gpuctl/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include "vfio/sysfs/bind.h"
#include "vfio/sysfs/doctor.h"
#include "vfio/sysfs/inventory.h"

namespace gpuctl {
namespace {

using nlohmann::json;
using vfio::sysfs::PciAddress;
using vfio::sysfs::Roots;

constexpr unsigned kCapIpcLock = 14;  // CAP_IPC_LOCK, as a bit of CapEff

// One line that names the thing. The errors of vfio/sysfs are whole sentences, except those of
// system calls.
Failure failure(const base::Error& error) {
  std::string text = error.step;
  if (error.sys != 0) text += std::string(": ") + std::strerror(error.sys);
  if (error.code == base::Errc::kPermission) text += " (run it as root)";
  return {exit_code(error.code), text};
}

json or_null(const std::string& text) { return text.empty() ? json(nullptr) : json(text); }

std::string hex(std::uint32_t value, int digits) {
  char text[16];
  std::snprintf(text, sizeof(text), "%0*x", digits, value);
  return text;
}

json members_of(const std::optional<vfio::sysfs::Group>& group) {
  json members = json::array();
  if (group)
    for (const auto& member : group->members)
      members.push_back({{"address", member.address.text()},
                         {"driver", or_null(member.driver)},
                         {"unread", member.unread}});
  return members;
}

json bars_of(const vfio::sysfs::Function& function) {
  json bars = json::array();
  for (const auto& bar : function.bars)
    bars.push_back({{"index", bar.index},
                    {"bytes", bar.size},
                    {"ports", bar.io},
                    {"prefetchable", bar.prefetchable},
                    {"wide", bar.wide}});
  return bars;
}

json holders_of(const vfio::sysfs::Usage& usage) {
  json holders = json::array();
  for (const auto& holder : usage.holders)
    holders.push_back({{"pid", holder.pid}, {"command", holder.command}, {"node", holder.node}});
  return holders;
}

json device_entry(const vfio::sysfs::Candidate& candidate) {
  const auto& function = candidate.function;
  json entry;
  entry["address"] = function.address.text();
  entry["name"] = candidate.name();
  entry["pci_id"] = function.part();
  entry["class"] = hex(function.class_code, 6);
  entry["driver"] = or_null(function.driver);
  entry["iommu_group"] = function.iommu_group ? json(*function.iommu_group) : json(nullptr);
  entry["no_iommu"] = candidate.group && candidate.group->no_iommu;
  entry["group_members"] = members_of(candidate.group);
  entry["group_strangers"] = candidate.group ? json(candidate.group->strangers) : json::array();
  entry["numa_node"] = function.numa_node ? json(*function.numa_node) : json(nullptr);
  entry["reset_methods"] = candidate.reset_methods;
  entry["dies_of_reset"] = candidate.quirk != nullptr;
  entry["bars"] = bars_of(function);
  entry["power_state"] = or_null(function.power_state);
  entry["vfio_device"] = or_null(function.vfio_device);
  entry["holders"] = holders_of(candidate.usage);
  entry["activities"] = candidate.usage.activities;
  entry["state"] = vfio::sysfs::to_string(candidate.readiness);
  entry["why"] = or_null(candidate.why);
  entry["unread"] = function.unread;
  return entry;
}

Outcome<PciAddress> parse_address(std::string text) {
  if (text.starts_with("pci:")) text.erase(0, 4);
  const auto address = PciAddress::parse(text);
  if (!address) return std::unexpected(Failure{kUsage, address.error().step});
  return *address;
}

json devices_document(const vfio::sysfs::Inventory& inventory) {
  json devices = json::array();
  for (const auto& candidate : inventory.candidates) devices.push_back(device_entry(candidate));
  return {{"verb", "devices"},
          {"devices", std::move(devices)},
          {"hidden_processes", inventory.hidden_processes}};
}

// The words of the line of a file that begins with `name`; none: no such line.
std::vector<std::string> line_of(const std::string& path, const std::string& name) {
  for (const auto& line : vfio::sysfs::lines(vfio::sysfs::read_text(path).value_or("")))
    if (line.starts_with(name)) return vfio::sysfs::words(line.substr(name.size()));
  return {};
}

// All of it from one machine: files below `roots`, never a call that answers for another. Whether
// a node may be opened is asked of this machine, and of this user.
vfio::sysfs::Surroundings surroundings(const Roots& roots, const std::string& runtime_dir) {
  using vfio::sysfs::parse_number;
  const auto text = [&](const std::string& name) {
    return vfio::sysfs::read_text(roots.proc + name).value_or("");
  };
  vfio::sysfs::Surroundings here;
  here.kernel_release = text("/sys/kernel/osrelease");
  here.machine = text("/sys/kernel/arch");
  utsname name{};
  // Kernels before 6.1 do not have that file.
  if (here.machine.empty() && roots.proc == Roots().proc && ::uname(&name) == 0)
    here.machine = name.machine;
  here.uid = ::geteuid();
  const auto limit = line_of(roots.proc + "/self/limits", "Max locked memory ");
  here.memlock_known = !limit.empty();
  if (!limit.empty()) here.memlock_bytes = parse_number(limit[0]);  // or "unlimited"
  const auto rights = line_of(roots.proc + "/self/status", "CapEff:");
  if (!rights.empty())
    here.may_lock_all = parse_number("0x" + rights[0]).value_or(0) >> kCapIpcLock & 1;
  here.runtime_dir = runtime_dir;
  return here;
}

json plan_document(const vfio::sysfs::Plan& plan, const vfio::sysfs::BindState& state) {
  json devices = json::array();
  for (const auto& device : plan.devices) {
    json steps = json::array();
    for (const auto& step : device.steps)
      steps.push_back({{"what", step.what}, {"path", step.path}, {"value", step.value}});
    devices.push_back({{"address", device.address.text()},
                       {"from", or_null(device.from)},
                       {"to", or_null(device.to)},
                       {"kernel_chooses", device.kernel_chooses},
                       {"steps", std::move(steps)},
                       {"warnings", device.warnings},
                       {"not_restored", device.not_restored}});
  }
  return {{"verb", plan.binds ? "bind" : "unbind"},
          {"done", false},
          {"state_file", state.file()},
          {"devices", std::move(devices)},
          {"hidden_processes", plan.hidden_processes}};
}

base::Result<vfio::sysfs::Plan> make_plan(const Roots& roots, const vfio::sysfs::BindState& state,
                                          const BindRequest& request,
                                          const std::vector<PciAddress>& addresses) {
  if (!request.binds) return vfio::sysfs::plan_unbind(roots, state, addresses);
  return vfio::sysfs::plan_bind(roots, addresses, {request.any, request.accept_deadly_reset});
}

}  // namespace

Outcome<json> list_devices(const Machine& machine, const std::string& device, bool any) {
  const auto roots = Roots::below(machine.sysroot);
  if (device.empty()) {
    const auto inventory = vfio::sysfs::take_inventory(roots, any);
    if (!inventory) return std::unexpected(failure(inventory.error()));
    return devices_document(*inventory);
  }
  const auto address = parse_address(device);
  if (!address) return std::unexpected(address.error());
  const auto nodes = vfio::sysfs::OpenNodes::scan(roots);
  auto candidate = vfio::sysfs::examine(roots, nodes, *address);
  if (!candidate) return std::unexpected(failure(candidate.error()));
  vfio::sysfs::Inventory one;
  one.candidates.push_back(std::move(*candidate));
  one.hidden_processes = nodes.hidden();
  return devices_document(one);
}

Outcome<json> examine(const Machine& machine, const std::string& runtime_dir) {
  const auto roots = Roots::below(machine.sysroot);
  json checks = json::array();
  std::size_t problems = 0;
  for (const auto& check : vfio::sysfs::examine_machine(roots, surroundings(roots, runtime_dir))) {
    problems += check.level == vfio::sysfs::Level::kProblem ? 1 : 0;
    checks.push_back({{"name", check.name},
                      {"level", vfio::sysfs::to_string(check.level)},
                      {"found", check.found},
                      {"remedy", or_null(check.remedy)}});
  }
  return json{{"verb", "doctor"}, {"problems", problems}, {"checks", std::move(checks)}};
}

Outcome<json> bind_devices(const Machine& machine, const BindRequest& request,
                           const std::function<void(const json&)>& show) {
  const auto roots = Roots::below(machine.sysroot);
  std::vector<PciAddress> addresses;
  for (const auto& text : request.devices) {
    const auto address = parse_address(text);
    if (!address) return std::unexpected(address.error());
    addresses.push_back(*address);
  }
  const auto directory =
      machine.state_dir.empty() ? machine.sysroot + "/var/lib/gpuumd" : machine.state_dir;
  auto state = request.yes ? vfio::sysfs::BindState::lock(roots, directory)
                           : vfio::sysfs::BindState::read(roots, directory);
  if (!state) return std::unexpected(failure(state.error()));
  auto plan = make_plan(roots, *state, request, addresses);
  if (!plan) return std::unexpected(failure(plan.error()));
  auto document = plan_document(*plan, *state);
  if (!request.yes) return document;
  auto begun = document;
  begun["under_way"] = true;
  show(begun);
  if (auto done = vfio::sysfs::carry_out(roots, *plan, *state, request.patience); !done)
    return std::unexpected(failure(done.error()));
  document = plan_document(*plan, *state);
  document["done"] = true;
  return document;
}

}  // namespace gpuctl
