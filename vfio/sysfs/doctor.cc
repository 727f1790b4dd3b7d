#include "vfio/sysfs/doctor.h"

#include "vfio/sysfs/inventory.h"

namespace vfio::sysfs {
namespace {

void add_devices(const Roots& roots, std::vector<Check>& checks) {
  const auto inventory = take_inventory(roots);
  if (!inventory || inventory->candidates.empty()) {
    checks.push_back(
        {"devices", Level::kWarning,
         inventory ? "no GPU of the kind that gpuumd drives is on PCI" : inventory.error().step,
         "the device model needs none: gpuumd --device sim"});
    return;
  }
  for (const auto& candidate : inventory->candidates) {
    Check check{"device " + candidate.function.address.text()};
    check.found = to_string(candidate.readiness);
    if (!candidate.why.empty()) check.found += ": " + candidate.why;
    if (candidate.readiness == Readiness::kBlocked) {
      check.level = Level::kProblem;
      check.remedy = "docs/vfio.md \"When it does not work\"";
    } else if (candidate.quirk != nullptr) {
      check.level = Level::kWarning;
      check.found += "; " + std::string(candidate.quirk->part) + " does not survive some resets";
      check.remedy = "bind it with gpuctl, and read docs/vfio.md \"Reset\" before";
    }
    checks.push_back(std::move(check));
  }
}

}  // namespace

const char* to_string(Level level) {
  switch (level) {
    case Level::kOk:
      return "ok";
    case Level::kWarning:
      return "warning";
    case Level::kProblem:
      return "problem";
  }
  return "unknown";
}

std::vector<Check> examine_machine(const Roots& roots, const Surroundings& surroundings) {
  using namespace doctor;
  std::vector<Check> checks = {check_iommu(roots),
                               check_interrupt_remapping(roots, surroundings),
                               check_unsafe_interrupts(roots),
                               check_no_iommu_mode(roots),
                               check_driver(roots),
                               check_iommufd(roots, surroundings),
                               check_group_container(roots),
                               check_nodes(roots, surroundings),
                               check_memlock(surroundings),
                               check_huge_pages(roots),
                               check_io_uring(roots),
                               check_runtime_dir(surroundings)};
  add_devices(roots, checks);
  return checks;
}

}  // namespace vfio::sysfs
