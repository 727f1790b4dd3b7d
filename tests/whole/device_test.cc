// Devices that lack what others have, and devices that go.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/whole/client.h"

namespace whole {
namespace {

using namespace gpuumd;
using nlohmann::json;

constexpr std::uint64_t kSize = 4 << 20;

class Devices : public System {
 protected:
  void start_one(std::map<std::string, std::string> model) {
    start({.gpus = 1, .model = std::move(model), .daemon = {}});
  }
  // Copies in both directions, the first through faults: interrupts have to arrive for that.
  void expect_works() {
    auto client = connect();
    auto device = open(client);
    auto space = Space::make(device, GPUUMD_VM_FAULTS);
    auto buffer = vram(device, kSize);
    space.map_on_fault(kVa, buffer, kSize, 256 << 10);
    const auto data = random_bytes(kSize, 7);
    must(space.staging.upload(kVa, data, Wait(30s)));
    EXPECT_TRUE(space.read(kVa, kSize) == data);
  }
  // What the daemon says of the device that is not as usual.
  std::string remarks() {
    auto client = connect();
    const auto status = json::parse(must(client.query(GPUUMD_QUERY_STATUS, 0)));
    const auto& device = status.is_array() ? status.at(0) : status;
    return device.value("remarks", json::array()).dump();
  }
  std::string state() {
    auto client = connect();
    const auto status = json::parse(must(client.query(GPUUMD_QUERY_STATUS, 0)));
    return (status.is_array() ? status.at(0) : status).at("state");
  }
  bool log_says(const std::string& text) { return daemon(0).log().find(text) != std::string::npos; }
  // What it has said when it has ended, with this exit code.
  std::string stop_and_log(int code) {
    EXPECT_EQ(daemon(0).stop(), code);
    const auto log = daemon(0).log();
    end_daemon(0, code);
    return log;
  }
  bool has_client() {
    return json::parse(control(R"({"command": "counters"})")).at("gpus").at(0).at("connected");
  }
};

TEST_F(Devices, WithoutMsixInterruptsComeByIntx) {
  start_one({{"interrupts", "intx"}});
  for (int round = 0; round < 3; ++round) expect_works();
  EXPECT_NE(remarks().find("INTx"), std::string::npos) << remarks();
}

class DevicesReset : public Devices, public ::testing::WithParamInterface<const char*> {};

// "deaf" says that it has reset itself: the next daemon sees that it has not.
INSTANTIATE_TEST_SUITE_P(ThatFail, DevicesReset, ::testing::Values("off", "deaf"));

TEST_P(DevicesReset, TheSecurityProcessorResetsInItsPlace) {
  start_one({{"flr", GetParam()}});
  expect_works();
  {
    auto client = connect();
    auto device = open(client);
    auto space = Space::make(device);
    auto buffer = vram(device, kSize);
    must(space.vm.map(kVa, buffer, 0, kSize, kReadWrite));
    for (int n = 0; n < 100; ++n) must(space.queue.copy(kVa, kVa + kSize / 2, kSize / 2));
    must(space.queue.signal(space.fence, 1));
    must(space.queue.submit());
    kill_daemon(0);  // its engine is busy
  }
  start_daemon(0);
  EXPECT_NE(remarks().find("mode 1"), std::string::npos) << remarks();
  expect_works();
}

// Nobody tells the daemon: it finds registers and configuration space all ones.
TEST_F(Devices, ThatGoAreNoticedToldAndLetGo) {
  start_one({});
  auto client = connect();
  auto device = open(client);
  auto witness = connect();
  auto other = open(witness);
  auto space = Space::make(device);
  auto buffer = vram(device, kSize);
  must(space.vm.map(kVa, buffer, 0, kSize, kReadWrite));
  EXPECT_TRUE(has_client());
  control(R"({"command": "device.gone"})");
  const auto unmapped = space.vm.unmap(kVa, kSize, Wait(20s));  // flushes a TLB
  ASSERT_FALSE(unmapped);
  EXPECT_EQ(unmapped.error().status, GPUUMD_DEVICE_LOST) << unmapped.error().text;
  EXPECT_TRUE(wait_event(witness, GPUUMD_EVENT_DEVICE_LOST));
  const auto ping = other.create_vm(0, Wait(20s));
  ASSERT_FALSE(ping);
  EXPECT_EQ(ping.error().status, GPUUMD_DEVICE_LOST) << ping.error().text;
  EXPECT_TRUE(eventually([this] { return !has_client(); })) << "the daemon still holds the device";
  end_daemon(0, 1);
}

// 64 MiB by faults of 4 KiB: fence point 1 is a while away.
void start_faulting_fills(Space& space, const gpuumd::Buffer& buffer) {
  space.map_on_fault(kVa, buffer, 64 << 20, 4096);
  for (int n = 0; n < 16; ++n)
    must(space.queue.fill(kVa + (std::uint64_t{4} << 20) * static_cast<unsigned>(n), 4 << 20, 1));
  must(space.queue.signal(space.fence, 1));
  must(space.queue.submit());
}

// With work, faults and table updates under way, which nobody finishes.
TEST_F(Devices, ThatGoInTheMiddleOfWorkEndItAsDeviceLost) {
  for (int round = 0; round < 4; ++round) {
    start_one({});
    auto client = connect();
    auto device = open(client);
    auto space = Space::make(device, GPUUMD_VM_FAULTS);
    auto buffer = vram(device, 64 << 20);
    start_faulting_fills(space, buffer);
    std::this_thread::sleep_for(std::chrono::milliseconds(20 * round));
    control(R"({"command": "device.gone"})");
    const auto mapped = space.vm.map(kStagingVa + (1 << 30), buffer, 0, kSize, kReadWrite);
    if (!mapped) {
      EXPECT_EQ(mapped.error().status, GPUUMD_DEVICE_LOST) << mapped.error().text;
    }
    const auto done = space.fence.wait(1, Wait(20s));
    ASSERT_FALSE(done) << "it had been too quick";
    EXPECT_EQ(done.error().status, GPUUMD_DEVICE_LOST) << done.error().text;
    end_daemon(0, 1);
    kill_model();
    std::filesystem::remove_all(directory() + "/sim");
  }
}

// As `echo 1 > reset` does. Nothing that the daemon has set up is there any more.
TEST_F(Devices, ThatSomebodyResetsAreLostWithTheNextJobOfTheDaemon) {
  start_one({});
  auto witness = connect();
  auto device = open(witness);
  control(R"({"command": "device.reset", "gpu": 0})");
  const auto vm = device.create_vm(0, Wait(20s));  // has page tables to write
  ASSERT_FALSE(vm);
  EXPECT_TRUE(vm.error().status == GPUUMD_DEVICE_ERROR || vm.error().status == GPUUMD_DEVICE_LOST)
      << vm.error().text;
  EXPECT_TRUE(wait_event(witness, GPUUMD_EVENT_DEVICE_LOST));
  const auto again = device.create_vm(0, Wait(20s));
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().status, GPUUMD_DEVICE_LOST) << again.error().text;
  EXPECT_EQ(state(), "lost");
  EXPECT_TRUE(eventually([this] { return log_says("somebody else has reset the device"); }))
      << daemon(0).log();
  end_daemon(0, 1);
}

// What a client's engine works at may take as long as it likes.
TEST_F(Devices, ThatSomebodyResetsInTheMiddleOfWorkAreLost) {
  start_one({});
  auto client = connect();
  auto device = open(client);
  auto space = Space::make(device, GPUUMD_VM_FAULTS);
  auto buffer = vram(device, 64 << 20);
  start_faulting_fills(space, buffer);
  control(R"({"command": "device.reset", "gpu": 0})");
  const auto done = space.fence.wait(1, Wait(20s));
  ASSERT_FALSE(done) << "it had been too quick";
  EXPECT_EQ(done.error().status, GPUUMD_DEVICE_LOST) << done.error().text;
  end_daemon(0, 1);
}

// Nobody has used it since, and to leave the pod is the first that is asked of it.
TEST_F(Devices, ThatSomebodyHasResetAreFoundAtTheEndAtTheLatest) {
  start({.gpus = 2, .model = {}, .daemon = {}});
  control(R"({"command": "device.reset", "gpu": 0})");
  EXPECT_NE(stop_and_log(1).find("somebody else has reset the device"), std::string::npos);
}

// Too late for a command, and in time for the end of its ring.
TEST_F(Devices, WhoseSecurityProcessorIsLateWorkOnAndTheFabricSaysSo) {
  start({.gpus = 2, .model = {}, .daemon = {}});
  control(R"({"command": "psp.late", "gpu": 0, "answer_us": 4000000})");
  expect_works();
  EXPECT_EQ(state(), "ready");
  const auto said = stop_and_log(0);
  EXPECT_NE(said.find("fabric: security processor command"), std::string::npos) << said;
}

// It is kept from memory, and nobody waits for its answers.
TEST_F(Devices, ThatWereFoundBrokenAreNotWaitedForAtTheEnd) {
  start_one({});
  auto client = connect();
  auto device = open(client);
  control(R"({"command": "device.reset", "gpu": 0})");
  control(R"({"command": "psp.late", "gpu": 0, "answer_us": 3600000000})");
  EXPECT_FALSE(device.create_vm(0, Wait(20s)));
  EXPECT_TRUE(wait_event(client, GPUUMD_EVENT_DEVICE_LOST));
  const auto said = stop_and_log(1);
  EXPECT_EQ(said.find("timed out"), std::string::npos) << said;
}

}  // namespace
}  // namespace whole
