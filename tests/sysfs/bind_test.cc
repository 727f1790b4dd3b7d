// Taking devices and giving them back, on a machine whose kernel is a thread of the test.
#include "vfio/sysfs/bind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "tests/sysfs/fake_kernel.h"
#include "tests/sysfs/fake_machine.h"

namespace {

using namespace std::chrono_literals;
using namespace vfio::sysfs;
using base::Errc;
using sysfs_test::FakeKernel;
using sysfs_test::FakeMachine;
using sysfs_test::Part;
using ::testing::HasSubstr;

constexpr const char* kGpu = "0000:03:00.0";
constexpr const char* kAudio = "0000:03:00.1";

class Bind : public ::testing::Test {
 protected:
  static PciAddress at(const char* text) { return *PciAddress::parse(text); }
  static std::string dir(const char* address) { return FakeMachine::dir_of(address); }
  std::string state_dir() const { return machine_.path("/var/lib/gpuumd"); }
  std::string driver(const char* address) const {
    return link_name(machine_.path(dir(address) + "/driver")).value_or("");
  }
  void add_gpu(const std::string& driver, const std::string& device = "0x75f0") {
    Part part{.address = kGpu, .device = device, .driver = driver};
    machine_.add(part);
  }
  void start_kernel() {
    kernel_.emplace(machine_);
    kernel_->match(kGpu, "amdgpu");
    kernel_->match(kAudio, "snd_hda_intel");
  }
  base::Result<Plan> plan(const std::vector<PciAddress>& addresses, BindOptions options = {}) {
    return plan_bind(machine_.roots(), addresses, options);
  }
  Errc code_of_plan(const std::vector<PciAddress>& addresses, BindOptions options = {}) {
    const auto made = plan(addresses, options);
    EXPECT_FALSE(made);
    text_ = made ? "" : made.error().step;
    return made ? Errc{} : made.error().code;
  }
  base::Result<void> bind(const std::vector<PciAddress>& addresses, BindOptions options = {},
                          std::chrono::milliseconds patience = 30s) {
    auto state = BindState::lock(machine_.roots(), state_dir());
    if (!state) return std::unexpected(state.error());
    auto made = plan(addresses, options);
    if (!made) return std::unexpected(made.error());
    return carry_out(machine_.roots(), *made, *state, patience);
  }
  base::Result<void> unbind(const std::vector<PciAddress>& addresses,
                            std::chrono::milliseconds patience = 30s) {
    auto state = BindState::lock(machine_.roots(), state_dir());
    if (!state) return std::unexpected(state.error());
    auto made = plan_unbind(machine_.roots(), *state, addresses);
    if (!made) return std::unexpected(made.error());
    auto done = carry_out(machine_.roots(), *made, *state, patience);
    not_restored_.clear();
    for (const auto& device : made->devices)
      not_restored_.insert(not_restored_.end(), device.not_restored.begin(),
                           device.not_restored.end());
    return done;
  }
  std::optional<Remembered> remembered() const {
    return BindState::read(machine_.roots(), state_dir())->find(at(kGpu));
  }

  FakeMachine machine_;
  std::optional<FakeKernel> kernel_;
  std::string text_;
  std::vector<std::string> not_restored_;  // of unbind()
};

TEST_F(Bind, TakesADeviceFromItsDriverAndGivesItBack) {
  add_gpu("amdgpu");
  start_kernel();
  const auto bound = bind({at(kGpu)});
  ASSERT_TRUE(bound) << bound.error().message();
  EXPECT_EQ(driver(kGpu), "vfio-pci");
  EXPECT_EQ(machine_.get(dir(kGpu) + "/driver_override"), "vfio-pci");
  EXPECT_EQ(machine_.get(dir(kGpu) + "/power/control"), "on");
  EXPECT_EQ(machine_.get(dir(kGpu) + "/reset_method"), "flr bus") << "it survives all of them";
  ASSERT_TRUE(remembered());
  EXPECT_EQ(remembered()->driver, "amdgpu");
  EXPECT_EQ(remembered()->driver_override, "");

  const auto returned = unbind({at(kGpu)});
  ASSERT_TRUE(returned) << returned.error().message();
  EXPECT_EQ(driver(kGpu), "amdgpu");
  EXPECT_EQ(machine_.get(dir(kGpu) + "/driver_override"), "");
  EXPECT_EQ(machine_.get(dir(kGpu) + "/power/control"), "auto");
  EXPECT_FALSE(remembered());
}

TEST_F(Bind, PlanSaysEachWriteAndWritesNothing) {
  add_gpu("amdgpu");
  const auto made = plan({at(kGpu)});
  ASSERT_TRUE(made) << made.error().message();
  ASSERT_EQ(made->devices.size(), 1u);
  const auto& device = made->devices[0];
  EXPECT_EQ(device.from, "amdgpu");
  EXPECT_EQ(device.to, "vfio-pci");
  std::vector<std::string> writes;
  for (const auto& step : device.steps)
    writes.push_back(step.path.substr(machine_.root().size()) + "=" + step.value);
  const std::string gpu = std::string("/sys/bus/pci/devices/") + kGpu;
  EXPECT_THAT(writes,
              ::testing::ElementsAre(gpu + "/driver_override=vfio-pci\n",
                                     std::string("/sys/bus/pci/drivers/amdgpu/unbind=") + kGpu,
                                     std::string("/sys/bus/pci/drivers_probe=") + kGpu,
                                     gpu + "/power/control=on\n"));
  EXPECT_EQ(driver(kGpu), "amdgpu");
  EXPECT_EQ(machine_.get(dir(kGpu) + "/driver_override"), "(null)");
  EXPECT_FALSE(exists(state_dir()));
}

TEST_F(Bind, OneWithoutADriverComesBackWithoutOne) {
  add_gpu("");
  start_kernel();
  ASSERT_TRUE(bind({at(kGpu)}));
  EXPECT_EQ(driver(kGpu), "vfio-pci");
  ASSERT_TRUE(unbind({at(kGpu)}));
  EXPECT_EQ(driver(kGpu), "");
}

TEST_F(Bind, OverrideThatWasThereComesBack) {
  add_gpu("amdgpu");
  machine_.put(dir(kGpu) + "/driver_override", "amdgpu\n");
  start_kernel();
  ASSERT_TRUE(bind({at(kGpu)}));
  ASSERT_TRUE(unbind({at(kGpu)}));
  EXPECT_EQ(machine_.get(dir(kGpu) + "/driver_override"), "amdgpu");
  EXPECT_EQ(driver(kGpu), "amdgpu");
}

TEST_F(Bind, BoundAlreadyNeedsNothing) {
  add_gpu("vfio-pci");
  machine_.put(dir(kGpu) + "/power/control", "on\n");
  machine_.add_process(90, "gpuumd", "/dev/vfio/7");
  const auto made = plan({at(kGpu)});
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_TRUE(made->devices[0].steps.empty());
  EXPECT_TRUE(bind({at(kGpu)}));
  EXPECT_FALSE(remembered());
}

TEST_F(Bind, WholeGroupIsLookedAt) {
  add_gpu("amdgpu");
  machine_.add({.address = "0000:00:01.0", .class_code = "0x060400", .driver = "pcieport"});
  machine_.add({.address = kAudio, .class_code = "0x040300", .driver = "snd_hda_intel"});
  start_kernel();
  EXPECT_EQ(code_of_plan({at(kGpu)}), Errc::kBusy);
  EXPECT_THAT(text_, HasSubstr("0000:03:00.1 (snd_hda_intel)"));
  EXPECT_THAT(text_, ::testing::Not(HasSubstr("0000:00:01.0")));
  EXPECT_EQ(code_of_plan({at(kAudio)}), Errc::kUnsupported) << "no GPU, and alone";
  EXPECT_EQ(code_of_plan({at(kGpu), at("0000:00:01.0")}), Errc::kBusy) << text_;
  const auto both = bind({at(kGpu), at(kAudio)});
  ASSERT_TRUE(both) << both.error().message();
  EXPECT_EQ(driver(kGpu), "vfio-pci");
  EXPECT_EQ(driver(kAudio), "vfio-pci");
  ASSERT_TRUE(unbind({at(kGpu), at(kAudio)}));
  EXPECT_EQ(driver(kAudio), "snd_hda_intel");
}

TEST_F(Bind, BridgeIsNotTaken) {
  add_gpu("amdgpu");
  machine_.add({.address = "0000:00:01.0", .class_code = "0x060400", .driver = "pcieport"});
  EXPECT_EQ(code_of_plan({at("0000:00:01.0"), at(kGpu)}), Errc::kUnsupported);
  EXPECT_THAT(text_, HasSubstr("bridge"));
}

TEST_F(Bind, DeviceInUseIsNeverTaken) {
  add_gpu("amdgpu");
  machine_.put(dir(kGpu) + "/drm/renderD128/dev", "226:128\n");
  machine_.add_process(71, "rocm-job", "/dev/dri/renderD128");
  EXPECT_EQ(code_of_plan({at(kGpu)}), Errc::kBusy);
  EXPECT_THAT(text_, HasSubstr("rocm-job (pid 71, dri/renderD128)"));
  machine_.remove("/proc/71");
  machine_.put(dir(kGpu) + "/boot_vga", "1\n");
  EXPECT_EQ(code_of_plan({at(kGpu)}), Errc::kBusy);
  EXPECT_THAT(text_, HasSubstr("boot display"));
  EXPECT_EQ(driver(kGpu), "amdgpu");
}

TEST_F(Bind, DeviceThatAProcessHasOpenIsNotGivenBack) {
  add_gpu("amdgpu");
  machine_.add({.address = kAudio, .class_code = "0x040300"});
  start_kernel();
  ASSERT_TRUE(bind({at(kGpu), at(kAudio)}));
  machine_.add_process(90, "gpuumd", "/dev/vfio/7");
  auto returned = unbind({at(kGpu)});
  ASSERT_FALSE(returned);
  EXPECT_EQ(returned.error().code, Errc::kBusy);
  EXPECT_THAT(returned.error().step, HasSubstr("gpuumd (pid 90"));
  EXPECT_EQ(driver(kGpu), "vfio-pci");
  // Through the other function of the group the kernel would refuse it to amdgpu.
  machine_.add_process(90, "gpuumd", "anon_inode:[vfio-device]");
  machine_.put("/proc/90/fdinfo/3", "vfio-device-syspath: /sys/devices/x/0000:03:00.1\n");
  returned = unbind({at(kGpu)});
  ASSERT_FALSE(returned);
  EXPECT_THAT(returned.error().step, HasSubstr("in use through 0000:03:00.1"));
  machine_.remove("/proc/90");
  EXPECT_TRUE(unbind({at(kGpu)}));
}

TEST_F(Bind, WhatCannotBeIsNamed) {
  EXPECT_EQ(code_of_plan({at(kGpu)}), Errc::kNotFound);
  EXPECT_EQ(code_of_plan({}), Errc::kInvalidArgument);
  add_gpu("amdgpu");
  EXPECT_EQ(code_of_plan({at(kGpu), at(kGpu)}), Errc::kInvalidArgument);
  machine_.remove("/sys/bus/pci/drivers/vfio-pci");
  EXPECT_EQ(code_of_plan({at(kGpu)}), Errc::kNotFound);
  EXPECT_THAT(text_, HasSubstr("modprobe vfio-pci"));
  machine_.add_driver("vfio-pci");
  machine_.remove(dir(kGpu) + "/iommu_group");
  EXPECT_EQ(code_of_plan({at(kGpu)}), Errc::kUnsupported);
  EXPECT_THAT(text_, HasSubstr("gpuctl doctor"));
  EXPECT_FALSE(unbind({at(kGpu)}));
}

TEST_F(Bind, NoIommuModeIsWarnedOf) {
  add_gpu("amdgpu");
  machine_.remove(dir(kGpu) + "/iommu_group");
  machine_.put("/sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n");
  const auto made = plan({at(kGpu)});
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_THAT(joined(made->devices[0].warnings), HasSubstr("overwrite all memory"));
}

TEST_F(Bind, OtherKindsAreTakenOnlyWhenToldTo) {
  machine_.add({.address = kGpu, .vendor = "0x1234", .device = "0x11e8", .class_code = "0x00ff00"});
  EXPECT_EQ(code_of_plan({at(kGpu)}), Errc::kUnsupported);
  EXPECT_TRUE(plan({at(kGpu)}, {.any_kind = true}));
}

TEST_F(Bind, DriverThatDoesNotTakeItIsUndone) {
  add_gpu("amdgpu");
  start_kernel();
  kernel_->refuse("vfio-pci");
  const auto bound = bind({at(kGpu)}, {}, 1s);
  ASSERT_FALSE(bound);
  EXPECT_THAT(bound.error().step, HasSubstr("driver vfio-pci did not take it"));
  EXPECT_THAT(bound.error().step, HasSubstr("undone"));
  EXPECT_EQ(machine_.get(dir(kGpu) + "/driver_override"), "");
  for (int i = 0; i < 1000 && driver(kGpu).empty(); ++i) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(driver(kGpu), "amdgpu");
  EXPECT_FALSE(remembered());
}

TEST_F(Bind, FailureOfTheSecondSaysThatTheFirstStaysBound) {
  add_gpu("amdgpu");
  machine_.add({.address = "0000:04:00.0", .driver = "snd_hda_intel", .group = 8});
  machine_.remove("/sys/bus/pci/drivers/snd_hda_intel/unbind");
  machine_.put("/sys/bus/pci/drivers/snd_hda_intel/unbind/x", "");  // a write fails
  start_kernel();
  const auto bound = bind({at(kGpu), at("0000:04:00.0")});
  ASSERT_FALSE(bound);
  EXPECT_THAT(bound.error().step, HasSubstr("0000:04:00.0: unbind from snd_hda_intel"));
  EXPECT_THAT(bound.error().step, HasSubstr("undone; 0000:03:00.0 stays bound"));
  EXPECT_EQ(driver(kGpu), "vfio-pci");
  EXPECT_TRUE(remembered());
}

// Another card where the remembered one was: it inherits neither driver nor reset methods.
TEST_F(Bind, AnotherPartAtTheAddressIsNotTheRememberedOne) {
  add_gpu("snd_hda_intel");
  start_kernel();
  ASSERT_TRUE(bind({at(kGpu)}));
  ASSERT_EQ(remembered()->driver, "snd_hda_intel");
  machine_.put(dir(kGpu) + "/device", "0x7551\n");
  const auto state = BindState::read(machine_.roots(), state_dir());
  const auto made = plan_unbind(machine_.roots(), *state, {at(kGpu)});
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_TRUE(made->devices[0].kernel_chooses);
  EXPECT_EQ(made->devices[0].to, "");
  ASSERT_TRUE(unbind({at(kGpu)}));
  for (int i = 0; i < 1000 && driver(kGpu).empty(); ++i) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(driver(kGpu), "amdgpu");
  EXPECT_FALSE(remembered());
}

TEST_F(Bind, DeviceThatVanishesInTheMiddleIsLost) {
  add_gpu("amdgpu");
  start_kernel();
  kernel_->vanish_on_unbind();
  const auto bound = bind({at(kGpu)});
  ASSERT_FALSE(bound);
  EXPECT_EQ(bound.error().code, Errc::kDeviceLost) << bound.error().message();
  EXPECT_THAT(bound.error().step, HasSubstr("the device has gone"));
  EXPECT_FALSE(remembered());
}

// The kernel waits in `unbind` until all have let go: no way to tell beforehand, and none to stop.
TEST_F(Bind, HungWriteEndsByItsDeadlineAndIsNamed) {
  add_gpu("amdgpu");
  machine_.fifo("/sys/bus/pci/drivers/amdgpu/unbind");
  const auto bound = bind({at(kGpu)}, {}, 200ms);
  ASSERT_FALSE(bound);
  EXPECT_EQ(bound.error().code, Errc::kTimeout);
  EXPECT_THAT(bound.error().step, HasSubstr("unbind from amdgpu"));
  EXPECT_THAT(bound.error().step, HasSubstr("nothing more was written"));
  EXPECT_EQ(machine_.get(dir(kGpu) + "/driver_override"), "vfio-pci") << "it was not touched again";
  ASSERT_TRUE(remembered()) << "unbind can still give it back";
  EXPECT_EQ(remembered()->driver, "amdgpu");
  // Later the kernel comes through, and the user gives it back.
  machine_.set_driver(kGpu, "");
  machine_.put(dir(kGpu) + "/x", "");
  start_kernel();
  const auto returned = unbind({at(kGpu)});
  ASSERT_TRUE(returned) << returned.error().message();
  EXPECT_EQ(driver(kGpu), "amdgpu");
  EXPECT_FALSE(remembered());
}

TEST_F(Bind, TryingAgainKeepsWhatTheFirstTimeRemembered) {
  add_gpu("amdgpu");
  machine_.fifo("/sys/bus/pci/drivers/amdgpu/unbind");
  ASSERT_FALSE(bind({at(kGpu)}, {}, 200ms));
  machine_.set_driver(kGpu, "");
  start_kernel();
  ASSERT_TRUE(bind({at(kGpu)}));
  EXPECT_EQ(remembered()->driver, "amdgpu");
}

TEST_F(Bind, PartThatResetsKillLosesThoseMethodsBeforeItIsBound) {
  add_gpu("amdgpu", "0x74a1");
  machine_.put(dir(kGpu) + "/reset_method", "flr pm bus\n");
  start_kernel();
  const auto made = plan({at(kGpu)});
  ASSERT_TRUE(made) << made.error().message();
  const auto& steps = made->devices[0].steps;
  const auto position = [&](const std::string& part) {
    return std::find_if(steps.begin(), steps.end(),
                        [&](const Step& step) { return step.path.ends_with(part); }) -
           steps.begin();
  };
  EXPECT_LT(position("/reset_method"), position("/drivers_probe"));
  ASSERT_TRUE(bind({at(kGpu)}));
  EXPECT_EQ(machine_.get(dir(kGpu) + "/reset_method"), "pm");
  ASSERT_TRUE(unbind({at(kGpu)}));
  EXPECT_EQ(machine_.get(dir(kGpu) + "/reset_method"), "flr pm bus");
}

// Function 0 of a card says "flr bus" until the kernel has found function 1, and then still says
// so.
TEST_F(Bind, MethodsThatAreAsRememberedAreNotWrittenAgain) {
  add_gpu("amdgpu");
  start_kernel();
  kernel_->can_reset_by(kGpu, "");
  ASSERT_TRUE(bind({at(kGpu)}));
  const auto returned = unbind({at(kGpu)});
  ASSERT_TRUE(returned) << returned.error().message();
  EXPECT_THAT(not_restored_, ::testing::IsEmpty());
  EXPECT_EQ(machine_.get(dir(kGpu) + "/reset_method"), "flr bus");
  EXPECT_EQ(driver(kGpu), "amdgpu");
  EXPECT_FALSE(remembered());
}

TEST_F(Bind, MethodsThatTheKernelHasNoMoreAreItsOwnChoice) {
  add_gpu("amdgpu", "0x74a1");
  machine_.put(dir(kGpu) + "/reset_method", "flr pm bus\n");
  machine_.add({.address = "0000:04:00.0", .driver = "snd_hda_intel", .group = 8});
  start_kernel();
  kernel_->match("0000:04:00.0", "snd_hda_intel");
  const std::vector<PciAddress> both = {at(kGpu), at("0000:04:00.0")};
  ASSERT_TRUE(bind(both));
  kernel_->can_reset_by(kGpu, "flr pm");
  const auto returned = unbind(both);
  ASSERT_TRUE(returned) << returned.error().message();
  EXPECT_EQ(machine_.get(dir(kGpu) + "/reset_method"), "flr pm");
  EXPECT_EQ(driver(kGpu), "amdgpu");
  EXPECT_EQ(driver("0000:04:00.0"), "snd_hda_intel");
  ASSERT_THAT(not_restored_, ::testing::SizeIs(1));
  EXPECT_THAT(not_restored_[0], HasSubstr("\"flr pm bus\""));
  EXPECT_THAT(not_restored_[0], HasSubstr("chose (flr pm)"));
}

TEST_F(Bind, UndoingDoesNotFailOfMethodsThatTheKernelHasNoMore) {
  add_gpu("amdgpu", "0x74a1");
  machine_.put(dir(kGpu) + "/reset_method", "flr pm bus\n");
  start_kernel();
  kernel_->can_reset_by(kGpu, "flr pm");
  kernel_->refuse("vfio-pci");
  const auto bound = bind({at(kGpu)}, {}, 1s);
  ASSERT_FALSE(bound);
  EXPECT_THAT(bound.error().step, HasSubstr("undone; 0000:03:00.0: its reset methods"));
  EXPECT_EQ(machine_.get(dir(kGpu) + "/reset_method"), "flr pm");
  for (int i = 0; i < 1000 && driver(kGpu).empty(); ++i) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(driver(kGpu), "amdgpu");
}

TEST_F(Bind, MethodsThatCannotBeWrittenKeepNobodyFromTheOldDriver) {
  add_gpu("amdgpu");
  start_kernel();
  ASSERT_TRUE(bind({at(kGpu)}));
  machine_.remove(dir(kGpu) + "/reset_method");
  machine_.put(dir(kGpu) + "/reset_method/x", "");  // a read and a write fail
  const auto returned = unbind({at(kGpu)});
  ASSERT_TRUE(returned) << returned.error().message();
  EXPECT_EQ(driver(kGpu), "amdgpu");
  ASSERT_THAT(not_restored_, ::testing::SizeIs(1));
  EXPECT_THAT(not_restored_[0], HasSubstr("\"flr bus\" are not restored: "));
}

TEST_F(Bind, PartThatItsLastCloseKillsIsTakenOnlyWhenToldTo) {
  machine_.add({.address = kGpu, .device = "0x74a1", .driver = "amdgpu", .behind_bridge = true});
  EXPECT_EQ(code_of_plan({at(kGpu)}), Errc::kUnsupported);
  EXPECT_THAT(text_, HasSubstr("--accept-deadly-reset"));
  const auto made = plan({at(kGpu)}, {.accept_deadly_reset = true});
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_THAT(joined(made->devices[0].warnings), HasSubstr("resets its bus"));
  // On a root bus there is nothing that could be reset.
  machine_.add({.address = "0000:04:00.0", .device = "0x74a1", .group = 8});
  EXPECT_TRUE(plan({at("0000:04:00.0")}));
  // A kernel that cannot be told would kill it when it is opened.
  machine_.remove(dir("0000:04:00.0") + "/reset_method");
  EXPECT_EQ(code_of_plan({at("0000:04:00.0")}), Errc::kUnsupported);
}

TEST_F(Bind, NotBoundByUsGoesWhereTheKernelSays) {
  add_gpu("vfio-pci", "0x74a1");
  start_kernel();
  ASSERT_TRUE(unbind({at(kGpu)}));
  for (int i = 0; i < 1000 && driver(kGpu).empty(); ++i) std::this_thread::sleep_for(5ms);
  EXPECT_EQ(driver(kGpu), "amdgpu");
  EXPECT_EQ(machine_.get(dir(kGpu) + "/reset_method"), "default");
}

TEST_F(Bind, DriverThatIsNotLoadedAnyMoreStopsUnbind) {
  add_gpu("amdgpu");
  start_kernel();
  ASSERT_TRUE(bind({at(kGpu)}));
  machine_.remove("/sys/bus/pci/drivers/amdgpu");
  const auto returned = unbind({at(kGpu)});
  ASSERT_FALSE(returned);
  EXPECT_THAT(returned.error().step, HasSubstr("modprobe amdgpu"));
  EXPECT_EQ(driver(kGpu), "vfio-pci");
}

TEST_F(Bind, StateOfAnEarlierBootIsVoid) {
  add_gpu("amdgpu");
  start_kernel();
  ASSERT_TRUE(bind({at(kGpu)}));
  ASSERT_TRUE(remembered());
  machine_.put("/proc/sys/kernel/random/boot_id", "another\n");
  EXPECT_FALSE(remembered());
}

TEST_F(Bind, DamagedStateIsNamed) {
  add_gpu("amdgpu");
  for (const auto* text : {"", "[]", "{\"version\": 1}", "{\"version\": 2}",
                           R"({"version": 1, "boot_id": "11111111-2222-3333-4444-555555555555",
                               "devices": {"x": {}}})"}) {
    machine_.put("/var/lib/gpuumd/bind.json", text);
    const auto state = BindState::read(machine_.roots(), state_dir());
    ASSERT_FALSE(state) << text;
    EXPECT_EQ(state.error().code, Errc::kProtocol);
    EXPECT_THAT(state.error().step, HasSubstr("bind.json is damaged"));
  }
}

TEST_F(Bind, OnlyOneAtATime) {
  const auto first = BindState::lock(machine_.roots(), state_dir());
  ASSERT_TRUE(first) << first.error().message();
  EXPECT_EQ(BindState::lock(machine_.roots(), state_dir()).error().code, Errc::kBusy);
}

TEST_F(Bind, StateThatCannotBeWrittenStopsItBeforeTheDeviceIsTouched) {
  add_gpu("amdgpu");
  start_kernel();
  auto state = BindState::lock(machine_.roots(), state_dir());
  auto made = plan({at(kGpu)});
  machine_.put("/var/lib/gpuumd/bind.json.new/x", "");  // a folder where the file would go
  EXPECT_FALSE(carry_out(machine_.roots(), *made, *state, 10s));
  EXPECT_EQ(machine_.get(dir(kGpu) + "/driver_override"), "(null)");
  EXPECT_EQ(driver(kGpu), "amdgpu");
}

}  // namespace
