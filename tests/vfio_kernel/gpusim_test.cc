// With gpusim behind QEMU's vfio-user-pci: a GPU with three BARs and MSI-X.
#include "kernel_fixture.h"

namespace vfio_kernel_test {
namespace {

// docs/hardware/pci.md, with NBIO's bases of docs/hardware/discovery.md.
constexpr std::uint64_t kMemsize = 4 * (0xD20 + 0x0C3);
constexpr std::uint64_t kScratch = 4 * (0x14 + 0x038);
constexpr unsigned kVectors = 9;

class Gpusim : public EachWay {
 protected:
  void SetUp() override {
    EachWay::SetUp();
    if (!IsSkipped() && !is("0x1002")) GTEST_SKIP() << "the device is no gpusim";
  }
};
GPUUMD_EACH_WAY(Gpusim);

TEST_P(Gpusim, Bars) {
  open();
  auto vram = device_->open_bar(BarIndex::k0);
  auto doorbells = device_->open_bar(BarIndex::k2);
  auto registers = device_->open_bar(BarIndex::k5);
  ASSERT_TRUE(vram && doorbells && registers);
  EXPECT_GE((*vram)->size(), 16 * kMiB);
  EXPECT_EQ((*doorbells)->size(), 2 * kMiB);
  EXPECT_EQ((*registers)->size(), 512 * base::kKiB);
  for (const auto index : {BarIndex::k1, BarIndex::k3, BarIndex::k4})
    EXPECT_EQ(device_->open_bar(index).error().code, Errc::kNotFound);

  // VRAM may lie beyond what the BAR shows, never before it.
  EXPECT_GE((*registers)->read32(kMemsize), (*vram)->size() / kMiB);
  (*registers)->write32(kScratch, 0x12345678);
  (*registers)->write32(kScratch + 4, 0x9abcdef0);
  EXPECT_EQ((*registers)->read32(kScratch), 0x12345678u);
  EXPECT_EQ((*registers)->read64(kScratch), 0x9abcdef012345678u);
  std::array<std::byte, 8> bytes{};
  ASSERT_TRUE((*registers)->read(kScratch, bytes));
  EXPECT_EQ(bytes[1], std::byte{0x56});
  (*doorbells)->ring_doorbell32(0x1000, 1);
  (*doorbells)->ring_doorbell64(0x1008, 1);
  EXPECT_FALSE(device_->lost());
}

TEST_P(Gpusim, MsixVectors) {
  open();
  EXPECT_EQ(device_->arm_msix(0).error().code, Errc::kInvalidArgument);
  const auto too_many = device_->arm_msix(kVectors + 1);
  EXPECT_EQ(too_many.error().code, Errc::kUnsupported);
  EXPECT_NE(too_many.error().step.find("the device has 9"), std::string::npos)
      << too_many.error().message();
  auto vectors = device_->arm_msix(kVectors);
  ASSERT_TRUE(vectors) << vectors.error().message();
  EXPECT_EQ(vectors->size(), kVectors);
  for (const auto& vector : *vectors) EXPECT_TRUE(is_silent(vector));
  EXPECT_TRUE(device_->arm_msix(1)) << "fewer than were armed";
  ASSERT_TRUE(device_->disarm_msix());
  ASSERT_TRUE(device_->disarm_msix());
  EXPECT_TRUE(device_->arm_msix(2));
}

TEST_P(Gpusim, WithoutAPinThereIsNoIntx) {
  open();
  if (get(sysfs("irq")) != "0") GTEST_SKIP() << "this one has a pin";
  EXPECT_EQ(device_->arm_intx().error().code, Errc::kUnsupported);
  EXPECT_EQ(device_->unmask_intx().error().code, Errc::kInvalidArgument);
}

TEST_P(Gpusim, ResetGivesADeviceAsAfterPowerOn) {
  open();
  auto registers = device_->open_bar(BarIndex::k5);
  ASSERT_TRUE(registers);
  (*registers)->write32(kScratch, 0x12345678);
  const auto memory = base::make_memfd("memory", kPageSize).value();
  ASSERT_TRUE(device_->map_dma(memory.get(), 0, kPageSize, Iova(0), Rights::kRead));
  const auto done = device_->reset();
  ASSERT_TRUE(done) << done.error().message();
  EXPECT_FALSE(device_->lost());
  EXPECT_NE((*registers)->read32(kScratch), 0x12345678u) << "it resets to anything else";
  EXPECT_FALSE(device_->lost()) << device_->lost_why();
  EXPECT_EQ(device_->map_dma(memory.get(), 0, kPageSize, Iova(0), Rights::kRead).error().code,
            Errc::kExists);
}

}  // namespace
}  // namespace vfio_kernel_test
