#include "vfio/sysfs/reset_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/sysfs/fake_machine.h"

namespace {

using namespace vfio::sysfs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Methods = std::vector<std::string>;

TEST(ResetPolicy, PartsThatDieAreNotResetByFunctionOrBus) {
  for (const std::uint16_t device :
       {0x740F, 0x74A0, 0x74A1, 0x74A2, 0x74A5, 0x74A8, 0x75A0, 0x75A3}) {
    const auto* quirk = reset_quirk(0x1002, device);
    ASSERT_NE(quirk, nullptr) << device;
    EXPECT_TRUE(harmless_methods(quirk, Methods{"flr", "af_flr", "bus", "cxl_bus"}).empty());
    for (const auto* method : {"flr", "bus"}) {
      const auto refused = check_reset(0x1002, device, Methods{"pm", method});
      ASSERT_FALSE(refused) << device;
      EXPECT_EQ(refused.error().code, base::Errc::kUnsupported);
      EXPECT_THAT(refused.error().step, HasSubstr(method));
      EXPECT_THAT(refused.error().step, HasSubstr(std::string(quirk->part)));
    }
    EXPECT_TRUE(check_reset(0x1002, device, Methods{"pm"}));
  }
}

TEST(ResetPolicy, OrderOfTheKernelIsKept) {
  const auto* quirk = reset_quirk(0x1002, 0x74A1);
  EXPECT_THAT(harmless_methods(quirk, Methods{"device_specific", "acpi", "flr", "pm", "bus"}),
              ElementsAre("device_specific", "acpi", "pm"));
  EXPECT_THAT(harmless_methods(nullptr, Methods{"flr", "bus"}), ElementsAre("flr", "bus"));
}

// A method that a later kernel has: nobody knows what it does to the part.
TEST(ResetPolicy, MethodThatNobodyKnowsIsForbiddenForAPartThatDies) {
  EXPECT_FALSE(check_reset(0x1002, 0x74A1, Methods{"warm_reset"}));
  EXPECT_TRUE(check_reset(0x1002, 0x75F0, Methods{"warm_reset"}));
}

TEST(ResetPolicy, OtherPartsAndVirtualFunctionsAreFree) {
  EXPECT_EQ(reset_quirk(0x1002, 0x75F0), nullptr);
  EXPECT_EQ(reset_quirk(0x1002, 0x74B5), nullptr);
  EXPECT_EQ(reset_quirk(0x10DE, 0x74A1), nullptr);
  EXPECT_TRUE(check_reset(0x1002, 0x75F0, Methods{"flr", "bus"}));
}

TEST(ResetPolicy, NoMethodIsSaid) {
  const auto refused = check_reset(0x1002, 0x75F0, {});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, base::Errc::kUnsupported);
}

TEST(ResetPolicy, MethodsAreReadFromTheKernel) {
  sysfs_test::FakeMachine machine;
  machine.add({.address = "0000:03:00.0"});
  const auto address = *PciAddress::parse("03:00.0");
  EXPECT_THAT(*read_reset_methods(machine.roots(), address), ElementsAre("flr", "bus"));
  machine.put(machine.dir_of("0000:03:00.0") + "/reset_method", "");
  EXPECT_TRUE(read_reset_methods(machine.roots(), address)->empty());
  machine.remove(machine.dir_of("0000:03:00.0") + "/reset_method");
  EXPECT_EQ(read_reset_methods(machine.roots(), address).error().code, base::Errc::kNotFound);
}

}  // namespace
