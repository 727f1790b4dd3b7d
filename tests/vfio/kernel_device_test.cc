// A device of the kernel's VFIO whose configuration space is in a memfd and whose calls the test
// answers: the order of the calls, and what is made of refusals.
#include "vfio/kernel/kernel_device.h"

#include <linux/vfio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include <gtest/gtest.h>

#include "base/shared_memory.h"
#include "scripted_device.h"
#include "scripted_ioctl.h"

namespace vfio_test {
namespace {

using base::Errc;

class NoSpace final : public vfio::DmaSpace {
 public:
  NoSpace() : DmaSpace({}) {}

 private:
  base::Result<void> kernel_map(int, std::uint64_t, std::uint64_t, base::Iova,
                                vfio::Rights) override {
    return {};
  }
  base::Result<void> kernel_unmap(base::Iova, std::uint64_t) override { return {}; }
  void kernel_close() override {}
};

class KernelDevice : public testing::Test {
 protected:
  KernelDevice() : memory_(base::make_memfd("device", 4096).value()) {
    put_header(memory_.get());
    answer_for_device(kernel_);
    kernel_.on(VFIO_DEVICE_SET_IRQS, [this](int, void* argument) {
      const auto* const set = static_cast<const vfio_irq_set*>(argument);
      if (set->index == VFIO_PCI_MSIX_IRQ_INDEX) armed_ = set->count;
      if (set->index == VFIO_PCI_REQ_IRQ_INDEX && set->count == 1)
        std::memcpy(&request_, set->data, sizeof(request_));
      return 0;
    });
    vfio::DeviceIdentity identity;
    identity.name = "pci:0000:03:00.0";
    device_ = vfio::KernelDevice::create(std::move(identity), memory_.duplicate().value(),
                                         std::make_unique<NoSpace>(), {})
                  .value();
  }

  base::UniqueFd memory_;
  ScriptedIoctls kernel_;
  std::uint32_t armed_ = 0;  // MSI-X vectors in the kernel
  int request_ = -1;         // eventfd of its request interrupt
  std::unique_ptr<vfio::KernelDevice> device_;
};

// The kernel keeps interrupts over a reset, and restores their registers.
TEST_F(KernelDevice, AResetFindsInterruptsDisarmed) {
  ASSERT_TRUE(device_->arm_msix(4));
  ASSERT_EQ(armed_, 4u);
  std::uint32_t armed_at_reset = ~0u;
  kernel_.on(VFIO_DEVICE_RESET, [&](int, void*) {
    armed_at_reset = armed_;
    return 0;
  });
  ASSERT_TRUE(device_->reset());
  EXPECT_EQ(armed_at_reset, 0u);
  EXPECT_TRUE(device_->arm_intx()) << "nothing is armed for the backend either";
}

// An unbind holds the device's lock while it waits for us: EAGAIN.
TEST_F(KernelDevice, AResetOfADeviceThatIsTakenAwaySaysSo) {
  kernel_.on(VFIO_DEVICE_RESET, -EAGAIN);
  const auto busy = device_->reset();
  ASSERT_FALSE(busy);
  EXPECT_EQ(busy.error().code, Errc::kBusy);
  EXPECT_NE(busy.error().step.find("somebody has the device's lock"), std::string::npos)
      << busy.error().step;
  EXPECT_FALSE(device_->lost());

  kernel_.on(VFIO_DEVICE_RESET, [this](int, void*) {
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(request_, &one, sizeof(one)), 8);
    return -EAGAIN;
  });
  const auto done = device_->reset();
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Errc::kDeviceLost);
  EXPECT_NE(done.error().step.find("wants the device back"), std::string::npos)
      << done.error().step;
}

TEST_F(KernelDevice, FewerVectorsThanAskedForArmNothing) {
  kernel_.on(VFIO_DEVICE_SET_IRQS, 2);
  EXPECT_EQ(device_->arm_msix(4).error().code, Errc::kUnsupported);
  EXPECT_EQ(device_->unmask_intx().error().code, Errc::kInvalidArgument);
  EXPECT_TRUE(device_->disarm_msix()) << "there is nothing to disarm";
}

}  // namespace
}  // namespace vfio_test
