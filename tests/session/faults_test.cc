#include "daemon/session/faults.h"

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <sstream>

#include "tests/session/device_rig.h"

namespace gpuumd {
namespace {

using std::chrono::milliseconds;

class StrayFaults : public test::DeviceRig {
 protected:
  void SetUp() override {
    DeviceRig::SetUp();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(log_)));
  }
  void TearDown() override {
    DeviceRig::TearDown();
    spdlog::set_default_logger(before_);
  }

  std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
  std::ostringstream log_;
};

TEST_F(StrayFaults, FH_1_AFaultOfNobodyIsCountedAndLoggedAndKillsNobody) {
  PageFault fault;
  fault.vmid = base::Vmid(3);
  fault.pasid = base::Pasid(77);
  fault.va = base::GpuVa(0x12'3456'7000);
  fault.write = true;
  on([&](Device& device) {
    GpuEvents& events = device;
    for (int n = 0; n < 100; ++n) events.access_failed(fault);
    fault.hub = HubKind::kMmhub;
    events.access_failed(fault);
    EXPECT_EQ(device.faults().counters().stray, 101u);
    EXPECT_EQ(device.faults().counters().fatal, 0u);
  });
  const auto text = log_.str();
  EXPECT_EQ(std::ranges::count(text, '\n'), 1) << text;
  for (const auto* part : {"GFXHUB 0", "VMID 3", "PASID 77", "0x1234567000"})
    EXPECT_NE(text.find(part), std::string::npos) << "no " << part << " in " << text;
}

}  // namespace
}  // namespace gpuumd
