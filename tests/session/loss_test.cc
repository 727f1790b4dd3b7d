// Devices that leave the bus.
#include <gmock/gmock.h>

#include <set>

#include "tests/session/device_rig.h"

namespace gpuumd {
namespace {

using ::testing::HasSubstr;

class Loss : public test::DeviceRig {
 protected:
  void SetUp() override {}  // each test starts its own
  // What the start of such a device ends with; nothing when it is up.
  std::optional<base::Error> start_with(std::uint64_t accesses) {
    DeviceThread::Options options;
    options.name = "sim:vram=64M,bar0=32M,gone_after=" + std::to_string(accesses);
    options.config = &config_;
    options.census = &census_;
    options.changed = [](const wire::DeviceInfo&) {};
    auto started = DeviceThread::start(std::move(options));
    if (!started) return started.error();
    (void)(*started)->stop();
    return std::nullopt;
  }
};

// Every state of bring-up in which registers are accessed, each ended by one error that names it.
TEST_F(Loss, ADeviceThatVanishesDuringBringUpIsLostInThatStep) {
  std::set<std::string> steps;
  std::string step;
  // Afterwards it is the fabric's start that fails.
  for (std::uint64_t accesses = 1; step != "Engines" && accesses < 100'000; accesses += 37) {
    const auto error = start_with(accesses);
    ASSERT_TRUE(error) << accesses << ": up, last lost in " << step;
    EXPECT_EQ(error->code, base::Errc::kDeviceLost) << accesses << ": " << error->message();
    EXPECT_THAT(error->step, HasSubstr("all ones")) << accesses;
    const auto name = error->step.find(": ") + 2;
    step = error->step.substr(name, error->step.find(": ", name) - name);
    steps.insert(step);
  }
  for (const auto* expected : {"BootLoader", "Discovery", "Gart", "Interrupts", "Engines"})
    EXPECT_TRUE(steps.contains(expected)) << expected;
}

}  // namespace
}  // namespace gpuumd
