#include "daemon/session/exports.h"

#include "tests/session/device_rig.h"

namespace gpuumd {
namespace {

class InPod : public test::DeviceRig {
 protected:
  void SetUp() override { start("sim:vram=64M,bar0=32M,pod=default"); }
};

// The controller's change of configuration may come while the device is taken down.
TEST_F(InPod, WhoHasLeftIsNotBroughtBackByANewConfiguration) {
  const auto state = [](Device& device) { return device.exports().node()->state(); };
  EXPECT_EQ(on(state), fabric::AccelState::kActive);
  EXPECT_TRUE(
      wait<void>([](Device& device, auto done) { device.exports().stop(std::move(done)); }));
  EXPECT_EQ(on(state), fabric::AccelState::kPodConfigured);
  on([](Device& device) {
    GpuEvents& events = device;
    events.security_request({psp::Request::Category::kCommand, psp::Request::Kind::kConfigUpdate});
  });
  // Behind the question that the request leads to.
  EXPECT_TRUE(wait<psp::Config>(
      [](Device& device, auto done) { device.gpu().psp().get_config(std::move(done)); }));
  EXPECT_EQ(on(state), fabric::AccelState::kPodConfigured);
}

}  // namespace
}  // namespace gpuumd
