#include "vfio/kernel/open_kernel.h"

#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "vfio/kernel/open_node.h"
#include "vfio/kernel/type1_space.h"
#include "vfio/sysfs/function.h"
#include "vfio/sysfs/reset_policy.h"
#include "vfio/sysfs/usage.h"

namespace vfio {
namespace {

constexpr std::string_view kOverride = "i-know-that-this-device-can-overwrite-all-memory";

constexpr std::string_view kAcceptReset = "accept-deadly-reset";
constexpr std::size_t kMostShown = 120;

// One line of what a user gave, and not too long a one.
std::string shown(std::string_view text) {
  std::string line;
  for (const char c : text.substr(0, kMostShown)) line += c < ' ' || c > '~' ? '?' : c;
  return text.size() > kMostShown ? line + "..." : line;
}

std::unexpected<base::Error> bad_name(const std::string& what) {
  return base::fail(base::Errc::kInvalidArgument, shown(what) + " (" +
                                                      std::string(KernelName::kPrefix) +
                                                      "0000:03:00.0[,backend=iommufd|group])");
}

struct Opened {
  base::UniqueFd device;
  std::unique_ptr<DmaSpace> space;
  const char* backend;
  std::string remark = {};  // DeviceIdentity::backend_remark
};

// A function that may be opened, and what is known of it.
struct Target {
  sysfs::Function function;
  sysfs::Group group;
  base::Result<void> may_reset;
};

base::Result<void> check_driver(const sysfs::Function& function) {
  if (sysfs::is_vfio_driver(function.driver)) return {};
  const std::string address = function.address.text();
  return base::fail(base::Errc::kPermission,
                    (function.driver.empty() ? "no driver has it" : function.driver + " has it") +
                        ": it must be bound to vfio-pci (gpuctl bind " + address + ")");
}

base::Result<sysfs::Group> check_group(const sysfs::Roots& roots, const sysfs::Function& function,
                                       bool without_iommu) {
  if (!function.iommu_group)
    return base::fail(base::Errc::kUnsupported,
                      "no IOMMU holds it: switch the IOMMU on (firmware: VT-d, AMD-Vi; kernel: "
                      "intel_iommu=on), and see gpuctl doctor");
  auto group = sysfs::read_group(roots, *function.iommu_group);
  if (!group) return group;
  if (group->no_iommu && !without_iommu)
    return base::fail(base::Errc::kUnsupported,
                      "no IOMMU holds it (VFIO's no-IOMMU mode): it could overwrite all memory; "
                      "switch the IOMMU on, or append ," +
                          std::string(kOverride) + " for registers and interrupts alone");
  if (const auto obstacle = sysfs::group_obstacle(*group); !obstacle.empty())
    return base::fail(group->firmware_mapped ? base::Errc::kUnsupported : base::Errc::kPermission,
                      obstacle);
  return group;
}

// What may be asked of the kernel, by what it would do. The kernel resets a device by itself when
// it is opened and when it is closed: a part that would not survive that is not opened at all.
base::Result<base::Result<void>> check_resets(const sysfs::Roots& roots,
                                              const sysfs::Function& function,
                                              bool accept_deadly_reset) {
  const auto* const quirk = sysfs::reset_quirk(function.vendor, function.device);
  const auto methods = sysfs::read_reset_methods(roots, function.address);
  // Kernels before 5.15 do not say what they would do.
  if (!methods && methods.error().code == base::Errc::kNotFound && quirk == nullptr)
    return base::Result<void>();
  if (!methods) return base::fail_within("reset methods", methods.error());
  auto may = sysfs::check_reset(function.vendor, function.device, *methods);
  for (const auto& method : *methods)
    if (quirk != nullptr && sysfs::is_forbidden(method)) return std::unexpected(may.error());
  if (accept_deadly_reset) return may;
  if (auto lives = sysfs::check_last_close(roots, function.address, quirk, *methods); !lives)
    return base::fail(lives.error().code, lives.error().step + " (append ," +
                                              std::string(kAcceptReset) + " to open it)");
  return may;
}

base::Result<Target> look(const KernelName& what, const sysfs::Roots& roots) {
  auto function = sysfs::read_function(roots, what.address);
  if (!function) return std::unexpected(function.error());
  if (auto ok = check_driver(*function); !ok) return std::unexpected(ok.error());
  auto group = check_group(roots, *function, what.without_iommu);
  if (!group) return std::unexpected(group.error());
  auto may_reset = check_resets(roots, *function, what.accept_deadly_reset);
  if (!may_reset) return std::unexpected(may_reset.error());
  return Target{std::move(*function), std::move(*group), std::move(*may_reset)};
}

// The kernel's EINVAL: open in another process, or nothing for iommufd.
bool is_in_doubt(const base::Error& error) {
  return error.code == base::Errc::kUnsupported && error.sys == EINVAL;
}

// kBusy when somebody has the device open, or its group; also when that cannot be found out.
base::Result<void> check_free(const Target& target, const sysfs::Roots& roots) {
  const auto usage = sysfs::usage_of(roots, sysfs::OpenNodes::scan(roots), target.function);
  if (!usage.holders.empty())
    return base::fail(base::Errc::kBusy, "in use: " + usage.text(), EINVAL);
  // A process may be hidden from us, or ending, with its descriptors out of sight. The kernel does
  // not open the group of a device that is open.
  const auto group = open_node(roots.dev + "/" + target.group.dev_node(), NodeOf::kDevice);
  if (group) return {};
  if (group.error().code == base::Errc::kBusy) return std::unexpected(group.error());
  return base::fail(base::Errc::kBusy,
                    "somebody else has the device open, or its IOMMU does not keep DMA coherent "
                    "with the processor's caches, for which iommufd does not take it",
                    EINVAL);
}

base::Result<Opened> open_by_iommufd(const Target& target, const KernelOptions& options) {
  if (target.group.no_iommu)
    return base::fail(
        base::Errc::kUnsupported,
        "no IOMMU holds it (VFIO's no-IOMMU mode), for which iommufd does not take it");
  if (target.function.vfio_device.empty())
    return base::fail(base::Errc::kUnsupported,
                      "the kernel gives it no device node for iommufd (Linux 6.6, "
                      "CONFIG_VFIO_DEVICE_CDEV)");
  const std::string& dev = options.roots.dev;
  const auto open = [&] {
    return IommufdSpace::open(dev + "/iommu", dev + "/vfio/devices/" + target.function.vfio_device,
                              options.map_by);
  };
  auto opened = open();
  if (!opened && is_in_doubt(opened.error())) {
    if (auto free = check_free(target, options.roots); !free) return std::unexpected(free.error());
    opened = open();  // it may have become free only now
  }
  if (!opened) return std::unexpected(opened.error());
  return Opened{std::move(opened->device), std::move(opened->space), "iommufd"};
}

base::Result<Opened> open_by_group(const Target& target, const KernelOptions& options) {
  const std::string& dev = options.roots.dev;
  const auto kind = target.group.no_iommu ? GroupKind::kNoIommu : GroupKind::kIommu;
  auto opened = Type1Space::open(dev + "/vfio/vfio", dev + "/" + target.group.dev_node(),
                                 target.function.address.text(), kind);
  if (!opened) return std::unexpected(opened.error());
  return Opened{std::move(opened->device), std::move(opened->space), "group"};
}

// Whether iommufd is not to be had here, as opposed to the device not being to be had.
bool lacks_iommufd(const base::Error& error) {
  return error.code == base::Errc::kUnsupported || error.code == base::Errc::kNotFound;
}

base::Result<Opened> open_best(const Target& target, const KernelOptions& options) {
  auto opened = open_by_iommufd(target, options);
  if (opened || !lacks_iommufd(opened.error())) return opened;
  auto by_group = open_by_group(target, options);
  if (by_group)
    by_group->remark = "opened by its IOMMU group, not by iommufd: " + opened.error().step;
  return by_group;
}

base::Result<Opened> open_by(KernelBackend backend, const Target& target,
                             const KernelOptions& options) {
  if (backend == KernelBackend::kBest) return open_best(target, options);
  if (backend == KernelBackend::kGroup) return open_by_group(target, options);
  auto opened = open_by_iommufd(target, options);
  if (!opened && opened.error().code == base::Errc::kUnsupported)
    opened.error().step += " (backend=group does without it)";
  return opened;
}

// The kernel does not say that it is another device of the group that is open: by iommufd it
// answers as when interrupts are not remapped, by the group as when the device itself is open.
base::Error explained(const base::Error& error, const Target& target, const sysfs::Roots& roots) {
  if (error.code != base::Errc::kBusy && error.sys != EPERM) return error;
  auto text =
      sysfs::group_user(roots, sysfs::OpenNodes::scan(roots), target.group, target.function);
  if (text.empty()) return error;
  return {base::Errc::kBusy, error.sys, std::move(text)};
}

// An unbind that came before the request interrupt was armed goes unheard: the kernel asks again
// only after 10 s, and waits for us meanwhile. From Linux 6.6 on (vfio_unregister_group_dev) it
// takes the device out of sysfs before it asks; older ones after we have let go.
base::Result<void> check_still_there(const sysfs::Roots& roots, const sysfs::Function& function) {
  if (function.vfio_device.empty() ||
      sysfs::exists(roots.function(function.address) + "/vfio-dev/" + function.vfio_device))
    return {};
  return base::fail(base::Errc::kDeviceLost,
                    "the kernel wants the device back (unbind or hot-unplug)");
}

}  // namespace

base::Result<KernelName> KernelName::parse(std::string_view name) {
  if (!name.starts_with(kPrefix)) return bad_name("no name of a PCI device");
  name.remove_prefix(kPrefix.size());
  const auto first = name.find(',');
  auto address = sysfs::PciAddress::parse(name.substr(0, first));
  if (!address) return bad_name(address.error().step);
  KernelName parsed;
  parsed.address = *address;
  while (name.find(',') != std::string_view::npos) {
    name.remove_prefix(name.find(',') + 1);
    const auto option = name.substr(0, name.find(','));
    const bool backend = option == "backend=iommufd" || option == "backend=group";
    if (backend && parsed.backend != KernelBackend::kBest)
      return bad_name("option \"backend\" is given twice");
    if (backend)
      parsed.backend = option == "backend=group" ? KernelBackend::kGroup : KernelBackend::kIommufd;
    else if (option == kOverride && !std::exchange(parsed.without_iommu, true))
      continue;
    else if (option == kAcceptReset && !std::exchange(parsed.accept_deadly_reset, true))
      continue;
    else if (option == kOverride || option == kAcceptReset)
      return bad_name("option \"" + std::string(option) + "\" is given twice");
    else
      return bad_name("option \"" + std::string(option) + "\" is not known");
  }
  return parsed;
}

base::Result<std::unique_ptr<KernelDevice>> open_kernel_device(std::string name,
                                                               const KernelName& what,
                                                               const KernelOptions& options) {
  auto target = look(what, options.roots);
  if (!target) return std::unexpected(target.error());
  auto opened = open_by(what.backend, *target, options);
  if (!opened) return std::unexpected(explained(opened.error(), *target, options.roots));
  DeviceIdentity identity;
  identity.name = std::move(name);
  identity.backend = opened->backend;
  identity.backend_remark = std::move(opened->remark);
  auto device = KernelDevice::create(std::move(identity), std::move(opened->device),
                                     std::move(opened->space), std::move(target->may_reset));
  if (!device) return device;
  if (auto there = check_still_there(options.roots, target->function); !there)
    return std::unexpected(there.error());
  return device;
}

}  // namespace vfio
