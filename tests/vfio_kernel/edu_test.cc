// With QEMU's own teaching device: registers, an engine that does DMA, MSI and a pin, none of them
// ours. Its registers are in QEMU's docs/specs/edu.
#include <fcntl.h>

#include <cstring>

#include "kernel_fixture.h"

namespace vfio_kernel_test {
namespace {

constexpr std::uint64_t kIdentity = 0x00, kLiveness = 0x04, kIrqStatus = 0x24, kIrqRaise = 0x60,
                        kIrqAcknowledge = 0x64, kDmaSource = 0x80, kDmaTarget = 0x88,
                        kDmaCount = 0x90, kDmaCommand = 0x98;
constexpr std::uint64_t kDmaStart = 1, kDmaToMemory = 2, kDmaInterrupt = 4;
constexpr std::uint64_t kBuffer = 0x40000;  // of the device, 4 KiB
constexpr std::uint64_t kBytes = 2048;
constexpr std::uint32_t kDmaDone = 0x100;
constexpr std::uint32_t kCommand = 4, kMemoryAndMaster = 6;

class Edu : public EachWay {
 protected:
  void SetUp() override {
    EachWay::SetUp();
    if (!IsSkipped() && !is("0x1234", "0x11e8")) GTEST_SKIP() << "the device is no edu";
  }
  void TearDown() override {
    bar_.reset();
    interrupt_.reset();
    EachWay::TearDown();
  }
  void start() {
    open();
    ASSERT_TRUE(device_->write_config(kCommand, 2, kMemoryAndMaster));
    auto bar = device_->open_bar(BarIndex::k0);
    ASSERT_TRUE(bar) << bar.error().message();
    bar_ = std::move(*bar);
  }
  void arm() {
    auto vectors = device_->arm_msix(1);  // it has MSI alone
    ASSERT_TRUE(vectors) << vectors.error().message();
    interrupt_ = std::move(vectors->front());
  }
  void dma(std::uint64_t from, std::uint64_t to, std::uint64_t direction) {
    bar_->write64(kDmaSource, from);
    bar_->write64(kDmaTarget, to);
    bar_->write64(kDmaCount, kBytes);
    bar_->write64(kDmaCommand, kDmaStart | direction | kDmaInterrupt);
    EXPECT_TRUE(rings(interrupt_));
    bar_->write32(kIrqAcknowledge, kDmaDone);
  }

  std::unique_ptr<vfio::Bar> bar_;
  base::UniqueFd interrupt_;
};
GPUUMD_EACH_WAY(Edu);

TEST_P(Edu, Registers) {
  start();
  EXPECT_EQ(bar_->read32(kIdentity) & 0xff, 0xedu);
  bar_->write32(kLiveness, 0x12345678);
  EXPECT_EQ(bar_->read32(kLiveness), ~0x12345678u);
  // All ones is a value like any other here: the device is asked, and is there.
  bar_->write32(kLiveness, 0);
  EXPECT_EQ(bar_->read32(kLiveness), 0xffffffffu);
  EXPECT_FALSE(device_->lost());
}

TEST_P(Edu, MsiRings) {
  start();
  arm();
  EXPECT_TRUE(is_silent(interrupt_));
  bar_->write32(kIrqRaise, 0x11);
  EXPECT_TRUE(rings(interrupt_));
  EXPECT_EQ(bar_->read32(kIrqStatus), 0x11u);
  bar_->write32(kIrqAcknowledge, 0x11);
  ASSERT_TRUE(device_->disarm_msix());
  EXPECT_EQ(device_->arm_msix(64).error().code, Errc::kUnsupported);
}

TEST_P(Edu, ThePinRingsUntilItIsCleared) {
  start();
  auto pin = device_->arm_intx();
  ASSERT_TRUE(pin) << pin.error().message();
  EXPECT_EQ(device_->arm_msix(1).error().code, Errc::kBusy);
  EXPECT_TRUE(is_silent(*pin));
  for (int i = 0; i < 3; ++i) {
    bar_->write32(kIrqRaise, 1);
    EXPECT_TRUE(rings(*pin)) << i;
    EXPECT_TRUE(is_silent(*pin)) << "masked while the level stands";
    bar_->write32(kIrqAcknowledge, 1);
    ASSERT_TRUE(device_->unmask_intx());
  }
  bar_->write32(kIrqRaise, 1);
  EXPECT_TRUE(rings(*pin));
  ASSERT_TRUE(device_->unmask_intx());
  EXPECT_TRUE(rings(*pin)) << "a level that stands rings again";
  bar_->write32(kIrqAcknowledge, 1);
  ASSERT_TRUE(device_->disarm_msix());
  arm();
}

TEST_P(Edu, DmaGoesWhereItIsMappedAndNowhereElse) {
  start();
  arm();
  const auto memory = base::make_memfd("memory", 4 * kPageSize).value();
  const auto bytes =
      base::Mapping::map(memory.get(), 0, 4 * kPageSize, PROT_READ | PROT_WRITE).value();
  auto* const page = bytes.data() + kPageSize;
  for (std::size_t i = 0; i < kBytes; ++i) page[i] = static_cast<std::byte>(i * 7 + 1);

  constexpr std::uint64_t kAt = 0x8000000;
  ASSERT_TRUE(device_->map_dma(memory.get(), kPageSize, kPageSize, Iova(kAt), Rights::kReadWrite));
  dma(kAt, kBuffer, 0);
  std::memset(page, 0, kBytes);
  dma(kBuffer, kAt, kDmaToMemory);
  for (std::size_t i = 0; i < kBytes; ++i)
    ASSERT_EQ(page[i], static_cast<std::byte>(i * 7 + 1)) << i;
  EXPECT_EQ(bytes.data()[0], std::byte{0});
  EXPECT_EQ(bytes.data()[2 * kPageSize], std::byte{0});

  // Where it was, and where nothing ever was: the IOMMU refuses, the memory stays as it is.
  ASSERT_TRUE(device_->unmap_dma(Iova(kAt), kPageSize));
  std::memset(page, 0x5a, kBytes);
  dma(kBuffer, kAt, kDmaToMemory);
  dma(kBuffer, 0x9000000, kDmaToMemory);
  for (std::size_t i = 0; i < kBytes; ++i) ASSERT_EQ(page[i], std::byte{0x5a}) << i;

  // Other memory at the same place: no stale translation.
  ASSERT_TRUE(
      device_->map_dma(memory.get(), 3 * kPageSize, kPageSize, Iova(kAt), Rights::kReadWrite));
  dma(kBuffer, kAt, kDmaToMemory);
  EXPECT_EQ(bytes.data()[3 * kPageSize + 1], std::byte{8});
  EXPECT_EQ(page[1], std::byte{0x5a});
}

// As the daemon makes its host memory: there, and never touched by a processor.
TEST_P(Edu, WhatTheDeviceWritesFirstIsKept) {
  start();
  arm();
  const auto pattern = base::make_memfd("pattern", kPageSize).value();
  const auto memory = base::make_memfd("memory", kPageSize).value();
  ASSERT_EQ(::fallocate(memory.get(), 0, 0, kPageSize), 0);
  const auto from = base::Mapping::map(pattern.get(), 0, kPageSize, PROT_READ | PROT_WRITE).value();
  std::memset(from.data(), 0x3c, kBytes);
  ASSERT_TRUE(device_->map_dma(pattern.get(), 0, kPageSize, Iova(0x8000000), Rights::kRead));
  ASSERT_TRUE(device_->map_dma(memory.get(), 0, kPageSize, Iova(0x9000000), Rights::kReadWrite));
  dma(0x8000000, kBuffer, 0);
  dma(kBuffer, 0x9000000, kDmaToMemory);
  const auto bytes = base::Mapping::map(memory.get(), 0, kPageSize, PROT_READ).value();
  for (std::size_t i = 0; i < kBytes; ++i) ASSERT_EQ(bytes.data()[i], std::byte{0x3c}) << i;
}

TEST_P(Edu, MemoryThatTheDeviceMayOnlyReadIsNotWritten) {
  start();
  arm();
  const auto memory = base::make_memfd("memory", kPageSize).value();
  const auto bytes = base::Mapping::map(memory.get(), 0, kPageSize, PROT_READ | PROT_WRITE).value();
  ASSERT_TRUE(device_->map_dma(memory.get(), 0, kPageSize, Iova(0x8000000), Rights::kRead));
  std::memset(bytes.data(), 0x77, kPageSize);
  dma(0x8000000, kBuffer, 0);
  std::memset(bytes.data(), 0x11, kPageSize);
  dma(kBuffer, 0x8000000, kDmaToMemory);
  EXPECT_EQ(bytes.data()[5], std::byte{0x11});
}

TEST_P(Edu, ResetItDoesNotHave) {
  start();
  if (!get(sysfs("reset_method")).empty()) GTEST_SKIP() << "this one has a reset";
  const auto error = device_->reset().error();
  EXPECT_EQ(error.code, Errc::kUnsupported);
  EXPECT_FALSE(error.step.empty());
  EXPECT_FALSE(device_->lost());
}

}  // namespace
}  // namespace vfio_kernel_test
