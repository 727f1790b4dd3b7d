// The IOMMU and what protects the machine from devices.
#include <algorithm>

#include "vfio/sysfs/doctor.h"

namespace vfio::sysfs::doctor {
namespace {

bool is_on(const std::string& parameter) {
  const auto text = read_text(parameter).value_or("");
  return text == "Y" || text == "1";
}

std::string unsafe_parameter(const Roots& roots, const std::string& module) {
  return roots.sys + "/module/" + module + "/parameters/allow_unsafe_interrupts";
}

bool has_iommu(const Roots& roots) {
  return !names_in(roots.sys + "/class/iommu").empty() &&
         !names_in(roots.sys + "/kernel/iommu_groups").empty();
}

// "intel_iommu=off" and its like on the kernel's command line; empty: nothing there switches it
// off.
std::string switched_off_by(const Roots& roots) {
  for (const auto& word : words(read_text(roots.proc + "/cmdline").value_or("")))
    for (const auto* off : {"iommu=off", "intel_iommu=off", "amd_iommu=off", "arm-smmu.disable=1"})
      if (word == off) return word;
  return {};
}

std::string iommu_remedy(const Roots& roots) {
  if (const auto off = switched_off_by(roots); !off.empty())
    return "take " + off + " off the kernel's command line";
  const auto tables = roots.sys + "/firmware/acpi/tables/";
  if (exists(tables + "DMAR")) return "put intel_iommu=on on the kernel's command line and restart";
  if (exists(tables + "IVRS"))
    return "firmware has an AMD IOMMU and this kernel does not use it: CONFIG_AMD_IOMMU, or dmesg";
  return "firmware tells of no IOMMU: switch on VT-d, AMD-Vi or \"IOMMU\" in its set-up; a virtual "
         "machine needs a virtual IOMMU from its hypervisor";
}

}  // namespace

Check check_iommu(const Roots& roots) {
  Check check{"iommu"};
  const auto units = names_in(roots.sys + "/class/iommu");
  const auto groups = names_in(roots.sys + "/kernel/iommu_groups").size();
  if (has_iommu(roots)) {
    check.found = "on: " + joined(units) + "; " + std::to_string(groups) + " groups";
    return check;
  }
  check.level = Level::kProblem;
  check.found = units.empty() ? "off or absent: the kernel knows no IOMMU"
                              : "there (" + joined(units) + "), but no device is in a group";
  check.remedy = iommu_remedy(roots);
  return check;
}

Check check_interrupt_remapping(const Roots& roots, const Surroundings& surroundings) {
  Check check{"interrupt remapping"};
  if (!has_iommu(roots)) {
    check.level = Level::kWarning;
    check.found = "not known: it comes with the IOMMU, which is not on";
    check.remedy = "see iommu";
    return check;
  }
  // The kernel says so nowhere else than in the names of interrupt chips.
  const auto interrupts = read_text(roots.proc + "/interrupts", 4 << 20).value_or("");
  const bool is_x86 = surroundings.machine.starts_with("x86") || surroundings.machine == "i686";
  const bool remapped = interrupts.find(" IR-") != std::string::npos;
  const bool by_its = !is_x86 && interrupts.find("ITS-") != std::string::npos;
  if (remapped || by_its) {
    check.found = remapped ? "on" : "on (GIC ITS)";
    return check;
  }
  const bool unsafe = is_on(unsafe_parameter(roots, "vfio_iommu_type1")) ||
                      is_on(unsafe_parameter(roots, "iommufd"));
  check.level = unsafe ? Level::kWarning : Level::kProblem;
  check.found = "no interrupt in /proc/interrupts is remapped";
  check.remedy = unsafe ? "allow_unsafe_interrupts is set, so VFIO takes devices all the same: see "
                          "there"
                        : "x2APIC or interrupt remapping in the firmware's set-up; no "
                          "intremap=off on the kernel's command line. VFIO refuses devices else";
  return check;
}

Check check_unsafe_interrupts(const Roots& roots) {
  Check check{"unsafe interrupts"};
  std::vector<std::string> modules;
  for (const auto* module : {"vfio_iommu_type1", "iommufd"})
    if (is_on(unsafe_parameter(roots, module))) modules.emplace_back(module);
  if (modules.empty()) {
    check.found = "not allowed";
    return check;
  }
  check.level = Level::kWarning;
  check.found = "allowed (" + joined(modules) +
                "): a device, or who drives it, can forge interrupts of the machine";
  check.remedy =
      "where interrupt remapping is on it is not needed: take allow_unsafe_interrupts "
      "off the modules' options";
  return check;
}

Check check_no_iommu_mode(const Roots& roots) {
  Check check{"no-IOMMU mode"};
  const auto path = roots.sys + "/module/vfio/parameters/enable_unsafe_noiommu_mode";
  if (!is_on(path)) {
    check.found = exists(path) ? "off" : "this kernel has none";
    return check;
  }
  check.level = Level::kProblem;
  check.found =
      "ON: whoever opens a device through it can read and overwrite all memory of the "
      "machine, the kernel's too";
  check.remedy = "echo N > /sys/module/vfio/parameters/enable_unsafe_noiommu_mode";
  return check;
}

}  // namespace vfio::sysfs::doctor
