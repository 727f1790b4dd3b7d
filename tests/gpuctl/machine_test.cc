// gpuctl devices, bind, unbind and doctor, as a process, on a made-up machine.
#include <gmock/gmock.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "tests/gpuctl/run.h"
#include "tests/gpuctl/schema.h"
#include "tests/sysfs/fake_kernel.h"
#include "tests/sysfs/fake_machine.h"
#include "tools/gpuctl/exit_code.h"

namespace {

using gpuctl_test::gpuctl;
using gpuctl_test::mismatch;
using nlohmann::json;
using sysfs_test::FakeKernel;
using sysfs_test::FakeMachine;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kGpu = "0000:03:00.0";

class GpuctlMachine : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file(std::string(std::getenv("GPUUMD_SOURCE")) + "/tools/gpuctl/schema.json");
    schema_ = json::parse(file);
  }
  gpuctl_test::Ran run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--sysroot", made_->root()});
    return gpuctl(arguments);
  }
  // File permissions hold for it, whoever runs the tests.
  gpuctl_test::Ran run_unprivileged(std::vector<std::string> arguments) const {
    arguments.insert(arguments.end(), {"--sysroot", made_->root()});
    const auto [program, all] = whole::Process::unprivileged("gpuctl", arguments);
    const gpuctl_test::TempDir logs;
    auto process = whole::Process::start(program, all, logs.path() + "/error");
    gpuctl_test::Ran ran;
    while (auto line = process.line_with("")) ran.out += *line + "\n";
    ran.code = process.wait().value_or(-1);
    ran.error = process.log();
    return ran;
  }
  // What a command gives with --json, checked against a part of the schema.
  json document(std::vector<std::string> arguments, const std::string& schema, int code = 0) const {
    arguments.emplace_back("--json");
    const auto ran = run(arguments);
    EXPECT_EQ(ran.code, code) << ran.error;
    const auto out = json::parse(ran.out, nullptr, false);
    EXPECT_EQ(mismatch(schema_, schema_["$defs"][schema], out), "") << ran.out;
    return out;
  }
  std::string driver(const std::string& address = kGpu) const {
    return vfio::sysfs::link_name(made_->path(FakeMachine::dir_of(address) + "/driver"))
        .value_or("");
  }
  // A machine on which nothing is a problem.
  void make_healthy() {
    made_->put("/sys/class/iommu/dmar0/x", "");
    made_->put("/proc/interrupts", " 24:  1  IR-PCI-MSI-0000:00:1f.2  0-edge\n");
    made_->put("/dev/iommu", "");
    made_->put("/dev/vfio/vfio", "");
    made_->put("/proc/sys/kernel/arch", "x86_64\n");
    made_->put("/proc/self/status", "CapEff:\t000001ffffffffff\n");
    made_->put("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always [within_size]\n");
  }
  static json check(const json& doctor, const std::string& name) {
    for (const auto& entry : doctor["checks"])
      if (entry["name"] == name) return entry;
    ADD_FAILURE() << "no check " << name;
    return {{"level", ""}, {"found", ""}, {"remedy", ""}};
  }

  std::optional<FakeMachine> made_{std::in_place};
  json schema_;
};

TEST_F(GpuctlMachine, DevicesAsTableAndAsJson) {
  made_->add({.address = kGpu, .driver = "amdgpu"});
  made_->add({.address = "0000:03:00.1", .class_code = "0x040300", .driver = "snd_hda_intel"});
  made_->add({.address = "0000:04:00.0", .device = "0x74a1", .driver = "vfio-pci", .group = 8});
  made_->put(FakeMachine::dir_of("0000:04:00.0") + "/reset_method", "pm\n");
  const auto all = document({"devices"}, "devices_document")["devices"];
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["address"], kGpu);
  EXPECT_EQ(all[0]["name"], "pci:0000:03:00.0");
  EXPECT_EQ(all[0]["pci_id"], "1002:75f0");
  EXPECT_EQ(all[0]["state"], "blocked");
  EXPECT_EQ(all[0]["group_members"].size(), 2u);
  EXPECT_EQ(all[0]["bars"][0]["bytes"], std::uint64_t{4} << 30);
  EXPECT_EQ(all[1]["dies_of_reset"], true);
  EXPECT_EQ(all[1]["state"], "ready");
  const auto table = run({"devices"});
  EXPECT_EQ(table.code, gpuctl::kOk);
  for (const auto* said :
       {"0000:03:00.0", "1002:75f0", "amdgpu", "flr bus", "0: 4 GiB, 2: 2 MiB, 5: 512 KiB",
        "in its group too: 0000:03:00.1 (snd_hda_intel)", "does not survive some resets"})
    EXPECT_THAT(table.out, HasSubstr(said));
}

TEST_F(GpuctlMachine, MembersOfAGroupThatCannotBeReadAreMarked) {
  made_->add({.address = kGpu, .driver = "vfio-pci"});
  made_->add({.address = "0000:03:00.1", .class_code = "junk"});
  made_->put("/sys/devices/platform/PNP0103:00/driver", "no link");
  made_->link("/sys/kernel/iommu_groups/7/devices/PNP0103:00", "/sys/devices/platform/PNP0103:00");
  const auto gpu = document({"devices"}, "devices_document")["devices"][0];
  ASSERT_EQ(gpu["group_members"].size(), 2u);
  EXPECT_EQ(gpu["group_members"][0]["unread"], json::array());
  ASSERT_EQ(gpu["group_members"][1]["unread"].size(), 1u);
  EXPECT_THAT(gpu["group_members"][1]["unread"][0].get<std::string>(), HasSubstr("/class"));
  EXPECT_EQ(gpu["group_strangers"], json({"PNP0103:00 (its driver cannot be read)"}));
  EXPECT_THAT(run({"devices"}).out,
              HasSubstr("in its group too: 0000:03:00.1 (cannot be read), PNP0103:00 (its driver"));
}

TEST_F(GpuctlMachine, DevicesOfOneAddressOfEveryKindAndOfNone) {
  EXPECT_EQ(run({"devices"}).out, "no devices\n");
  made_->add({.address = "0000:05:00.0", .vendor = "0x1234", .class_code = "0x00ff00"});
  EXPECT_EQ(run({"devices"}).out, "no devices\n");
  EXPECT_THAT(run({"devices", "--any"}).out, HasSubstr("1234:75f0"));
  EXPECT_THAT(run({"devices", "--device", "05:00.0"}).out, HasSubstr("1234:75f0"));
  const auto other = run({"devices", "--device", "06:00.0"});
  EXPECT_EQ(other.code, gpuctl::kNotFound);
  EXPECT_TRUE(other.one_line()) << other.error;
  EXPECT_THAT(other.error, HasSubstr("0000:06:00.0"));
}

TEST_F(GpuctlMachine, BindShowsThePlanAndDoesItWhenToldTo) {
  made_->add({.address = kGpu, .driver = "amdgpu"});
  FakeKernel kernel(*made_);
  kernel.match(kGpu, "amdgpu");
  const auto plan = run({"bind", kGpu});
  EXPECT_EQ(plan.code, gpuctl::kOk) << plan.error;
  EXPECT_THAT(plan.out, HasSubstr("amdgpu -> vfio-pci"));
  EXPECT_THAT(plan.out, HasSubstr("echo 0000:03:00.0 > " + made_->root() +
                                  "/sys/bus/pci/drivers/amdgpu/unbind"));
  EXPECT_THAT(plan.out, HasSubstr("--yes"));
  EXPECT_EQ(driver(), "amdgpu");

  const auto bound = run({"bind", "--yes", "pci:0000:03:00.0"});
  EXPECT_EQ(bound.code, gpuctl::kOk) << bound.error;
  EXPECT_THAT(bound.out, HasSubstr("done: 0000:03:00.0  amdgpu -> vfio-pci"));
  EXPECT_THAT(bound.out, HasSubstr("unbind from amdgpu"));
  EXPECT_THAT(bound.out, Not(HasSubstr("nothing has been written")));
  EXPECT_EQ(driver(), "vfio-pci");
  EXPECT_EQ(document({"bind", kGpu}, "bind_document")["devices"][0]["steps"].size(), 0u);

  EXPECT_THAT(run({"unbind", kGpu}).out, HasSubstr("vfio-pci -> amdgpu"));
  EXPECT_EQ(driver(), "vfio-pci");
  const auto back = document({"unbind", "--yes", kGpu}, "bind_document");
  EXPECT_EQ(back["done"], true);
  EXPECT_EQ(back["devices"][0]["to"], "amdgpu");
  EXPECT_EQ(driver(), "amdgpu");
}

TEST_F(GpuctlMachine, WhatUnbindCouldNotRestoreIsAWarning) {
  made_->add({.address = kGpu, .driver = "amdgpu"});
  FakeKernel kernel(*made_);
  kernel.match(kGpu, "amdgpu");
  const auto break_resets = [&] {
    ASSERT_EQ(run({"bind", "--yes", kGpu}).code, gpuctl::kOk);
    made_->remove(FakeMachine::dir_of(kGpu) + "/reset_method");
    made_->put(FakeMachine::dir_of(kGpu) + "/reset_method/x", "");  // a write fails
  };
  break_resets();
  const auto back = run({"unbind", "--yes", kGpu});
  EXPECT_EQ(back.code, gpuctl::kOk) << back.error;
  EXPECT_THAT(back.out, HasSubstr("done: 0000:03:00.0  vfio-pci -> amdgpu\n"
                                  "  WARNING: its reset methods \"flr bus\""));
  made_->remove(FakeMachine::dir_of(kGpu) + "/reset_method");
  made_->put(FakeMachine::dir_of(kGpu) + "/reset_method", "flr bus\n");
  break_resets();
  const auto document_of_it = document({"unbind", "--yes", kGpu}, "bind_document");
  EXPECT_EQ(document_of_it["devices"][0]["not_restored"].size(), 1u);
}

TEST_F(GpuctlMachine, StateDirIsWhereOldDriversAreKept) {
  made_->add({.address = kGpu, .driver = "amdgpu"});
  FakeKernel kernel(*made_);
  const auto dir = made_->path("/elsewhere");
  EXPECT_EQ(run({"bind", "--yes", kGpu, "--state-dir", dir}).code, gpuctl::kOk);
  EXPECT_THAT(made_->get("/elsewhere/bind.json"), HasSubstr("amdgpu"));
  // Another state knows nothing of it.
  EXPECT_THAT(run({"unbind", kGpu}).out, HasSubstr("whom the kernel chooses"));
}

TEST_F(GpuctlMachine, RefusalsHaveCodesAndOneLine) {
  made_->add({.address = kGpu, .driver = "amdgpu"});
  made_->put(FakeMachine::dir_of(kGpu) + "/drm/card0/dev", "226:0\n");
  made_->add_process(71, "Xorg", "/dev/dri/card0");
  made_->add({.address = "0000:04:00.0", .driver = "amdgpu", .group = 8});
  made_->add({.address = "0000:04:00.1", .class_code = "0x040300", .driver = "snd", .group = 8});
  made_->add({.address = "0000:05:00.0", .driver = "amdgpu", .group = -1});
  const struct {
    std::vector<std::string> arguments;
    int code;
    std::string named;
  } kCases[] = {
      {{"bind", kGpu}, gpuctl::kBusy, "Xorg (pid 71"},
      {{"bind", "--yes", kGpu}, gpuctl::kBusy, "Xorg (pid 71"},
      {{"bind", "04:00.0"}, gpuctl::kBusy, "0000:04:00.1 (snd)"},
      {{"bind", "05:00.0"}, gpuctl::kFailed, "gpuctl doctor"},
      {{"bind", "04:00.1"}, gpuctl::kFailed, "--any"},
      {{"bind", "09:00.0"}, gpuctl::kNotFound, "0000:09:00.0"},
      {{"bind", "04:00.0", "04:00.0"}, gpuctl::kUsage, "twice"},
      {{"unbind", "04:00.0"}, gpuctl::kFailed, "not bound to vfio-pci but to amdgpu"},
  };
  for (const auto& [arguments, code, named] : kCases) {
    const auto ran = run(arguments);
    EXPECT_EQ(ran.code, code) << named << ": " << ran.error;
    EXPECT_TRUE(ran.one_line()) << ran.out << ran.error;
    EXPECT_THAT(ran.error, HasSubstr(named));
  }
  EXPECT_EQ(driver(), "amdgpu");
}

// Standard output ends although the kernel keeps the writer: gpuctl() reads it to its end.
TEST_F(GpuctlMachine, HungWriteEndsTheCommandByItsDeadline) {
  made_->add({.address = kGpu, .driver = "amdgpu"});
  made_->fifo("/sys/bus/pci/drivers/amdgpu/unbind");
  const auto ran = run({"bind", "--yes", kGpu, "--timeout", "0.3", "--json"});
  EXPECT_EQ(ran.code, gpuctl::kTimeout) << ran.error;
  EXPECT_TRUE(ran.one_line()) << ran.out << ran.error;
  EXPECT_THAT(ran.error, HasSubstr("unbind from amdgpu"));
}

TEST_F(GpuctlMachine, WithoutTheRightNothingIsDone) {
  made_->add({.address = kGpu, .driver = "amdgpu"});
  std::filesystem::permissions(made_->path(FakeMachine::dir_of(kGpu) + "/driver_override"),
                               std::filesystem::perms::owner_read);
  const auto ran = run_unprivileged({"bind", "--yes", kGpu});
  EXPECT_EQ(ran.code, gpuctl::kPermission) << ran.error;
  EXPECT_THAT(ran.error, HasSubstr("driver_override"));
  EXPECT_THAT(ran.error, HasSubstr("run it as root"));
  EXPECT_EQ(driver(), "amdgpu");
}

TEST_F(GpuctlMachine, WhatThisUserMayNotSeeOrOpenIsSaid) {
  made_->add({.address = kGpu, .driver = "vfio-pci"});
  made_->add_process(71, "hidden", "/dev/vfio/7");
  for (const auto* path : {"/proc/71/fd", "/dev/vfio/7"})
    std::filesystem::permissions(made_->path(path), std::filesystem::perms::none);
  const auto devices = run_unprivileged({"devices"});
  EXPECT_EQ(devices.code, gpuctl::kOk) << devices.error;
  EXPECT_THAT(devices.out, HasSubstr("processes it may not look into: 1"));
  EXPECT_THAT(devices.out, HasSubstr("this user may not open " + made_->path("/dev/vfio/7")));
  const auto doctor = run_unprivileged({"doctor"});
  EXPECT_THAT(doctor.out, HasSubstr("may not open " + made_->path("/dev/vfio/7")));
  std::filesystem::permissions(made_->path("/proc/71/fd"), std::filesystem::perms::owner_all);
}

TEST_F(GpuctlMachine, DoctorFindsNothingOnAHealthyMachine) {
  make_healthy();
  made_->add({.address = kGpu, .driver = "vfio-pci"});
  const auto doctor = document({"doctor", "--runtime-dir", made_->root()}, "doctor_document");
  EXPECT_EQ(doctor["problems"], 0);
  for (const auto& entry : doctor["checks"]) {
    if (entry["name"] == "iommufd") continue;  // of the kernel that this test runs on
    EXPECT_EQ(entry["level"], "ok") << entry;
    EXPECT_TRUE(entry["remedy"].is_null()) << entry;
  }
  EXPECT_EQ(check(doctor, "device 0000:03:00.0")["found"], "ready");
  const auto table = run({"doctor", "--runtime-dir", made_->root()});
  EXPECT_EQ(table.code, gpuctl::kOk) << table.error;
  EXPECT_THAT(table.out, HasSubstr("no problem"));
}

TEST_F(GpuctlMachine, DoctorNamesEachProblemWithItsRemedy) {
  const struct {
    std::string path, text;  // what is put into the healthy machine; no text: removed
    std::string check, level, remedy;
  } kCases[] = {
      {"/sys/class/iommu", "", "iommu", "problem", "firmware tells of no IOMMU"},
      {"/sys/bus/pci/drivers/vfio-pci", "", "vfio-pci", "problem", "CONFIG_VFIO_PCI"},
      {"/proc/interrupts", "24: 1 PCI-MSI\n", "interrupt remapping", "problem", "intremap=off"},
      {"/sys/module/iommufd/parameters/allow_unsafe_interrupts", "Y\n", "unsafe interrupts",
       "warning", "allow_unsafe_interrupts"},
      {"/sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n", "no-IOMMU mode", "problem",
       "echo N >"},
      {"/dev/iommu", "", "iommufd", "warning", ""},
      {"/dev/vfio/vfio", "", "vfio_iommu_type1", "warning", "CONFIG_VFIO_IOMMU_TYPE1"},
      {"/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always [never]\n", "huge pages",
       "warning", "within_size"},
      {"/proc/sys/kernel/io_uring_disabled", "2\n", "io_uring", "problem",
       "kernel.io_uring_disabled=0"},
      {"/sys/devices/pci0/0000:03:00.0/iommu_group", "", "device 0000:03:00.0", "problem", "docs/"},
  };
  for (const auto& [path, text, name, level, remedy] : kCases) {
    made_.emplace();
    make_healthy();
    made_->add({.address = kGpu, .driver = "vfio-pci"});
    if (text.empty())
      made_->remove(path);
    else
      made_->put(path, text);
    const auto doctor = document({"doctor", "--runtime-dir", made_->root()}, "doctor_document",
                                 level == "problem" ? gpuctl::kFailed : gpuctl::kOk);
    const auto found = check(doctor, name);
    EXPECT_EQ(found["level"], level) << found;
    EXPECT_THAT(found["remedy"].is_null() ? "" : found["remedy"].get<std::string>(),
                HasSubstr(remedy));
  }
}

TEST_F(GpuctlMachine, DoctorTellsWhySoTheIommuIsOff) {
  const auto remedy = [&] {
    return check(document({"doctor"}, "doctor_document", gpuctl::kFailed), "iommu")["remedy"]
        .get<std::string>();
  };
  EXPECT_THAT(remedy(), HasSubstr("virtual IOMMU"));
  made_->put("/sys/firmware/acpi/tables/DMAR", "x");
  EXPECT_THAT(remedy(), HasSubstr("put intel_iommu=on"));
  made_->put("/proc/cmdline", "quiet intel_iommu=off\n");
  EXPECT_THAT(remedy(), HasSubstr("take intel_iommu=off off"));
}

// Nothing of this machine in what is said of another.
TEST_F(GpuctlMachine, DoctorOfAnotherMachineSpeaksOfThatAlone) {
  const auto memlock = [&](int code) {
    return check(document({"doctor"}, "doctor_document", code), "memlock");
  };
  EXPECT_EQ(memlock(gpuctl::kFailed)["level"], "warning");
  EXPECT_THAT(memlock(gpuctl::kFailed)["found"].get<std::string>(), HasSubstr("not known"));
  make_healthy();
  made_->add({.address = kGpu, .driver = "vfio-pci"});
  made_->put("/proc/self/status", "CapEff:\t0000000000000000\n");
  made_->put("/proc/self/limits", "Max locked memory         1048576     1048576     bytes\n");
  EXPECT_THAT(memlock(gpuctl::kFailed)["found"].get<std::string>(), HasSubstr("1 MiB"));
  made_->put("/proc/self/limits", "Max locked memory         unlimited     unlimited     bytes\n");
  EXPECT_EQ(memlock(gpuctl::kOk)["found"], "no limit");
  made_->remove("/dev/iommu");
  made_->put("/proc/sys/kernel/osrelease", "5.4.0-made-up\n");
  EXPECT_THAT(
      check(document({"doctor"}, "doctor_document"), "iommufd")["remedy"].get<std::string>(),
      HasSubstr("this is 5.4.0-made-up"));
}

// Whatever this machine is: an answer, and no word from the kernel that is not understood.
TEST(GpuctlThisMachine, DevicesAndDoctorAnswer) {
  EXPECT_EQ(gpuctl({"devices"}).code, gpuctl::kOk);
  const auto doctor = gpuctl({"doctor"});
  EXPECT_TRUE(doctor.code == gpuctl::kOk || doctor.code == gpuctl::kFailed) << doctor.error;
  EXPECT_THAT(doctor.out, HasSubstr("interrupt remapping"));
}

}  // namespace
