#include "vfio/sysfs/usage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <set>

namespace vfio::sysfs {
namespace {

constexpr std::size_t kMostMappings = 64 << 20;  // bytes of /proc/PID/maps: half a million lines

// Where a symbolic link leads; empty: nowhere, or no link.
std::string target_of(const std::string& path) {
  char target[4096];
  const auto length = ::readlink(path.c_str(), target, sizeof(target));
  return length <= 0 ? std::string() : std::string(target, static_cast<std::size_t>(length));
}

// Of a character device; without asking a file system on another machine, which may not answer.
std::optional<OpenNodes::DeviceNumber> device_number(const std::string& path) {
  struct statx status{};
  if (::statx(AT_FDCWD, path.c_str(), AT_STATX_DONT_SYNC, STATX_TYPE, &status) != 0 ||
      !S_ISCHR(status.stx_mode))
    return std::nullopt;
  return OpenNodes::DeviceNumber{status.stx_rdev_major, status.stx_rdev_minor};
}

// "226:128", as an attribute `dev` has it.
std::optional<OpenNodes::DeviceNumber> number_in(const std::string& path) {
  const auto text = read_text(path);
  if (!text) return std::nullopt;
  const auto colon = text->find(':');
  if (colon == std::string::npos) return std::nullopt;
  const auto major = parse_number(std::string_view(*text).substr(0, colon));
  const auto minor = parse_number(std::string_view(*text).substr(colon + 1));
  if (!major || !minor) return std::nullopt;
  return OpenNodes::DeviceNumber{static_cast<unsigned>(*major), static_cast<unsigned>(*minor)};
}

// The function that a path's file resource0 to resource5 (or resource0_wc) belongs to; empty: the
// path is none of these.
std::string function_of_bar(std::string_view path) {
  const auto slash = path.rfind('/');
  if (slash == std::string_view::npos || path.find("/sys/") == std::string_view::npos) return {};
  const auto file = path.substr(slash + 1);
  constexpr std::string_view kName = "resource";
  if (!file.starts_with(kName) || file.size() == kName.size() || file[kName.size()] < '0' ||
      file[kName.size()] > '5')
    return {};
  const auto folder = path.substr(0, slash);
  return std::string(folder.substr(folder.rfind('/') + 1));
}

void append(std::vector<Holder>& to, std::vector<Holder> more) {
  for (auto& holder : more) {
    const bool known = std::any_of(to.begin(), to.end(), [&](const Holder& other) {
      return other.pid == holder.pid && other.node == holder.node;
    });
    if (!known) to.push_back(std::move(holder));
  }
}

// Nodes of one class below the function, each with its attribute `dev`.
void class_usage(const std::string& folder, const std::string& below_dev, const OpenNodes& nodes,
                 Usage& usage) {
  for (const auto& name : names_in(folder))
    append(usage.holders, nodes.holders(below_dev + name, number_in(folder + "/" + name + "/dev")));
}

void display_usage(const std::string& directory, const OpenNodes& nodes, Usage& usage) {
  class_usage(directory + "/drm", "dri/", nodes, usage);
  class_usage(directory + "/accel", "accel/", nodes, usage);
  class_usage(directory + "/graphics", "", nodes, usage);
  for (const auto& card : names_in(directory + "/drm")) {
    const auto path = directory + "/drm/" + card;
    for (const auto& connector : names_in(path))
      if (connector.starts_with(card + "-") &&
          read_text(path + "/" + connector + "/enabled").value_or("") == "enabled")
        usage.activities.push_back("it drives the display " + connector.substr(card.size() + 1));
  }
}

// The number by which KFD knows this function; nullopt: it does not.
std::optional<std::string> kfd_id(const Roots& roots, const PciAddress& address) {
  const auto directory = roots.sys + "/class/kfd/kfd/topology/nodes";
  for (const auto& node : names_in(directory)) {
    const auto properties = read_text(directory + "/" + node + "/properties");
    const auto id = read_text(directory + "/" + node + "/gpu_id");
    if (!properties || !id) continue;
    std::optional<std::uint64_t> location, domain;
    for (const auto& line : lines(*properties)) {
      const auto parts = words(line);
      if (parts.size() == 2 && parts[0] == "location_id") location = parse_number(parts[1]);
      if (parts.size() == 2 && parts[0] == "domain") domain = parse_number(parts[1]);
    }
    const std::uint64_t wanted = static_cast<std::uint64_t>(address.bus) << 8 |
                                 static_cast<std::uint64_t>(address.device) << 3 | address.function;
    if (location == wanted && domain.value_or(0) == address.domain) return *id;
  }
  return std::nullopt;
}

// /dev/kfd is one for all GPUs: who has it open uses this one unless KFD says that it does not.
void kfd_usage(const Roots& roots, const OpenNodes& nodes, const Function& function, Usage& usage) {
  if (function.driver != "amdgpu") return;
  const auto holders = nodes.holders("kfd", number_in(roots.sys + "/class/kfd/kfd/dev"));
  if (holders.empty()) return;
  const auto id = kfd_id(roots, function.address);
  for (const auto& holder : holders) {
    const auto memory = read_text(roots.sys + "/class/kfd/kfd/proc/" + std::to_string(holder.pid) +
                                  "/vram_" + id.value_or("?"));
    if (!memory || *memory != "0") append(usage.holders, {holder});
  }
}

// Users of the function itself under VFIO.
std::vector<Holder> device_holders(const Roots& roots, const OpenNodes& nodes,
                                   const Function& function) {
  std::vector<Holder> holders;
  if (!function.vfio_device.empty())
    holders = nodes.holders(
        "vfio/devices/" + function.vfio_device,
        number_in(roots.function(function.address) + "/vfio-dev/" + function.vfio_device + "/dev"));
  append(holders, nodes.vfio_holders(function.address));
  return holders;
}

std::vector<Holder> group_holders(const Roots& roots, const OpenNodes& nodes, unsigned group) {
  std::vector<Holder> holders;
  for (const auto* form : {"vfio/", "vfio/noiommu-"}) {
    const auto node = form + std::to_string(group);
    append(holders, nodes.holders(node, device_number(roots.dev + "/" + node)));
  }
  return holders;
}

void vfio_usage(const Roots& roots, const OpenNodes& nodes, const Function& function,
                Usage& usage) {
  if (!is_vfio_driver(function.driver)) return;
  append(usage.holders, device_holders(roots, nodes, function));
  if (function.iommu_group)
    append(usage.holders, group_holders(roots, nodes, *function.iommu_group));
}

// Block devices at or below a directory, without following links. No controller has its disks more
// than eight folders down (ata1/host0/target0:0:0/0:0:0:0/block/sda/sda1).
void find_block_devices(const std::string& directory, unsigned depth,
                        std::vector<std::string>& out) {
  for (const auto& name : names_in(directory)) {
    const auto path = directory + "/" + name;
    struct stat status{};
    if (::lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) continue;
    if (exists(path + "/queue") || exists(path + "/partition")) out.push_back(path);
    if (depth > 1) find_block_devices(path, depth - 1, out);
  }
}

void block_usage(const Roots& roots, const std::string& directory, Usage& usage) {
  std::vector<std::string> devices;
  find_block_devices(directory, 8, devices);
  if (devices.empty()) return;
  const auto mounts = lines(read_text(roots.proc + "/self/mountinfo", 1 << 20).value_or(""));
  for (const auto& device : devices) {
    const auto name = device.substr(device.rfind('/') + 1);
    for (const auto& holder : names_in(device + "/holders"))
      usage.activities.push_back(holder + " is built on its " + name);
    const auto number = read_text(device + "/dev").value_or("");
    for (const auto& line : mounts)
      if (const auto parts = words(line); parts.size() > 4 && parts[2] == number)
        usage.activities.push_back("its " + name + " is mounted at " + parts[4]);
  }
}

void kernel_usage(const Roots& roots, const Function& function, Usage& usage) {
  const auto directory = roots.function(function.address);
  if (function.boot_vga) usage.activities.push_back("it is the machine's boot display");
  if (function.virtual_functions > 0)
    usage.activities.push_back(std::to_string(function.virtual_functions) +
                               " virtual functions are switched on (sriov_numvfs)");
  for (const auto& name : names_in(directory + "/net"))
    if (read_text(directory + "/net/" + name + "/operstate").value_or("") == "up")
      usage.activities.push_back("network interface " + name + " is up");
  if (!function.driver.empty() && !is_vfio_driver(function.driver))
    block_usage(roots, directory, usage);
}

}  // namespace

OpenNodes OpenNodes::scan(const Roots& roots) {
  OpenNodes nodes;
  nodes.proc_ = roots.proc;
  for (const auto& name : names_in(roots.proc)) {
    int pid = 0;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error == std::errc{} && end == name.data() + name.size()) nodes.scan_process(roots, pid);
  }
  return nodes;
}

void OpenNodes::scan_process(const Roots& roots, int pid) {
  const auto process = roots.proc + "/" + std::to_string(pid);
  if (::access((process + "/fd").c_str(), R_OK | X_OK) != 0) {
    if (errno == EACCES || errno == EPERM) ++hidden_;
    return;
  }
  for (const auto& fd : names_in(process + "/fd")) {
    const auto path = process + "/fd/" + fd;
    Open open{pid, target_of(path), std::nullopt, {}};
    if (open.target.starts_with("anon_inode:[vfio-device]")) {
      for (const auto& line : lines(read_text(process + "/fdinfo/" + fd).value_or("")))
        if (const auto parts = words(line); parts.size() == 2 && parts[0] == "vfio-device-syspath:")
          open.vfio_path = parts[1];
    } else if (open.target.starts_with('/')) {
      open.number = device_number(path);
    }
    keep(std::move(open));
  }
  scan_mappings(process, pid);
}

// Devices are mapped shared: who writes into a private mapping has memory of its own there.
void OpenNodes::scan_mappings(const std::string& process, int pid) {
  std::set<std::string> seen;
  for (const auto& line : lines(read_text(process + "/maps", kMostMappings).value_or(""))) {
    const auto parts = words(line);  // range, rights, offset, file system, inode, path
    if (parts.size() < 6 || !parts[1].ends_with('s') || !parts[5].starts_with('/') ||
        !seen.insert(parts[5]).second)
      continue;
    keep({pid, parts[5], device_number(process + "/map_files/" + parts[0]), {}});
  }
}

void OpenNodes::keep(Open open) {
  if (open.number || !open.vfio_path.empty() || open.target.starts_with("/dev/") ||
      !function_of_bar(open.target).empty())
    open_.push_back(std::move(open));
}

Holder OpenNodes::holder(int pid, std::string node) const {
  return {pid, read_text(proc_ + "/" + std::to_string(pid) + "/comm").value_or("?"),
          std::move(node)};
}

std::vector<Holder> OpenNodes::holders(const std::string& node,
                                       std::optional<DeviceNumber> number) const {
  std::vector<Holder> out;
  for (const auto& open : open_)
    if (open.target == "/dev/" + node || (number && open.number == number))
      append(out, {holder(open.pid, node)});
  return out;
}

std::vector<Holder> OpenNodes::vfio_holders(const PciAddress& address) const {
  std::vector<Holder> out;
  for (const auto& open : open_)
    if (open.vfio_path.ends_with("/" + address.text()))
      append(out, {holder(open.pid, "vfio device")});
  return out;
}

std::vector<Holder> OpenNodes::bar_holders(const PciAddress& address) const {
  std::vector<Holder> out;
  for (const auto& open : open_)
    if (function_of_bar(open.target) == address.text())
      append(out, {holder(open.pid, open.target.substr(open.target.rfind('/') + 1))});
  return out;
}

std::string Usage::text() const {
  std::vector<std::string> parts;
  for (const auto& holder : holders)
    parts.push_back("held by " + holder.command + " (pid " + std::to_string(holder.pid) + ", " +
                    holder.node + ")");
  parts.insert(parts.end(), activities.begin(), activities.end());
  return joined(parts, "; ");
}

Usage usage_of(const Roots& roots, const OpenNodes& nodes, const Function& function) {
  Usage usage;
  display_usage(roots.function(function.address), nodes, usage);
  kfd_usage(roots, nodes, function, usage);
  vfio_usage(roots, nodes, function, usage);
  append(usage.holders, nodes.bar_holders(function.address));
  kernel_usage(roots, function, usage);
  return usage;
}

std::string group_user(const Roots& roots, const OpenNodes& nodes, const Group& group,
                       const Function& function) {
  if (!device_holders(roots, nodes, function).empty()) return {};
  std::vector<const Function*> others, gpus;
  Usage usage;
  for (const auto& member : group.members) {
    if (member.address == function.address || !is_vfio_driver(member.driver)) continue;
    if (is_our_kind(member)) gpus.push_back(&member);
    auto holders = device_holders(roots, nodes, member);
    if (holders.empty()) continue;
    others.push_back(&member);
    append(usage.holders, std::move(holders));
  }
  if (others.empty()) {
    others = gpus;
    usage.holders = group_holders(roots, nodes, group.id);
  }
  if (others.empty() || usage.holders.empty()) return {};
  std::vector<std::string> names;
  for (const auto* other : others) names.push_back(other->address.text());
  return "IOMMU group " + std::to_string(group.id) + ", which it shares with " + joined(names) +
         ", is in use (" + usage.text() +
         "): gpuumd opens one device of a group; another slot, or a port with ACS above it, gives "
         "it a group of its own (docs/vfio.md)";
}

}  // namespace vfio::sysfs
