#include "vfio/sysfs/reset_policy.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "vfio/sysfs/guarded_io.h"

namespace vfio::sysfs {
namespace {

constexpr std::uint16_t kAmd = 0x1002;

// Physical functions alone: virtual functions of the same parts are reported to survive.
// 0x740F is the id that the report gives for its MI300X; other lists know it as an MI210.
constexpr std::array kQuirks = {
    ResetQuirk{kAmd, 0x740F, "MI200/MI300X", true}, ResetQuirk{kAmd, 0x74A0, "MI300A", false},
    ResetQuirk{kAmd, 0x74A1, "MI300X", true},       ResetQuirk{kAmd, 0x74A2, "MI308X", false},
    ResetQuirk{kAmd, 0x74A5, "MI325X", false},      ResetQuirk{kAmd, 0x74A8, "MI308X", false},
    ResetQuirk{kAmd, 0x75A0, "MI350X", false},      ResetQuirk{kAmd, 0x75A3, "MI355X", true},
};

// Nobody reports that these kill such a part. "pm" is the way through D3hot and back, which an idle
// function under vfio-pci goes anyway.
constexpr std::array<std::string_view, 3> kHarmless = {"device_specific", "acpi", "pm"};

}  // namespace

const ResetQuirk* reset_quirk(std::uint16_t vendor, std::uint16_t device) {
  const auto* it = std::find_if(kQuirks.begin(), kQuirks.end(), [&](const ResetQuirk& quirk) {
    return quirk.vendor == vendor && quirk.device == device;
  });
  return it == kQuirks.end() ? nullptr : it;
}

bool is_forbidden(std::string_view method) {
  return std::find(kHarmless.begin(), kHarmless.end(), method) == kHarmless.end();
}

std::vector<std::string> harmless_methods(const ResetQuirk* quirk,
                                          std::span<const std::string> methods) {
  std::vector<std::string> kept;
  for (const auto& method : methods)
    if (quirk == nullptr || !is_forbidden(method)) kept.push_back(method);
  return kept;
}

base::Result<void> check_reset(std::uint16_t vendor, std::uint16_t device,
                               std::span<const std::string> methods) {
  if (methods.empty())
    return base::fail(base::Errc::kUnsupported, "the kernel has no reset method for this device");
  const auto* quirk = reset_quirk(vendor, device);
  if (quirk == nullptr) return {};
  for (const auto& method : methods)
    if (is_forbidden(method))
      return base::fail(base::Errc::kUnsupported,
                        "reset by \"" + method + "\" would take this part (" +
                            std::string(quirk->part) + ") off the bus until the machine restarts");
  return {};
}

base::Result<std::vector<std::string>> read_reset_methods(const Roots& roots,
                                                          const PciAddress& address) {
  const auto text =
      read_guarded(roots.function(address) + "/reset_method", std::chrono::seconds(1));
  if (!text) return std::unexpected(text.error());
  return words(*text);
}

}  // namespace vfio::sysfs
