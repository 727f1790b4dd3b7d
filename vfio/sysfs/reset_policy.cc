#include "vfio/sysfs/reset_policy.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>

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

// Whether the kernel could reset the bus that the function is on: it has a bridge above it.
bool has_resettable_bus(const Roots& roots, const PciAddress& address) {
  std::error_code error;
  const auto real = std::filesystem::canonical(roots.function(address), error);
  return !error && PciAddress::parse(real.parent_path().filename().string());
}

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

base::Result<void> check_opening(const ResetQuirk* quirk,
                                 const base::Result<std::vector<std::string>>& methods) {
  if (quirk == nullptr) return {};
  if (!methods && methods.error().code == base::Errc::kNotFound)
    return std::unexpected(no_methods_to_cut(*quirk));
  if (!methods) return std::unexpected(methods.error());
  if (harmless_methods(quirk, *methods) == *methods) return {};
  return check_reset(quirk->vendor, quirk->device, *methods);
}

base::Result<void> check_last_close(const Roots& roots, const PciAddress& address,
                                    const ResetQuirk* quirk, std::span<const std::string> methods) {
  if (quirk == nullptr || !harmless_methods(quirk, methods).empty() ||
      !has_resettable_bus(roots, address))
    return {};
  return base::fail(base::Errc::kUnsupported,
                    "no harmless reset method is left for this part (" + std::string(quirk->part) +
                        "): when the last process closes it the kernel resets its bus, and it is "
                        "off the bus until the machine restarts");
}

base::Error no_methods_to_cut(const ResetQuirk& quirk) {
  return {base::Errc::kUnsupported, 0,
          "a reset kills this part (" + std::string(quirk.part) +
              "), and the kernel shows no reset_method to cut: it is older than 5.15, or has no "
              "method for it"};
}

base::Result<std::vector<std::string>> read_reset_methods(const Roots& roots,
                                                          const PciAddress& address) {
  const auto text =
      read_guarded(roots.function(address) + "/reset_method", std::chrono::seconds(1));
  if (!text) return std::unexpected(text.error());
  return words(*text);
}

}  // namespace vfio::sysfs
