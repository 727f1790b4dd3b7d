// Opening a device of the kernel's VFIO where it cannot be had, on a machine made of files: each
// reason is one line that says what to do. What needs a kernel is tests/vfio_kernel's.
#include "vfio/kernel/open_kernel.h"

#include <fcntl.h>
#include <linux/iommufd.h>
#include <linux/vfio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

#include "scripted_device.h"
#include "scripted_ioctl.h"

namespace vfio_test {
namespace {

namespace fs = std::filesystem;
using base::Errc;
using vfio::KernelBackend;
using vfio::KernelName;

constexpr const char* kGpu = "0000:03:00.0";

TEST(KernelName, FormsThatAreKnown) {
  const auto plain = KernelName::parse("pci:0000:03:00.0").value();
  EXPECT_EQ(plain.address.text(), kGpu);
  EXPECT_EQ(plain.backend, KernelBackend::kBest);
  EXPECT_FALSE(plain.without_iommu);
  EXPECT_EQ(KernelName::parse("pci:03:00.0,backend=iommufd").value().backend,
            KernelBackend::kIommufd);
  const auto all = KernelName::parse(
                       "pci:10000:ff:1f.7,i-know-that-this-device-can-overwrite-all-memory,"
                       "backend=group")
                       .value();
  EXPECT_EQ(all.address.text(), "10000:ff:1f.7");
  EXPECT_EQ(all.backend, KernelBackend::kGroup);
  EXPECT_TRUE(all.without_iommu);
}

TEST(KernelName, OthersAreRefusedWithTheForm) {
  for (const char* name :
       {"pci:", "pci:0000:03:00", "pci:0000:03:00.8", "pci:0000:03:20.0", "pci:0000:03:00.0x",
        "pci:../../etc", "pci:0000:03:00.0,", "pci:0000:03:00.0,backend=", "0000:03:00.0",
        "pci:0000:03:00.0,backend=iommufd,", "pci:0000:03:00.0,noiommu",
        "pci:0000:03:00.0,backend=group,backend=iommufd",
        "pci:0000:03:00.0,backend=group,backend=group",
        "pci:0000:03:00.0,accept-deadly-reset,accept-deadly-reset"}) {
    const auto parsed = KernelName::parse(name);
    ASSERT_FALSE(parsed) << name;
    EXPECT_EQ(parsed.error().code, Errc::kInvalidArgument) << name;
    EXPECT_NE(parsed.error().step.find("pci:0000:03:00.0[,backend=iommufd|group]"),
              std::string::npos)
        << parsed.error().step;
    EXPECT_EQ(parsed.error().step.find("i-know"), std::string::npos) << "not advertised";
  }
}

TEST(KernelName, WhatIsEchoedIsOneShortLine) {
  for (const std::string& tail : {std::string("\nnext line"), std::string(5000, 'x')})
    for (const std::string& name :
         {"pci:0000:03:00.0," + tail, "pci:" + tail, "pci:0000:03:00.0" + tail}) {
      const auto said = KernelName::parse(name).error().step;
      EXPECT_EQ(said.find('\n'), std::string::npos) << said;
      EXPECT_LT(said.size(), 250u);
    }
}

class OpenKernel : public testing::Test {
 protected:
  OpenKernel() {
    std::string pattern = testing::TempDir() + "kernelXXXXXX";
    root_ = ::mkdtemp(pattern.data());
    options_.roots = vfio::sysfs::Roots::below(root_);
    fs::create_directories(root_ + "/dev/vfio/devices");
    add(kGpu, "vfio-pci");
  }
  ~OpenKernel() override { fs::remove_all(root_); }

  void put(const std::string& below, const std::string& text) {
    fs::create_directories(fs::path(root_ + below).parent_path());
    std::ofstream(root_ + below) << text;
  }
  std::string directory(const std::string& address) { return "/sys/bus/pci/devices/" + address; }
  void bind(const std::string& address, const std::string& driver) {
    const fs::path link = root_ + directory(address) + "/driver";
    fs::remove(link);
    fs::create_directories(root_ + "/sys/bus/pci/drivers/" + driver);
    if (!driver.empty()) fs::create_symlink(root_ + "/sys/bus/pci/drivers/" + driver, link);
  }
  void add(const std::string& address, const std::string& driver, const std::string& group = "7") {
    put(directory(address) + "/vendor", "0x1002\n");
    put(directory(address) + "/device", "0x75f0\n");
    put(directory(address) + "/class", "0x120000\n");
    put(directory(address) + "/reset_method", "flr bus\n");
    bind(address, driver);
    const std::string groups = root_ + "/sys/kernel/iommu_groups/" + group;
    fs::create_directories(groups + "/devices");
    fs::create_symlink(root_ + directory(address), groups + "/devices/" + address);
    fs::create_symlink(groups, root_ + directory(address) + "/iommu_group");
  }
  base::Error fails(KernelName what) {
    auto device = vfio::open_kernel_device("pci:" + what.address.text(), what, options_);
    EXPECT_FALSE(device);
    if (device) return {};
    EXPECT_EQ(device.error().step.find('\n'), std::string::npos);
    return device.error();
  }
  base::Error fails(const std::string& options = "") {
    return fails(KernelName::parse("pci:" + std::string(kGpu) + options).value());
  }
  static void says(const base::Error& error, Errc code, std::initializer_list<const char*> parts) {
    EXPECT_EQ(error.code, code) << error.message();
    for (const char* part : parts)
      EXPECT_NE(error.step.find(part), std::string::npos) << part << " in: " << error.step;
  }

  std::string root_;
  vfio::KernelOptions options_;
};

TEST_F(OpenKernel, NoSuchDevice) {
  says(fails(KernelName::parse("pci:0000:04:00.0").value()), Errc::kNotFound, {"0000:04:00.0"});
}

TEST_F(OpenKernel, NotBoundNamesTheDriverAndTheRemedy) {
  bind(kGpu, "amdgpu");
  says(fails(), Errc::kPermission, {"amdgpu", "gpuctl bind 0000:03:00.0"});
  bind(kGpu, "");
  says(fails(), Errc::kPermission, {"no driver", "gpuctl bind 0000:03:00.0"});
}

TEST_F(OpenKernel, NoIommu) {
  fs::remove(root_ + directory(kGpu) + "/iommu_group");
  says(fails(), Errc::kUnsupported, {"IOMMU", "gpuctl doctor"});
}

TEST_F(OpenKernel, NoIommuModeIsRefusedUnlessOneInsists) {
  put("/sys/kernel/iommu_groups/7/name", "vfio-noiommu\n");
  says(fails(), Errc::kUnsupported,
       {"overwrite all memory", "i-know-that-this-device-can-overwrite-all-memory"});
  const std::string insist = ",i-know-that-this-device-can-overwrite-all-memory";
  says(fails(insist + ",backend=iommufd"), Errc::kUnsupported, {"backend=group"});
  // As far as the nodes of that mode, then.
  says(fails(insist), Errc::kNotFound, {"/dev/vfio/vfio"});
}

TEST_F(OpenKernel, AGroupThatIsNotViableNamesTheOthers) {
  add("0000:03:00.1", "snd_hda_intel");
  add("0000:03:00.2", "xhci_hcd");
  add("0000:03:00.3", "vfio-pci");
  const auto error = fails();
  says(error, Errc::kPermission,
       {"group 7", "0000:03:00.1 (snd_hda_intel)", "0000:03:00.2 (xhci_hcd)", "bind"});
  EXPECT_EQ(error.step.find("0000:03:00.3"), std::string::npos) << error.step;
}

TEST_F(OpenKernel, FirmwareThatKeepsTheGroup) {
  put("/sys/kernel/iommu_groups/7/reserved_regions",
      "0x0000000000000000 0x0000000000ffffff direct\n");
  says(fails(), Errc::kUnsupported, {"firmware"});
}

// Opening would reset it: by then it is too late.
TEST_F(OpenKernel, APartThatWouldNotSurviveItsResetIsNotOpened) {
  put(directory(kGpu) + "/device", "0x74a1\n");
  says(fails(), Errc::kUnsupported, {"flr", "MI300X"});
  put(directory(kGpu) + "/reset_method", "\n");
  says(fails(), Errc::kNotFound, {"/dev/vfio/vfio"});
}

// Cut by somebody who did not look what the last close does below a bridge.
TEST_F(OpenKernel, APartThatItsLastCloseKillsIsNotOpenedUnlessOneInsists) {
  const std::string below = "/sys/devices/pci0000:00/0000:00:01.0/";
  fs::create_directories(root_ + below);
  fs::rename(root_ + directory(kGpu), root_ + below + kGpu);
  fs::create_directory_symlink(root_ + below + kGpu, root_ + directory(kGpu));
  put(directory(kGpu) + "/device", "0x74a1\n");
  put(directory(kGpu) + "/reset_method", "\n");
  says(fails(), Errc::kUnsupported, {"MI300X", "last process", "accept-deadly-reset"});
  says(fails(",accept-deadly-reset"), Errc::kNotFound, {"/dev/vfio/vfio"});
}

TEST_F(OpenKernel, WithoutNodesTheModulesAreNamed) {
  says(fails(), Errc::kNotFound, {"/dev/vfio/vfio", "modprobe"});
  says(fails(",backend=group"), Errc::kNotFound, {"/dev/vfio/vfio", "modprobe"});
  says(fails(",backend=iommufd"), Errc::kUnsupported, {"backend=group"});
  fs::create_directories(root_ + directory(kGpu) + "/vfio-dev/vfio3");
  says(fails(",backend=iommufd"), Errc::kNotFound, {"/dev/iommu", "modprobe"});
}

TEST_F(OpenKernel, NodesThatAreNothingOfVfio) {
  fs::create_directories(root_ + directory(kGpu) + "/vfio-dev/vfio3");
  put("/dev/iommu", "");
  put("/dev/vfio/devices/vfio3", "");
  says(fails(), Errc::kSystem, {"VFIO_DEVICE_BIND_IOMMUFD"});
  put("/dev/vfio/vfio", "");
  says(fails(",backend=group"), Errc::kUnsupported, {"VFIO"});
}

// Nodes of a machine whose kernel the test speaks for.
class OpenNodes : public OpenKernel {
 protected:
  OpenNodes() {
    fs::create_directories(root_ + directory(kGpu) + "/vfio-dev/vfio3");
    for (const char* node : {"/dev/iommu", "/dev/vfio/devices/vfio3", "/dev/vfio/vfio"})
      put(node, "");
    put("/dev/vfio/7", "");
    kernel_.on(IOMMU_IOAS_ALLOC, 0);
    // No further by the group than to see that it is taken.
    kernel_.on(VFIO_GET_API_VERSION, VFIO_API_VERSION + 1);
  }
  std::size_t count(unsigned long request) const {
    return static_cast<std::size_t>(std::ranges::count(kernel_.calls(), request));
  }
  bool tries_the_group() const { return count(VFIO_GET_API_VERSION) != 0; }

  ScriptedIoctls kernel_;
};

// EINVAL of the bind has two meanings.
TEST_F(OpenNodes, ADeviceThatIsOpenElsewhereIsBusyAndItsHolderNamed) {
  kernel_.on(VFIO_DEVICE_BIND_IOMMUFD, -EINVAL);
  put("/proc/71/comm", "gpuumd\n");
  fs::create_directories(root_ + "/proc/71/fd");
  fs::create_symlink("/dev/vfio/devices/vfio3", root_ + "/proc/71/fd/9");
  says(fails(), Errc::kBusy, {"gpuumd", "pid 71"});
  EXPECT_FALSE(tries_the_group());
}

TEST_F(OpenNodes, ADeviceThatNobodyHasAndIommufdDoesNotTakeGoesByTheGroup) {
  kernel_.on(VFIO_DEVICE_BIND_IOMMUFD, -EINVAL);
  says(fails(",backend=iommufd"), Errc::kUnsupported, {"coherent", "open", "backend=group"});
  EXPECT_EQ(count(VFIO_DEVICE_BIND_IOMMUFD), 2u) << "it may have become free";
  EXPECT_FALSE(tries_the_group());
  (void)fails();
  EXPECT_TRUE(tries_the_group());
}

TEST_F(OpenNodes, WithoutAGroupToAskItMayBeBusy) {
  kernel_.on(VFIO_DEVICE_BIND_IOMMUFD, -EINVAL);
  fs::remove(root_ + "/dev/vfio/7");
  says(fails(",backend=iommufd"), Errc::kBusy, {"coherent", "open"});
}

TEST_F(OpenNodes, OnlyWhatIommufdCannotDoGoesByTheGroup) {
  kernel_.on(VFIO_DEVICE_BIND_IOMMUFD, 0);
  const struct {
    int refusal;
    Errc code;
  } kOwnErrors[] = {{-ENOMEM, Errc::kNoMemory}, {-EBUSY, Errc::kBusy}, {-EIO, Errc::kSystem}};
  for (const auto& [refusal, code] : kOwnErrors) {
    kernel_.on(VFIO_DEVICE_ATTACH_IOMMUFD_PT, refusal);
    EXPECT_EQ(fails().code, code) << refusal;
    EXPECT_FALSE(tries_the_group()) << refusal;
  }
  kernel_.on(VFIO_DEVICE_ATTACH_IOMMUFD_PT, -EOPNOTSUPP);
  (void)fails();
  EXPECT_TRUE(tries_the_group());
}

// The group's nodes may be anybody's; who may use iommufd is the administrator's to say.
TEST_F(OpenNodes, ANodeThatMayNotBeOpenedIsNoReasonForTheGroup) {
  ::chmod((root_ + "/dev/iommu").c_str(), 0);
  ::chmod(root_.c_str(), 0755);
  const bool root = ::geteuid() == 0;  // who may open everything
  ASSERT_EQ(root ? ::seteuid(65534) : 0, 0);
  const auto error = fails();
  ASSERT_EQ(root ? ::seteuid(0) : 0, 0);
  says(error, Errc::kPermission, {"/dev/iommu", "run as root"});
  EXPECT_FALSE(tries_the_group());
}

TEST_F(OpenNodes, ADevicesMissingNodeIsNoMissingModule) {
  kernel_.on(VFIO_GET_API_VERSION, VFIO_API_VERSION);
  kernel_.on(VFIO_CHECK_EXTENSION, 1);
  fs::remove(root_ + "/dev/vfio/7");
  fs::remove(root_ + "/dev/vfio/devices/vfio3");
  for (const char* backend : {",backend=group", ",backend=iommufd"}) {
    const auto error = fails(backend);
    says(error, Errc::kNotFound, {"/dev/vfio/", "unbound"});
    EXPECT_EQ(error.step.find("modprobe"), std::string::npos) << error.step;
  }
}

// Both interfaces give the device, unless a test takes one away.
class OpenBackends : public OpenNodes {
 protected:
  OpenBackends() {
    const std::string node = root_ + "/dev/vfio/devices/vfio3";
    fs::resize_file(node, 4096);
    put_header(opened(node).get());
    answer_for_device(kernel_);
    kernel_.on(VFIO_DEVICE_BIND_IOMMUFD, 0);
    kernel_.on(VFIO_DEVICE_ATTACH_IOMMUFD_PT, 0);
    kernel_.on(IOMMU_IOAS_IOVA_RANGES, [](int, void* argument) {
      auto* const ranges = static_cast<iommu_ioas_iova_ranges*>(argument);
      ranges->num_iovas = 1;
      ranges->out_iova_alignment = 4096;
      *reinterpret_cast<iommu_iova_range*>(ranges->allowed_iovas) = {0, 0xffff'ffff};
      return 0;
    });
    kernel_.on(VFIO_GET_API_VERSION, VFIO_API_VERSION);
    kernel_.on(VFIO_CHECK_EXTENSION, 1);
    kernel_.on(VFIO_GROUP_GET_STATUS, [](int, void* argument) {
      static_cast<vfio_group_status*>(argument)->flags = VFIO_GROUP_FLAGS_VIABLE;
      return 0;
    });
    kernel_.on(VFIO_GROUP_SET_CONTAINER, 0);
    kernel_.on(VFIO_SET_IOMMU, 0);
    kernel_.on(VFIO_GROUP_GET_DEVICE_FD, [node](int, void*) { return opened(node).release(); });
    kernel_.on(VFIO_IOMMU_GET_INFO, [](int, void* argument) {
      static_cast<vfio_iommu_type1_info*>(argument)->flags = 0;
      return 0;
    });
  }
  static base::UniqueFd opened(const std::string& node) {
    return base::UniqueFd(::open(node.c_str(), O_RDWR | O_CLOEXEC));
  }
  vfio::DeviceIdentity identity(const std::string& options = "") {
    const std::string name = "pci:" + std::string(kGpu) + options;
    auto device = vfio::open_kernel_device(name, KernelName::parse(name).value(), options_);
    if (!device) ADD_FAILURE() << device.error().message();
    return device ? (*device)->identity() : vfio::DeviceIdentity{};
  }
};

TEST_F(OpenBackends, WhatIsUsualOrWasAskedForNeedsNoRemark) {
  for (const auto& [options, backend] :
       {std::pair("", "iommufd"), {",backend=iommufd", "iommufd"}, {",backend=group", "group"}}) {
    const auto found = identity(options);
    EXPECT_EQ(found.name, "pci:" + std::string(kGpu) + options);
    EXPECT_EQ(found.vendor, 0x1002);
    EXPECT_EQ(found.backend, backend) << options;
    EXPECT_EQ(found.backend_remark, "") << options;
  }
}

// Its unbind has begun before the kernel can ask us for it.
TEST_F(OpenBackends, ADeviceThatIsTakenAwayWhileItIsOpenedIsGivenBack) {
  bool armed = false;
  kernel_.on(VFIO_DEVICE_GET_IRQ_INFO, [](int, void* argument) {
    auto* const info = static_cast<vfio_irq_info*>(argument);
    info->flags = VFIO_IRQ_INFO_EVENTFD;
    info->count = info->index == VFIO_PCI_REQ_IRQ_INDEX ? 1 : 0;
    return 0;
  });
  kernel_.on(VFIO_DEVICE_SET_IRQS, [&](int, void* argument) {
    armed = static_cast<const vfio_irq_set*>(argument)->count == 1;
    fs::remove_all(root_ + directory(kGpu) + "/vfio-dev/vfio3");
    return 0;
  });
  for (const char* backend : {"iommufd", "group"}) {
    fs::create_directories(root_ + directory(kGpu) + "/vfio-dev/vfio3");
    says(fails(std::string(",backend=") + backend), Errc::kDeviceLost, {"wants the device back"});
    EXPECT_FALSE(armed) << "it is let go of";
  }
  // Kernels before 6.1 have no such folder, and by the group need none.
  fs::remove_all(root_ + directory(kGpu) + "/vfio-dev");
  EXPECT_EQ(identity(",backend=group").backend, "group");
}

TEST_F(OpenBackends, WhoeverGoesByTheGroupForWantOfIommufdSaysWhy) {
  kernel_.on(VFIO_DEVICE_ATTACH_IOMMUFD_PT, -EOPNOTSUPP);
  auto found = identity();
  EXPECT_EQ(found.backend, "group");
  EXPECT_EQ(found.backend_remark,
            "opened by its IOMMU group, not by iommufd: the device's IOMMU gives it no address "
            "space (VFIO_DEVICE_ATTACH_IOMMUFD_PT)");
  fs::remove(root_ + "/dev/iommu");
  EXPECT_NE(identity().backend_remark.find("/dev/iommu is not there"), std::string::npos);
  fs::remove_all(root_ + directory(kGpu) + "/vfio-dev");
  found = identity();
  EXPECT_EQ(found.backend, "group");
  EXPECT_NE(found.backend_remark.find("CONFIG_VFIO_DEVICE_CDEV"), std::string::npos);
}

// The kernel's answers are those to a device whose interrupts are not remapped, and to one that is
// open itself.
class OpenSharedGroup : public OpenBackends {
 protected:
  OpenSharedGroup() {
    add("0000:04:00.0", "vfio-pci");
    fs::create_directories(root_ + directory("0000:04:00.0") + "/vfio-dev/vfio4");
    kernel_.on(VFIO_DEVICE_BIND_IOMMUFD, -EPERM);
    kernel_.on(VFIO_GROUP_GET_STATUS, [](int, void* argument) {
      static_cast<vfio_group_status*>(argument)->flags =
          VFIO_GROUP_FLAGS_VIABLE | VFIO_GROUP_FLAGS_CONTAINER_SET;
      return 0;
    });
    put("/proc/71/comm", "gpuumd\n");
    fs::create_directories(root_ + "/proc/71/fd");
  }
  void hold(const std::string& node) {
    fs::remove(root_ + "/proc/71/fd/9");
    fs::create_symlink(node, root_ + "/proc/71/fd/9");
  }
  static constexpr const char* kBackends[] = {"", ",backend=iommufd", ",backend=group"};
};

TEST_F(OpenSharedGroup, TheOtherDeviceAndItsHolderAreNamed) {
  for (const char* node : {"/dev/vfio/devices/vfio4", "/dev/vfio/7"}) {
    hold(node);
    for (const char* backend : kBackends)
      says(fails(backend), Errc::kBusy,
           {"IOMMU group 7", "0000:04:00.0", "gpuumd (pid 71", "one device of a group", "ACS",
            "docs/vfio.md"});
  }
}

TEST_F(OpenSharedGroup, WhatAnotherDeviceIsNoReasonForIsNotBlamedOnIt) {
  says(fails(",backend=iommufd"), Errc::kUnsupported, {"intremap=on"});
  hold("/dev/vfio/devices/vfio3");
  for (const char* backend : {"", ",backend=group"}) {
    const auto error = fails(backend);
    says(error, Errc::kBusy, {"in use"});
    EXPECT_EQ(error.step.find("0000:04:00.0"), std::string::npos) << error.step;
  }
  hold("/dev/vfio/7");
  put("/proc/71/fdinfo/10", "vfio-device-syspath: /sys/devices/pci0000:00/0000:03:00.0\n");
  fs::create_symlink("anon_inode:[vfio-device]", root_ + "/proc/71/fd/10");
  EXPECT_EQ(fails().step.find("0000:04:00.0"), std::string::npos) << "it has this one";
  fs::remove(root_ + "/proc/71/fd/10");
  bind("0000:04:00.0", "");
  EXPECT_EQ(fails().step.find("0000:04:00.0"), std::string::npos) << "nobody can have it";
}

TEST_F(OpenBackends, EachRefusalOfTheGroupSaysWhatToDo) {
  const struct {
    unsigned long request;
    int refusal;
    Errc code;
    std::initializer_list<const char*> parts;
  } kRefusals[] = {
      {VFIO_GROUP_SET_CONTAINER, EINVAL, Errc::kBusy, {"in use", "gpuctl devices"}},
      {VFIO_GROUP_SET_CONTAINER, EPERM, Errc::kBusy, {"DMA", "gpuctl devices"}},
      {VFIO_SET_IOMMU, EPERM, Errc::kUnsupported, {"intremap=on", "allow_unsafe_interrupts"}},
      {VFIO_SET_IOMMU, ENODEV, Errc::kUnsupported, {"load vfio_iommu_type1"}},
      {VFIO_SET_IOMMU, EBUSY, Errc::kBusy, {"gpuctl devices"}},
      {VFIO_SET_IOMMU, ENOMEM, Errc::kNoMemory, {"VFIO_SET_IOMMU"}},
      {VFIO_SET_IOMMU, ENOSPC, Errc::kNoSpace, {"end other users"}},
      {VFIO_SET_IOMMU, EINVAL, Errc::kSystem, {"VFIO_SET_IOMMU", "dmesg", "gpuctl doctor"}},
      {VFIO_GROUP_GET_DEVICE_FD, EPERM, Errc::kPermission, {"run as root"}},
      {VFIO_GROUP_GET_DEVICE_FD, EBUSY, Errc::kBusy, {"open"}},
      {VFIO_GROUP_GET_DEVICE_FD, ENODEV, Errc::kNotFound, {"bound"}},
  };
  for (const auto& [request, refusal, code, parts] : kRefusals) {
    const auto usual = *kernel_.answer(request);
    kernel_.on(request, -refusal);
    says(fails(",backend=group"), code, parts);
    kernel_.on(request, usual);
  }
}

TEST_F(OpenBackends, WithoutAnIommuTheGroupTakesACapability) {
  put("/sys/kernel/iommu_groups/7/name", "vfio-noiommu\n");
  put("/dev/vfio/noiommu-7", "");
  for (const unsigned long request : {VFIO_GROUP_GET_DEVICE_FD, VFIO_GROUP_SET_CONTAINER}) {
    kernel_.on(request, -EPERM);
    says(fails(",i-know-that-this-device-can-overwrite-all-memory"), Errc::kPermission,
         {"CAP_SYS_RAWIO"});
  }
}

// Its physical function is under vfio-pci: whoever has that gives tokens.
TEST_F(OpenBackends, AVirtualFunctionThatWantsATokenSaysSo) {
  kernel_.on(VFIO_GROUP_GET_DEVICE_FD, -EACCES);
  kernel_.on(VFIO_DEVICE_BIND_IOMMUFD, -EACCES);
  for (const char* backend : {"", ",backend=group", ",backend=iommufd"})
    says(fails(backend), Errc::kPermission, {"VF token", "physical function", "pci-pf-stub"});
}

TEST_F(OpenKernel, NodesThatMayNotBeOpened) {
  put("/dev/vfio/vfio", "");
  ::chmod((root_ + "/dev/vfio/vfio").c_str(), 0);
  ::chmod(root_.c_str(), 0755);
  const uid_t nobody = 65534;
  const bool root = ::geteuid() == 0;  // who may open everything
  ASSERT_EQ(root ? ::seteuid(nobody) : 0, 0);
  const auto error = fails();
  ASSERT_EQ(root ? ::seteuid(0) : 0, 0);
  says(error, Errc::kPermission, {"/dev/vfio/vfio", "run as root"});
}

}  // namespace
}  // namespace vfio_test
