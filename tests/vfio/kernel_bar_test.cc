// A BAR and a configuration space in a memfd: it can be read, written, mapped, and cut short. What
// only a device file of the kernel has (region info, interrupts) is tests/vfio_kernel's.
#include "vfio/kernel/kernel_bar.h"

#include <unistd.h>

#include <array>
#include <cstring>
#include <memory>

#include <gtest/gtest.h>

#include "base/shared_memory.h"

namespace vfio_test {
namespace {

using base::Errc;
using base::kPageSize;
using vfio::KernelRegion;
using vfio::SparseArea;

// Where things are in the file.
constexpr std::uint64_t kConfigAt = 0x100000;
constexpr std::uint64_t kConfigSize = 4096;
constexpr std::uint64_t kBarAt = 0x200000;
constexpr std::uint64_t kBarSize = 8 * kPageSize;
constexpr std::uint64_t kEnd = 0x300000;
// The mapped part: pages 2 and 3.
constexpr std::uint64_t kMapped = 2 * kPageSize;

class KernelBar : public testing::Test {
 protected:
  KernelBar()
      : memory_(base::make_memfd("device", kEnd, 0).value()),
        loss_(vfio::Loss::create().value()),
        file_(memory_.duplicate().value()),
        config_(file_, *loss_, region(kConfigAt, kConfigSize)) {
    put<std::uint32_t>(kConfigAt + 0x00, 0x74a11002);
    put<std::uint16_t>(kConfigAt + 0x06, 0x0010);
    put<std::uint32_t>(kConfigAt + 0x08, 0x12000007);
    put<std::uint8_t>(kConfigAt + 0x34, 0x40);
    put<std::uint16_t>(kConfigAt + 0x40, 0x5010);  // PCIe, then
    put<std::uint16_t>(kConfigAt + 0x50, 0x0001);  // power management
  }

  static KernelRegion region(std::uint64_t offset, std::uint64_t size) {
    KernelRegion region;
    region.offset = offset;
    region.size = size;
    region.readable = region.writable = true;
    return region;
  }
  void open() {
    auto where = region(kBarAt, kBarSize);
    where.areas = {{kMapped, 2 * kPageSize}};
    bar_ = vfio::KernelBar::create(file_, config_, *loss_, 5, where).value();
  }
  template <class T>
  void put(std::uint64_t at, T value) {
    ASSERT_EQ(::pwrite(memory_.get(), &value, sizeof(value), static_cast<off_t>(at)),
              static_cast<ssize_t>(sizeof(value)));
  }
  template <class T>
  T get(std::uint64_t at) {
    T value{};
    EXPECT_EQ(::pread(memory_.get(), &value, sizeof(value), static_cast<off_t>(at)),
              static_cast<ssize_t>(sizeof(value)));
    return value;
  }
  void all_ones_config() {
    std::array<unsigned char, kConfigSize> ones;
    ones.fill(0xff);
    put(kConfigAt, ones);
  }

  base::UniqueFd memory_;
  std::unique_ptr<vfio::Loss> loss_;
  vfio::DeviceFile file_;
  vfio::ConfigSpace config_;
  std::unique_ptr<vfio::KernelBar> bar_;
};

TEST_F(KernelBar, MappedWhereAllowedTrappedElsewhere) {
  open();
  EXPECT_EQ(bar_->size(), kBarSize);
  ASSERT_EQ(bar_->mapped().size(), 1u);
  EXPECT_EQ(bar_->mapped()[0].offset, kMapped);
  EXPECT_EQ(bar_->mapped()[0].size, 2 * kPageSize);
  for (const std::uint64_t at : {std::uint64_t{16}, kMapped + 16, kBarSize - 8}) {
    bar_->write64(at, 0x1122334455667788 + at);
    EXPECT_EQ(get<std::uint64_t>(kBarAt + at), 0x1122334455667788 + at);
    EXPECT_EQ(bar_->read64(at), 0x1122334455667788 + at);
    bar_->write32(at + 4, 0xfeedc0de);
    EXPECT_EQ(bar_->read32(at + 4), 0xfeedc0deu);
    bar_->ring_doorbell32(at, 5);
    EXPECT_EQ(get<std::uint32_t>(kBarAt + at), 5u);
    bar_->ring_doorbell64(at, 6);
    EXPECT_EQ(get<std::uint64_t>(kBarAt + at), 6u);
  }
}

TEST_F(KernelBar, BulkCopiesGoOverTheSeams) {
  open();
  std::vector<std::byte> out(3 * kPageSize + 5), in(out.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::byte>(i * 7);
  ASSERT_TRUE(bar_->write(kPageSize + 3, out));
  ASSERT_TRUE(bar_->read(kPageSize + 3, in));
  EXPECT_EQ(in, out);
  EXPECT_EQ(get<std::uint8_t>(kBarAt + kPageSize + 3 + 100), static_cast<std::uint8_t>(100 * 7));
  EXPECT_EQ(bar_->read(kBarSize - 4, std::span(in).first(5)).error().code, Errc::kOutOfRange);
  EXPECT_EQ(bar_->write(kBarSize, std::span(in).first(1)).error().code, Errc::kOutOfRange);
}

TEST_F(KernelBar, ARegisterOfAllOnesIsNoLoss) {
  open();
  bar_->write32(kMapped, 0xffffffff);
  bar_->write32(0, 0xffffffff);
  EXPECT_EQ(bar_->read32(kMapped), 0xffffffffu);
  EXPECT_EQ(bar_->read32(0), 0xffffffffu);
  EXPECT_FALSE(loss_->lost());
}

TEST_F(KernelBar, AllOnesOfADeviceThatDoesNotAnswerAreALoss) {
  open();
  bar_->write32(kMapped, 0xffffffff);
  bar_->write32(kMapped + 8, 1);
  all_ones_config();
  EXPECT_EQ(bar_->read32(kMapped + 8), 1u);
  EXPECT_FALSE(loss_->lost()) << "nobody has asked";
  EXPECT_EQ(bar_->read32(kMapped), 0xffffffffu);
  EXPECT_TRUE(loss_->lost());
  EXPECT_NE(loss_->why().find("all ones"), std::string::npos) << loss_->why();
  EXPECT_EQ(bar_->read32(kMapped + 8), 0xffffffffu);
  bar_->write32(kMapped + 8, 2);
  bar_->ring_doorbell32(kMapped + 8, 2);
  EXPECT_EQ(get<std::uint32_t>(kBarAt + kMapped + 8), 1u) << "writes are dropped";
  std::array<std::byte, 4> four{};
  EXPECT_EQ(bar_->read(0, four).error().code, Errc::kDeviceLost);
  EXPECT_EQ(bar_->write(0, four).error().code, Errc::kDeviceLost);
  EXPECT_EQ(config_.read(8, 4).error().code, Errc::kDeviceLost);
  EXPECT_EQ(config_.write(4, 2, 0).error().code, Errc::kDeviceLost);
}

TEST_F(KernelBar, BulkAllOnesAreAskedAboutToo) {
  open();
  std::array<std::byte, 64> bytes;
  bytes.fill(std::byte{0xff});
  ASSERT_TRUE(bar_->write(kMapped, bytes));
  EXPECT_TRUE(bar_->read(kMapped, bytes));
  all_ones_config();
  EXPECT_EQ(bar_->read(kMapped, bytes).error().code, Errc::kDeviceLost);
}

TEST_F(KernelBar, AMappedPartThatGoesAwayIsALossAndNoSignal) {
  open();
  bar_->write32(kMapped, 7);
  ASSERT_EQ(::ftruncate(memory_.get(), kBarAt), 0);
  EXPECT_EQ(bar_->read32(kMapped), 0xffffffffu);
  EXPECT_TRUE(loss_->lost());
  EXPECT_NE(loss_->why().find("BAR 5"), std::string::npos) << loss_->why();
  std::vector<std::byte> bytes(64);
  EXPECT_EQ(bar_->read(kMapped, bytes).error().code, Errc::kDeviceLost);
}

TEST_F(KernelBar, AMappedPartThatGoesAwayDuringABulkCopyGivesNoData) {
  open();
  ASSERT_EQ(::ftruncate(memory_.get(), kBarAt + kMapped + kPageSize), 0);
  std::vector<std::byte> bytes(2 * kPageSize);
  EXPECT_EQ(bar_->read(kMapped, bytes).error().code, Errc::kDeviceLost);
}

TEST_F(KernelBar, ATrappedPartThatFailsGivesAllOnesAndAnError) {
  open();
  ASSERT_EQ(::ftruncate(memory_.get(), kBarAt), 0);
  EXPECT_EQ(bar_->read32(0), 0xffffffffu);
  EXPECT_FALSE(loss_->lost()) << "the device answers: it is an error of this access";
  std::array<std::byte, 4> four{};
  EXPECT_EQ(bar_->read(0, four).error().code, Errc::kDeviceError);
}

TEST_F(KernelBar, ConfigAccessesAreChecked) {
  EXPECT_EQ(config_.read(0, 4).value(), 0x74a11002u);
  EXPECT_EQ(config_.read(2, 2).value(), 0x74a1u);
  EXPECT_TRUE(config_.write(4, 2, 6));
  EXPECT_EQ(get<std::uint16_t>(kConfigAt + 4), 6u);
  EXPECT_EQ(config_.read(1, 2).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(config_.read(0, 3).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(config_.write(0, 8, 0).error().code, Errc::kInvalidArgument);
  EXPECT_EQ(config_.read(kConfigSize, 4).error().code, Errc::kOutOfRange);
  EXPECT_FALSE(loss_->lost());
}

TEST_F(KernelBar, ConfigSpaceThatCannotBeReadIsALoss) {
  ASSERT_EQ(::ftruncate(memory_.get(), 0), 0);
  EXPECT_EQ(config_.read(0, 4).error().code, Errc::kDeviceLost);
  EXPECT_TRUE(loss_->lost());
}

TEST_F(KernelBar, WakesAFunctionThatSleeps) {
  put<std::uint16_t>(kConfigAt + 0x54, 0x8003 | 0x100);
  ASSERT_TRUE(config_.wake_up());
  EXPECT_EQ(get<std::uint16_t>(kConfigAt + 0x54), 0x100u)
      << "D0, the rest as it was, and PME status not cleared";
}

TEST_F(KernelBar, CapabilitiesInACircleEnd) {
  // Capabilities in a circle without power management: nothing to wake.
  put<std::uint16_t>(kConfigAt + 0x40, 0x4010);
  EXPECT_TRUE(config_.wake_up());
}

TEST_F(KernelBar, MemorySpaceOnAndBusMasteringOff) {
  put<std::uint16_t>(kConfigAt + 4, 0x0404);
  ASSERT_TRUE(config_.set_memory_space());
  EXPECT_EQ(get<std::uint16_t>(kConfigAt + 4), 0x0406u);
  config_.silence();
  EXPECT_EQ(get<std::uint16_t>(kConfigAt + 4), 0x0402u);
  loss_->note(vfio::LossReason::kRequested);
  put<std::uint16_t>(kConfigAt + 4, 0x0406);
  config_.silence();
  EXPECT_EQ(get<std::uint16_t>(kConfigAt + 4), 0x0402u) << "of a lost device too";
}

TEST(Loss, TheFirstReasonStays) {
  const auto loss = vfio::Loss::create().value();
  loss->note(vfio::LossReason::kRequested);
  loss->note(vfio::LossReason::kLetGo);
  EXPECT_EQ(loss->why(), "the kernel wants the device back (unbind or hot-unplug)");
  for (const auto reason : {vfio::LossReason::kError, vfio::LossReason::kConfigGone}) {
    const auto other = vfio::Loss::create().value();
    other->note(reason, 5);
    EXPECT_FALSE(other->why().empty());
    EXPECT_EQ(other->why().find('\n'), std::string::npos);
  }
}

}  // namespace
}  // namespace vfio_test
