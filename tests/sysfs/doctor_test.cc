// What the doctor says of the process that asks and of kernels; the whole of it is in tests/gpuctl.
#include "vfio/sysfs/doctor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sysfs/fake_machine.h"

namespace {

using namespace vfio::sysfs;
using sysfs_test::FakeMachine;
using ::testing::HasSubstr;

TEST(Doctor, MemlockIsJudgedByWhatADaemonNeeds) {
  Surroundings here;
  here.memlock_bytes = 8 << 20;
  EXPECT_EQ(doctor::check_memlock(here).level, Level::kWarning) << "a daemon starts with it";
  EXPECT_THAT(doctor::check_memlock(here).found, HasSubstr("8 MiB: all host memory"));
  EXPECT_THAT(doctor::check_memlock(here).remedy, HasSubstr("LimitMEMLOCK=infinity"));
  here.memlock_bytes = 2 << 20;
  EXPECT_EQ(doctor::check_memlock(here).level, Level::kWarning);
  here.memlock_bytes = (2 << 20) - 1;
  EXPECT_EQ(doctor::check_memlock(here).level, Level::kProblem);
  here.memlock_bytes = 64 << 10;
  EXPECT_EQ(doctor::check_memlock(here).level, Level::kProblem);
  EXPECT_THAT(doctor::check_memlock(here).found, HasSubstr("64 KiB: less than"));
  here.may_lock_all = true;
  EXPECT_EQ(doctor::check_memlock(here).level, Level::kOk);
  EXPECT_EQ(doctor::check_memlock(Surroundings{}).level, Level::kOk);
}

TEST(Doctor, BackendsAreJudgedTogether) {
  FakeMachine machine;
  const auto roots = machine.roots();
  const Surroundings modern{.kernel_release = "6.12.9-cloud"};
  EXPECT_EQ(doctor::check_iommufd(roots, modern).level, Level::kProblem);
  EXPECT_EQ(doctor::check_group_container(roots).level, Level::kProblem);
  machine.put("/dev/vfio/vfio", "");
  EXPECT_EQ(doctor::check_iommufd(roots, modern).level, Level::kWarning);
  EXPECT_THAT(doctor::check_iommufd(roots, modern).remedy, HasSubstr("CONFIG_IOMMUFD"));
  EXPECT_THAT(doctor::check_iommufd(roots, {.kernel_release = "6.1.0-40"}).remedy,
              HasSubstr("Linux 6.6"));
  EXPECT_EQ(doctor::check_group_container(roots).level, Level::kOk);
  machine.put("/dev/iommu", "");
  machine.remove("/dev/vfio/vfio");
  EXPECT_EQ(doctor::check_iommufd(roots, modern).level, Level::kOk);
  EXPECT_THAT(doctor::check_iommufd(roots, modern).found, HasSubstr("by address"));
  EXPECT_EQ(doctor::check_group_container(roots).level, Level::kWarning);
  // iommufd without device nodes, although a device is bound: the kernel lacks the option.
  machine.put("/sys/class/vfio-dev/vfio0/x", "");
  EXPECT_EQ(doctor::check_iommufd(roots, modern).level, Level::kProblem);
  machine.put("/dev/vfio/devices/vfio0", "");
  EXPECT_EQ(doctor::check_iommufd(roots, modern).level, Level::kOk);
}

TEST(Doctor, InterruptRemappingOfX86IsInTheNamesOfChips) {
  FakeMachine machine;
  const auto roots = machine.roots();
  Surroundings here{.machine = "x86_64"};
  EXPECT_EQ(doctor::check_interrupt_remapping(roots, here).level, Level::kWarning) << "no IOMMU";
  machine.put("/sys/class/iommu/ivhd0/x", "");
  machine.put("/sys/kernel/iommu_groups/0/type", "DMA\n");
  machine.put("/proc/interrupts", " 30:  0  ITS-MSI 1 Edge nvme\n");
  EXPECT_EQ(doctor::check_interrupt_remapping(roots, here).level, Level::kProblem);
  here.machine = "aarch64";
  EXPECT_EQ(doctor::check_interrupt_remapping(roots, here).level, Level::kOk);
  here.machine = "x86_64";
  machine.put("/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "Y\n");
  EXPECT_EQ(doctor::check_interrupt_remapping(roots, here).level, Level::kWarning);
  machine.put("/proc/interrupts", " 30:  0  IR-PCI-MSI 1 edge nvme\n");
  EXPECT_EQ(doctor::check_interrupt_remapping(roots, here).level, Level::kOk);
}

TEST(Doctor, RuntimeDirectoryIsTriedWithoutBeingMade) {
  FakeMachine machine;
  Surroundings here{.runtime_dir = machine.path("/run/gpuumd")};
  EXPECT_EQ(doctor::check_runtime_dir(here).level, Level::kWarning) << "its parent is not there";
  here.runtime_dir = machine.path("/gpuumd");
  EXPECT_EQ(doctor::check_runtime_dir(here).level, Level::kOk);
  EXPECT_FALSE(exists(here.runtime_dir));
  machine.put("/gpuumd/gpuumd.sock", "");
  EXPECT_THAT(doctor::check_runtime_dir(here).found, HasSubstr("a daemon's socket"));
}

TEST(Doctor, EveryCheckHasANameOfItsOwnAndARemedyUnlessOk) {
  FakeMachine machine;
  machine.add({.address = "0000:03:00.0", .device = "0x74a1", .driver = "vfio-pci"});
  std::vector<std::string> names;
  for (const auto& check : examine_machine(machine.roots(), Surroundings{})) {
    names.push_back(check.name);
    EXPECT_FALSE(check.found.empty()) << check.name;
    EXPECT_EQ(check.remedy.empty(), check.level == Level::kOk) << check.name;
    EXPECT_EQ(check.remedy.find('\n'), std::string::npos) << check.name;
  }
  std::sort(names.begin(), names.end());
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
  EXPECT_THAT(names, ::testing::Contains("device 0000:03:00.0"));
}

}  // namespace
