// What the calls of a device's descriptor make of the kernel's answers.
#include "vfio/kernel/device_file.h"

#include <linux/vfio.h>

#include <array>
#include <cerrno>

#include <gtest/gtest.h>

#include "scripted_ioctl.h"

namespace vfio_test {
namespace {

using base::Errc;
using vfio::IrqKind;

class DeviceFile : public testing::Test {
 protected:
  base::Result<void> arm() {
    static constexpr std::array<int, 4> kEventfds = {3, 4, 5, 6};
    return file_.set_eventfds(IrqKind::kMsix, kEventfds);
  }

  ScriptedIoctls kernel_;
  vfio::DeviceFile file_{base::UniqueFd()};
};

TEST_F(DeviceFile, AllVectorsAreArmed) {
  std::uint32_t count = 0, size = 0;
  kernel_.on(VFIO_DEVICE_SET_IRQS, [&](int, void* argument) {
    const auto* const set = static_cast<const vfio_irq_set*>(argument);
    count = set->count;
    size = set->argsz;
    return 0;
  });
  EXPECT_TRUE(arm());
  EXPECT_EQ(count, 4u);
  EXPECT_EQ(size, sizeof(vfio_irq_set) + 4 * sizeof(int));
}

// The kernel then says how many it could have had, and has armed none.
TEST_F(DeviceFile, FewerVectorsThanAskedForAreNoneArmed) {
  kernel_.on(VFIO_DEVICE_SET_IRQS, 3);
  const auto armed = arm();
  ASSERT_FALSE(armed);
  EXPECT_EQ(armed.error().code, Errc::kUnsupported);
  EXPECT_NE(armed.error().step.find("3 interrupt vectors"), std::string::npos)
      << armed.error().step;
}

TEST_F(DeviceFile, RefusedVectors) {
  kernel_.on(VFIO_DEVICE_SET_IRQS, -ENOSPC);
  EXPECT_EQ(arm().error().code, Errc::kNoMemory);
  kernel_.on(VFIO_DEVICE_SET_IRQS, -EINVAL);
  EXPECT_EQ(arm().error().code, Errc::kDeviceError);
}

}  // namespace
}  // namespace vfio_test
