// What is said of the devices of a machine.
#include "vfio/sysfs/inventory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sysfs/fake_machine.h"

namespace {

using namespace vfio::sysfs;
using sysfs_test::FakeMachine;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kGpu = "0000:03:00.0";

Candidate only_candidate(const FakeMachine& machine) {
  auto inventory = take_inventory(machine.roots());
  EXPECT_TRUE(inventory) << inventory.error().message();
  EXPECT_EQ(inventory->candidates.size(), 1u);
  return inventory && !inventory->candidates.empty() ? inventory->candidates.front() : Candidate{};
}

TEST(SysfsAddress, IsReadAndWritten) {
  EXPECT_EQ(PciAddress::parse("0000:03:00.0")->text(), "0000:03:00.0");
  EXPECT_EQ(PciAddress::parse("c1:1f.7")->text(), "0000:c1:1f.7");
  EXPECT_EQ(PciAddress::parse("10000:e1:00.0")->text(), "10000:e1:00.0");
  for (const auto* bad : {"", "0000", "03:00", "03:00.8", "03:20.0", "100:00.0", "0000:03:00.0 ",
                          " 03:00.0", "0000:0003:00.0", "0000:03:00.0/..", "x:03:00.0",
                          "-1:03:00.0", "0000:03:00.", "::.", "03:+1.0"})
    EXPECT_EQ(PciAddress::parse(bad).error().code, base::Errc::kInvalidArgument) << bad;
}

TEST(SysfsInventory, FindsOurKindAlone) {
  FakeMachine machine;
  machine.add({.address = "0000:03:00.0"});
  machine.add({.address = "0000:04:00.0", .class_code = "0x030000"});
  machine.add({.address = "0000:05:00.0", .class_code = "0x038000"});
  machine.add({.address = "0000:06:00.0", .vendor = "0x10de", .class_code = "0x030000"});
  machine.add({.address = "0000:07:00.0", .class_code = "0x040300"});
  machine.add({.address = "0000:08:00.0", .class_code = "0x120100"});
  const auto inventory = take_inventory(machine.roots());
  ASSERT_TRUE(inventory);
  std::vector<std::string> found;
  for (const auto& candidate : inventory->candidates)
    found.push_back(candidate.function.address.text());
  EXPECT_THAT(found, ::testing::ElementsAre("0000:03:00.0", "0000:04:00.0", "0000:05:00.0"));
  EXPECT_EQ(take_inventory(machine.roots(), true)->candidates.size(), 6u);
}

TEST(SysfsInventory, TellsWhatSysfsHas) {
  FakeMachine machine;
  machine.add({.address = kGpu, .driver = "vfio-pci"});
  const auto gpu = only_candidate(machine);
  EXPECT_EQ(gpu.name(), "pci:0000:03:00.0");
  EXPECT_EQ(gpu.function.device, 0x75F0);
  EXPECT_EQ(gpu.function.driver, "vfio-pci");
  EXPECT_EQ(gpu.function.iommu_group, 7u);
  EXPECT_EQ(gpu.function.numa_node, 1);
  EXPECT_EQ(gpu.function.power_state, "D0");
  EXPECT_EQ(gpu.function.vfio_device, "vfio0");
  EXPECT_THAT(gpu.reset_methods, ::testing::ElementsAre("flr", "bus"));
  ASSERT_EQ(gpu.function.bars.size(), 4u);
  EXPECT_EQ(gpu.function.bars[0].size, std::uint64_t{4} << 30);
  EXPECT_TRUE(gpu.function.bars[0].wide && gpu.function.bars[0].prefetchable);
  EXPECT_EQ(gpu.function.bars[1].index, 2u);
  EXPECT_TRUE(gpu.function.bars[2].io);
  EXPECT_EQ(gpu.function.bars[3].size, 512u << 10);
  EXPECT_FALSE(gpu.function.bars[3].wide || gpu.function.bars[3].io);
  EXPECT_EQ(gpu.readiness, Readiness::kReady) << gpu.why;
  EXPECT_TRUE(gpu.function.unread.empty());
}

TEST(SysfsInventory, SaysWhatToDoWithAnUnboundOne) {
  FakeMachine machine;
  machine.add({.address = kGpu});
  auto gpu = only_candidate(machine);
  EXPECT_EQ(gpu.readiness, Readiness::kBindable);
  EXPECT_THAT(gpu.why, HasSubstr("gpuctl bind 0000:03:00.0"));
  machine.set_driver(kGpu, "amdgpu");
  gpu = only_candidate(machine);
  EXPECT_EQ(gpu.readiness, Readiness::kBindable);
  EXPECT_THAT(gpu.why, HasSubstr("amdgpu"));
}

TEST(SysfsInventory, NoIommuIsNamed) {
  FakeMachine machine;
  machine.add({.address = kGpu, .driver = "amdgpu", .group = -1});
  const auto gpu = only_candidate(machine);
  EXPECT_EQ(gpu.readiness, Readiness::kBlocked);
  EXPECT_THAT(gpu.why, HasSubstr("no IOMMU group"));
  EXPECT_THAT(gpu.why, HasSubstr("gpuctl doctor"));
}

TEST(SysfsInventory, NoIommuModeIsNotReady) {
  FakeMachine machine;
  machine.add({.address = kGpu, .group = 0});
  machine.put("/sys/kernel/iommu_groups/0/name", "vfio-noiommu\n");
  machine.set_driver(kGpu, "vfio-pci");
  const auto gpu = only_candidate(machine);
  EXPECT_EQ(gpu.readiness, Readiness::kBlocked);
  EXPECT_THAT(gpu.why, HasSubstr("no-IOMMU"));
  EXPECT_EQ(gpu.group->dev_node(), "vfio/noiommu-0");
}

TEST(SysfsGroup, OffendersAreNamedAndBridgesAreNone) {
  FakeMachine machine;
  machine.add({.address = "0000:00:01.0", .class_code = "0x060400", .driver = "pcieport"});
  machine.add({.address = "0000:02:00.0", .class_code = "0x060400", .driver = "shpchp"});
  machine.add({.address = kGpu, .driver = "vfio-pci"});
  machine.add({.address = "0000:03:00.1", .class_code = "0x040300", .driver = "snd_hda_intel"});
  machine.add({.address = "0000:03:00.2", .class_code = "0x0c0330", .driver = "pci-stub"});
  machine.add({.address = "0000:03:00.3", .class_code = "0x0c8000"});
  auto gpu = only_candidate(machine);
  EXPECT_EQ(gpu.readiness, Readiness::kBlocked);
  EXPECT_EQ(gpu.why,
            "IOMMU group 7 is shared with 0000:03:00.1 (snd_hda_intel): bind it to vfio-pci too");
  machine.set_driver("0000:03:00.2", "xhci_hcd");
  EXPECT_THAT(only_candidate(machine).why,
              HasSubstr("0000:03:00.1 (snd_hda_intel), 0000:03:00.2 (xhci_hcd): bind them"));
  machine.set_driver("0000:03:00.1", "");
  machine.set_driver("0000:03:00.2", "mlx5-vfio-pci");
  EXPECT_EQ(only_candidate(machine).readiness, Readiness::kReady);
}

// The kernel judges by the driver: what else cannot be read of a member, or that it is no PCI
// function, takes nothing from that.
TEST(SysfsGroup, MembersThatAreNotUnderstoodCountByName) {
  FakeMachine machine;
  machine.add({.address = kGpu, .driver = "vfio-pci"});
  machine.add({.address = "0000:03:00.1", .class_code = "junk", .driver = "snd_hda_intel"});
  const auto gpu = only_candidate(machine);
  EXPECT_EQ(gpu.why,
            "IOMMU group 7 is shared with 0000:03:00.1 (snd_hda_intel): bind it to vfio-pci too");
  ASSERT_EQ(gpu.group->members.size(), 2u);
  EXPECT_TRUE(gpu.group->members[0].unread.empty());
  EXPECT_THAT(joined(gpu.group->members[1].unread), HasSubstr("junk"));
  machine.set_driver("0000:03:00.1", "");
  EXPECT_EQ(only_candidate(machine).readiness, Readiness::kReady);
  const std::string timer = "/sys/devices/platform/PNP0103:00";
  machine.put(timer + "/x", "");
  machine.link("/sys/kernel/iommu_groups/7/devices/PNP0103:00", timer);
  EXPECT_EQ(only_candidate(machine).readiness, Readiness::kReady) << "without a driver";
  machine.link(timer + "/driver", "/sys/bus/platform/drivers/hpet");
  EXPECT_EQ(only_candidate(machine).readiness, Readiness::kBlocked);
  EXPECT_THAT(only_candidate(machine).why, HasSubstr("shared with PNP0103:00 (hpet): "));
  machine.remove(timer + "/driver");
  machine.put(timer + "/driver", "no link");
  EXPECT_THAT(only_candidate(machine).why, HasSubstr("PNP0103:00 (its driver cannot be read)"));
}

// Gone in between: no member any more.
TEST(SysfsGroup, MemberThatHasGoneIsNone) {
  FakeMachine machine;
  machine.add({.address = kGpu, .driver = "vfio-pci"});
  machine.link("/sys/kernel/iommu_groups/7/devices/0000:03:00.1",
               FakeMachine::dir_of("0000:03:00.1"));
  EXPECT_EQ(only_candidate(machine).readiness, Readiness::kReady);
}

TEST(SysfsGroup, MappedByFirmwareIsBlocked) {
  FakeMachine machine;
  machine.add({.address = kGpu, .driver = "vfio-pci"});
  machine.put("/sys/kernel/iommu_groups/7/reserved_regions",
              "0x00000000fee00000 0x00000000feefffff msi\n");
  EXPECT_EQ(only_candidate(machine).readiness, Readiness::kReady);
  machine.put("/sys/kernel/iommu_groups/7/reserved_regions",
              "0x000000007f000000 0x000000007fffffff direct\n"
              "0x00000000fee00000 0x00000000feefffff msi\n");
  EXPECT_THAT(only_candidate(machine).why, HasSubstr("RMRR"));
}

TEST(SysfsUsage, WhoeverHoldsANodeIsNamed) {
  FakeMachine machine;
  machine.add({.address = kGpu, .driver = "amdgpu"});
  machine.put(FakeMachine::dir_of(kGpu) + "/drm/renderD128/dev", "226:128\n");
  machine.add_process(71, "rocm-job", "/dev/dri/renderD129");
  EXPECT_EQ(only_candidate(machine).readiness, Readiness::kBindable);
  machine.add_process(72, "other-job", "/dev/dri/renderD128");
  const auto gpu = only_candidate(machine);
  EXPECT_EQ(gpu.readiness, Readiness::kInUse);
  EXPECT_EQ(gpu.why, "held by other-job (pid 72, dri/renderD128)");
}

// A container has other paths for the same nodes: the number counts. /dev/null stands for the node.
TEST(SysfsUsage, NodeIsKnownByItsNumberToo) {
  FakeMachine machine;
  machine.add({.address = kGpu, .driver = "amdgpu"});
  machine.put(FakeMachine::dir_of(kGpu) + "/drm/card0/dev", "1:3\n");
  machine.add_process(71, "in-container", "/dev/zero");
  EXPECT_EQ(only_candidate(machine).readiness, Readiness::kBindable);
  machine.add_process(72, "in-container", "/dev/null");
  EXPECT_THAT(only_candidate(machine).why, HasSubstr("in-container (pid 72, dri/card0)"));
}

TEST(SysfsUsage, NodesOfEveryClassOfTheDeviceCount) {
  const std::tuple<const char*, const char*, const char*> kNodes[] = {
      {"/accel/accel0/dev", "261:0\n", "accel/accel0"}, {"/graphics/fb1/dev", "29:1\n", "fb1"}};
  for (const auto& [attribute, number, node] : kNodes) {
    FakeMachine machine;
    machine.add({.address = kGpu, .driver = "amdgpu"});
    machine.put(FakeMachine::dir_of(kGpu) + attribute, number);
    machine.add_process(71, "stranger", "/dev/fb0");
    EXPECT_EQ(only_candidate(machine).readiness, Readiness::kBindable);
    machine.add_process(72, "job", "/dev/" + std::string(node));
    EXPECT_EQ(only_candidate(machine).why, "held by job (pid 72, " + std::string(node) + ")");
  }
}

// A mapping keeps the device when its descriptor is closed.
TEST(SysfsUsage, WhoHasANodeMappedAloneIsNamed) {
  FakeMachine machine;
  machine.add({.address = kGpu, .driver = "amdgpu"});
  machine.put(FakeMachine::dir_of(kGpu) + "/drm/renderD128/dev", "1:3\n");
  machine.add_mapping(71, "stranger", "/dev/dri/renderD129");
  machine.add_mapping(72, "private", "/dev/dri/renderD128", "rw-p");
  EXPECT_EQ(only_candidate(machine).readiness, Readiness::kBindable);
  machine.add_mapping(73, "job", "/dev/dri/renderD128");
  EXPECT_EQ(only_candidate(machine).why, "held by job (pid 73, dri/renderD128)");
  machine.add_mapping(73, "in-container", "/gpu", "r--s", "/dev/null");
  EXPECT_EQ(only_candidate(machine).why, "held by in-container (pid 73, dri/renderD128)");
}

TEST(SysfsUsage, WhoHasABarsFileOpenOrMappedIsNamed) {
  FakeMachine machine;
  machine.add({.address = kGpu, .driver = "vfio-pci"});
  const std::string folder = "/sys/devices/pci0000:00/";
  for (const auto* other : {"0000:04:00.0/resource0", "0000:03:00.0/resource",
                            "0000:03:00.0/resource_alignment", "0000:03:00.0/config"}) {
    machine.add_process(71, "stranger", folder + other);
    machine.add_mapping(72, "stranger", folder + other);
    EXPECT_EQ(only_candidate(machine).readiness, Readiness::kReady) << other;
  }
  machine.add_mapping(72, "peek", folder + "0000:03:00.0/resource5");
  EXPECT_EQ(only_candidate(machine).why, "held by peek (pid 72, resource5)");
  machine.remove("/proc/72");
  machine.add_process(71, "poke", folder + "0000:03:00.0/resource0_wc");
  EXPECT_EQ(only_candidate(machine).why, "held by poke (pid 71, resource0_wc)");
}

TEST(SysfsUsage, KfdClientOfAnotherGpuIsNoUser) {
  FakeMachine machine;
  machine.add({.address = kGpu, .driver = "amdgpu"});
  machine.add_process(80, "rocm-job", "/dev/kfd");
  EXPECT_THAT(only_candidate(machine).why, HasSubstr("rocm-job (pid 80, kfd)"));
  const std::string kfd = "/sys/class/kfd/kfd/";
  machine.put(kfd + "topology/nodes/1/gpu_id", "4711\n");
  machine.put(kfd + "topology/nodes/1/properties",
              "cpu_cores_count 0\nlocation_id 768\ndomain 0\n");
  EXPECT_EQ(only_candidate(machine).readiness, Readiness::kInUse) << "nothing is known yet";
  machine.put(kfd + "proc/80/vram_4711", "0\n");
  EXPECT_EQ(only_candidate(machine).readiness, Readiness::kBindable);
  machine.put(kfd + "proc/80/vram_4711", "65536\n");
  EXPECT_EQ(only_candidate(machine).readiness, Readiness::kInUse);
}

TEST(SysfsUsage, VfioUsersAreFoundByGroupDeviceAndDescriptor) {
  FakeMachine machine;
  machine.add({.address = kGpu, .driver = "vfio-pci"});
  for (const auto* target : {"/dev/vfio/7", "/dev/vfio/devices/vfio0"}) {
    machine.add_process(90, "gpuumd", target);
    EXPECT_THAT(only_candidate(machine).why, HasSubstr("held by gpuumd (pid 90")) << target;
  }
  machine.add_process(90, "gpuumd", "/dev/vfio/vfio");
  EXPECT_EQ(only_candidate(machine).readiness, Readiness::kReady);
  machine.add_process(90, "gpuumd", "anon_inode:[vfio-device]");
  EXPECT_EQ(only_candidate(machine).readiness, Readiness::kReady) << "nothing says which";
  machine.put("/proc/90/fdinfo/3",
              "pos:\t0\nvfio-device-syspath: /sys/devices/pci0000:00/0000:03:00.0\n");
  EXPECT_THAT(only_candidate(machine).why, HasSubstr("vfio device"));
}

// One daemon, or two, cannot have two devices of a group.
TEST(SysfsUsage, WhoHasAnotherDeviceOfTheGroupKeepsThisOne) {
  FakeMachine machine;
  machine.add({.address = kGpu, .driver = "vfio-pci"});
  machine.add({.address = "0000:04:00.0", .driver = "vfio-pci"});
  const auto other = FakeMachine::dir_of("0000:04:00.0") + "/vfio-dev/";
  machine.remove(other);
  machine.put(other + "vfio1/dev", "511:1\n");
  const auto first = [&] { return take_inventory(machine.roots())->candidates.front(); };
  EXPECT_EQ(first().readiness, Readiness::kReady);
  machine.add_process(90, "gpuumd", "/dev/vfio/devices/vfio1");
  EXPECT_EQ(first().readiness, Readiness::kInUse);
  EXPECT_EQ(first().why,
            "IOMMU group 7, which it shares with 0000:04:00.0, is in use (held by gpuumd (pid 90, "
            "vfio/devices/vfio1)): gpuumd opens one device of a group; another slot, or a port "
            "with ACS above it, gives it a group of its own (docs/vfio.md)");
  machine.join_group("0000:04:00.0", 8);
  machine.remove("/sys/kernel/iommu_groups/7/devices/0000:04:00.0");
  EXPECT_EQ(first().readiness, Readiness::kReady);
}

TEST(SysfsUsage, DisplaysInterfacesMountsAndVirtualFunctionsCount) {
  const auto dir = FakeMachine::dir_of(kGpu);
  const std::pair<std::vector<std::pair<std::string, std::string>>, std::string> kCases[] = {
      {{{dir + "/boot_vga", "1\n"}}, "boot display"},
      {{{dir + "/drm/card0/card0-DP-1/enabled", "enabled\n"}}, "display DP-1"},
      {{{dir + "/sriov_numvfs", "4\n"}}, "4 virtual functions"},
      {{{dir + "/net/eth7/operstate", "up\n"}}, "eth7"},
      {{{dir + "/nvme/nvme0/nvme0n1/queue/x", ""},
        {dir + "/nvme/nvme0/nvme0n1/nvme0n1p1/partition", "1\n"},
        {dir + "/nvme/nvme0/nvme0n1/nvme0n1p1/dev", "259:1\n"},
        {"/proc/self/mountinfo", "31 1 259:1 / /home rw - ext4 /dev/nvme0n1p1 rw\n"}},
       "nvme0n1p1 is mounted at /home"},
      {{{dir + "/nvme/nvme0/nvme0n1/queue/x", ""}, {dir + "/nvme/nvme0/nvme0n1/holders/dm-0", ""}},
       "dm-0 is built on its nvme0n1"},
  };
  for (const auto& [files, said] : kCases) {
    FakeMachine machine;
    machine.add({.address = kGpu, .driver = "amdgpu"});
    for (const auto& [path, text] : files) machine.put(path, text);
    const auto gpu = only_candidate(machine);
    EXPECT_EQ(gpu.readiness, Readiness::kInUse) << said;
    EXPECT_THAT(gpu.why, HasSubstr(said));
  }
  FakeMachine machine;
  machine.add({.address = kGpu, .driver = "amdgpu"});
  machine.put(dir + "/boot_vga", "0\n");
  machine.put(dir + "/drm/card0/card0-DP-1/enabled", "disabled\n");
  machine.put(dir + "/sriov_numvfs", "0\n");
  machine.put(dir + "/net/eth7/operstate", "down\n");
  EXPECT_EQ(only_candidate(machine).readiness, Readiness::kBindable);
}

TEST(SysfsInventory, MalformedFilesAreNamedAndTheRestIsSaid) {
  FakeMachine machine;
  machine.add({.address = kGpu, .driver = "vfio-pci"});
  const auto dir = FakeMachine::dir_of(kGpu);
  machine.put(dir + "/resource", "nonsense\n0x10 0x8 0x200\n0x0 0x0 0x0\n0x0 0xfff 0x200\n");
  machine.put(dir + "/numa_node", "many\n");
  machine.put(dir + "/sriov_numvfs", "\n");
  const auto gpu = only_candidate(machine);
  EXPECT_EQ(gpu.function.vendor, 0x1002);
  ASSERT_EQ(gpu.function.bars.size(), 1u);
  EXPECT_EQ(gpu.function.bars[0].index, 3u);
  EXPECT_EQ(gpu.function.numa_node, std::nullopt);
  const auto unread = joined(gpu.function.unread, "\n");
  for (const auto* said : {"line 1", "line 2", "\"many\"", "sriov_numvfs"})
    EXPECT_THAT(unread, HasSubstr(said));
  EXPECT_EQ(gpu.function.unread.size(), 4u) << unread;
}

// What gpuctl bind, or the daemon when it opens the device, would refuse is said before.
TEST(SysfsInventory, PartThatResetsKillIsBlockedAsFarAsTheyWould) {
  const auto dir = FakeMachine::dir_of(kGpu);
  FakeMachine machine;
  machine.add({.address = kGpu, .device = "0x74a1", .driver = "amdgpu", .behind_bridge = true});
  auto gpu = only_candidate(machine);
  EXPECT_EQ(gpu.readiness, Readiness::kBlocked);
  EXPECT_THAT(gpu.why, HasSubstr("gpuctl bind --accept-deadly-reset 0000:03:00.0"));
  machine.set_driver(kGpu, "vfio-pci");
  gpu = only_candidate(machine);
  EXPECT_EQ(gpu.readiness, Readiness::kBlocked);
  EXPECT_THAT(gpu.why, HasSubstr("\"flr\""));
  EXPECT_THAT(gpu.why, HasSubstr("gpuctl bind 0000:03:00.0"));
  machine.put(dir + "/reset_method", "\n");  // bound with --accept-deadly-reset
  gpu = only_candidate(machine);
  EXPECT_EQ(gpu.readiness, Readiness::kBlocked);
  EXPECT_THAT(gpu.why, HasSubstr("last process"));
  EXPECT_THAT(gpu.why, HasSubstr("gpuumd --device pci:0000:03:00.0,accept-deadly-reset"));
  machine.put(dir + "/reset_method", "pm\n");
  EXPECT_EQ(only_candidate(machine).readiness, Readiness::kReady);
  machine.put(dir + "/reset_method", "flr pm bus\n");
  machine.set_driver(kGpu, "amdgpu");
  EXPECT_EQ(only_candidate(machine).readiness, Readiness::kBindable);
  machine.remove(dir + "/reset_method");
  EXPECT_THAT(only_candidate(machine).why, HasSubstr("no reset_method to cut"));
  machine.set_driver(kGpu, "vfio-pci");
  EXPECT_EQ(only_candidate(machine).readiness, Readiness::kBlocked);
}

// No bus of its own to be reset by: its last close does nothing to it.
TEST(SysfsInventory, PartThatResetsKillIsReadyWithoutAMethodAndABridge) {
  FakeMachine machine;
  machine.add({.address = kGpu, .device = "0x74a1", .driver = "vfio-pci"});
  machine.put(FakeMachine::dir_of(kGpu) + "/reset_method", "\n");
  EXPECT_EQ(only_candidate(machine).readiness, Readiness::kReady);
}

TEST(SysfsInventory, WhoHasNoIdentityIsLeftOut) {
  FakeMachine machine;
  machine.add({.address = kGpu, .vendor = "junk"});
  machine.add({.address = "0000:04:00.0", .class_code = "0x1200000000"});
  machine.add({.address = "0000:05:00.0"});
  machine.remove(FakeMachine::dir_of("0000:05:00.0"));  // gone: the link leads nowhere
  machine.put("/sys/bus/pci/devices/README/vendor", "0x1002");
  EXPECT_TRUE(take_inventory(machine.roots(), true)->candidates.empty());
  const auto roots = machine.roots();
  EXPECT_EQ(read_function(roots, *PciAddress::parse(kGpu)).error().code, base::Errc::kProtocol);
  EXPECT_EQ(read_function(roots, *PciAddress::parse("05:00.0")).error().code,
            base::Errc::kNotFound);
}

TEST(SysfsInventory, UnreadableFilesAreNamed) {
  FakeMachine machine;
  machine.add({.address = kGpu, .driver = "vfio-pci"});
  // A directory in its place fails for root too.
  const auto file = FakeMachine::dir_of(kGpu) + "/power_state";
  machine.remove(file);
  machine.put(file + "/x", "");
  const auto gpu = only_candidate(machine);
  EXPECT_EQ(gpu.function.power_state, "");
  EXPECT_THAT(joined(gpu.function.unread), HasSubstr("power_state"));
}

TEST(SysfsInventory, MachineWithoutPciIsNotFound) {
  FakeMachine machine;
  machine.remove("/sys/bus");
  EXPECT_EQ(take_inventory(machine.roots()).error().code, base::Errc::kNotFound);
}

// Whoever unbinds it holds its lock, for which the reader of reset_method waits.
TEST(SysfsInventory, LockedDeviceDelaysAndStopsNothing) {
  FakeMachine machine;
  machine.add({.address = kGpu, .driver = "vfio-pci"});
  machine.fifo(FakeMachine::dir_of(kGpu) + "/reset_method");
  const auto gpu = only_candidate(machine);
  EXPECT_TRUE(gpu.reset_methods.empty());
  EXPECT_THAT(joined(gpu.function.unread), HasSubstr("reset_method: the kernel has not answered"));
}

TEST(SysfsInventory, NodesThatAreNotThereAreNamed) {
  FakeMachine machine;
  machine.add({.address = kGpu, .driver = "vfio-pci"});
  machine.remove("/dev/vfio/7");
  EXPECT_THAT(only_candidate(machine).why, HasSubstr("/dev/vfio/7"));
  machine.put("/dev/vfio/devices/vfio0", "");
  EXPECT_EQ(only_candidate(machine).readiness, Readiness::kReady);
}

}  // namespace
