// How the driver is called: by MSI-X, or by INTx where there is no MSI-X.
#include "daemon/gpu/interrupt/interrupt_line.h"

#include <gtest/gtest.h>

#include "tests/fake/fake_pci_device.h"
#include "tests/fake/manual_reactor.h"

namespace {

constexpr std::uint16_t kIntxDisable = 1u << 10;

class InterruptLineTest : public testing::Test {
 protected:
  InterruptLineTest() {
    EXPECT_TRUE(device_.write_config(4, 2, kIntxDisable));  // as PciReady leaves it
  }
  base::Result<void> arm() {
    return line_.arm([this] { ++calls_; });
  }

  fake::ManualReactor reactor_;
  fake::FakePciDevice device_;
  gpuumd::InterruptLine line_{reactor_, device_};
  unsigned calls_ = 0;
};

TEST_F(InterruptLineTest, MsixWhereItIsThere) {
  device_.has_msix = device_.has_pin = true;
  ASSERT_TRUE(arm());
  reactor_.signal(device_.line);
  EXPECT_EQ(calls_, 1u);
  EXPECT_EQ(device_.unmasked, 0u);
  EXPECT_EQ(line_.fallback(), "");
  EXPECT_EQ(device_.command() & kIntxDisable, kIntxDisable);
}

TEST_F(InterruptLineTest, IntxOtherwiseUnmaskedAfterTheHandler) {
  device_.has_pin = true;
  unsigned unmasked_before = 99;
  ASSERT_TRUE(line_.arm([&] { unmasked_before = device_.unmasked; }));
  EXPECT_EQ(device_.command() & kIntxDisable, 0);
  EXPECT_NE(line_.fallback().find("no vectors"), std::string::npos) << line_.fallback();
  reactor_.signal(device_.line);
  EXPECT_EQ(unmasked_before, 0u);
  EXPECT_EQ(device_.unmasked, 1u);
}

TEST_F(InterruptLineTest, NeitherIsSaidWithBothReasons) {
  const auto armed = arm();
  ASSERT_FALSE(armed);
  EXPECT_EQ(armed.error().code, base::Errc::kUnsupported);
  EXPECT_NE(armed.error().step.find("no vectors"), std::string::npos) << armed.error().step;
  EXPECT_NE(armed.error().step.find("no pin"), std::string::npos) << armed.error().step;
}

TEST_F(InterruptLineTest, AfterDisarmNobodyIsCalled) {
  device_.has_msix = true;
  ASSERT_TRUE(arm());
  const int line = device_.line;
  ASSERT_TRUE(line_.disarm());
  reactor_.signal(line);
  EXPECT_EQ(calls_, 0u);
  EXPECT_EQ(device_.line, -1);
}

}  // namespace
