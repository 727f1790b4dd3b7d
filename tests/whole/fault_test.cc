// Page faults: serviced, fatal, and of clients that die.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/whole/child.h"
#include "tests/whole/client.h"

namespace whole {
namespace {

using namespace gpuumd;

constexpr std::uint64_t kSize = 4 << 20;
constexpr std::uint64_t kWindow = 64 << 10;

// Both stall models of the device; the daemon does not know which it has.
class GuestFaults : public System, public ::testing::WithParamInterface<const char*> {
 protected:
  void start_model() { start({.gpus = 1, .model = {{"stall", GetParam()}}, .daemon = {}}); }
};
INSTANTIATE_TEST_SUITE_P(Stall, GuestFaults, ::testing::Values("queue", "instance"));

TEST_P(GuestFaults, FH_8_TwoClientsAtOneAddressFaultAtOnceAndGetTheirOwnData) {
  start_model();
  constexpr int kClients = 2;
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int n = 0; n < kClients; ++n)
    threads.emplace_back([&, n] {
      auto client = connect(0, "twin");
      auto device = open(client);
      auto space = Space::make(device, GPUUMD_VM_FAULTS);
      auto buffer = vram(device, kSize);
      space.map_on_fault(kVa, buffer, kSize, kWindow);
      const auto data = random_bytes(kSize, 100 + n);
      must(space.staging.upload(kVa, data, Wait(60s)));
      if (space.read(kVa, kSize) == data) good.fetch_add(1);
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(good.load(), kClients);
  EXPECT_EQ(number(0, GPUUMD_QUERY_FAULTS, {"windows"}), kClients * kSize / kWindow);
  EXPECT_EQ(number(0, GPUUMD_QUERY_FAULTS, {"fatal"}), 0u);
}

TEST_P(GuestFaults, FH_4_AnAddressWithNothingBehindItIsFatalForThatVmAlone) {
  start_model();
  auto client = connect();
  auto device = open(client);
  auto bad = Space::make(device, GPUUMD_VM_FAULTS), good = Space::make(device, GPUUMD_VM_FAULTS);
  auto buffer = vram(device, kSize);
  good.map_on_fault(kVa, buffer, kSize, kWindow);
  const auto data = random_bytes(kSize, 12);
  must(good.staging.upload(kVa, data, Wait(60s)));

  const auto copied = bad.copy(kStagingVa, 5 * kVa, 4096);
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.error().status, GPUUMD_FAULT);
  const auto event = wait_event(client, GPUUMD_EVENT_FATAL_FAULT);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->object, bad.vm.id());
  EXPECT_EQ(event->va, 5 * kVa);
  EXPECT_EQ(event->access, static_cast<std::uint32_t>(GPUUMD_ACCESS_READ));
  EXPECT_EQ(must(bad.vm.state()), GPUUMD_FAULT);
  EXPECT_EQ(must(good.vm.state()), GPUUMD_OK);
  EXPECT_TRUE(good.read(kVa, kSize) == data);
}

TEST_P(GuestFaults, FH_3_AWriteToAReadOnlyRangeIsFatalNotAnEndlessRetry) {
  start_model();
  auto client = connect();
  auto device = open(client);
  auto space = Space::make(device, GPUUMD_VM_FAULTS);
  auto buffer = vram(device, kSize);
  space.map_on_fault(kVa, buffer, kSize, kWindow, GPUUMD_BIND_READ);
  must(space.copy(kStagingVa, kVa, 4096));  // reading makes the page present
  const auto written = space.copy(kVa, kStagingVa, 4096);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().status, GPUUMD_PERMISSION);
  EXPECT_TRUE(wait_event(client, GPUUMD_EVENT_FATAL_FAULT));
}

TEST_P(GuestFaults, AVmWithoutFaultsDiesOfAnAccessOutsideItsMappings) {
  start_model();
  auto client = connect();
  auto device = open(client);
  auto space = Space::make(device);
  const auto copied = space.copy(5 * kVa, kStagingVa, 4096);
  ASSERT_FALSE(copied);
  EXPECT_EQ(copied.error().status, GPUUMD_FAULT);
}

TEST_P(GuestFaults, DMA_4_AClientKilledInTheMiddleOfFaultingCopiesLeavesNothing) {
  start_model();
  auto watcher = connect();
  const auto count = [&](const std::vector<std::string>& path) {
    return number(0, GPUUMD_QUERY_STATUS, path);
  };
  const auto mapped_before = count({"dma", "mapped_bytes"});
  const auto dir = runtime_dir(0);
  Child victim([&](const Child::Say& say) {
    auto client = must(Client::connect(dir, "victim", 20s));
    auto device = must(client.open_device(0u));
    auto space = Space::make(device, GPUUMD_VM_FAULTS);
    auto buffer = vram(device, 64 << 20);
    space.map_on_fault(kVa, buffer, 64 << 20, kWindow);
    for (int n = 0;; ++n) {
      must(space.queue.copy(kVa, kVa + (32 << 20), 32 << 20, Wait(60s)));
      must(space.queue.submit());
      if (n == 0) say("running");
    }
    return 0;
  });
  ASSERT_TRUE(victim.line());
  ASSERT_TRUE(eventually([&] { return count({"work", "in_flight"}) > 0; }));
  victim.kill();
  EXPECT_TRUE(eventually([&] { return count({"sessions"}) == 0; }));
  EXPECT_TRUE(eventually([&] { return count({"vram_reserved_bytes"}) == 0; }));
  EXPECT_TRUE(eventually([&] { return count({"vmids_free"}) == 13; }));
  EXPECT_TRUE(eventually([&] { return count({"dma", "mapped_bytes"}) == mapped_before; }));
  // And the device works on.
  auto device = open(watcher);
  auto space = Space::make(device);
  auto buffer = vram(device, kSize);
  must(space.vm.map(kVa, buffer, 0, kSize, kReadWrite));
  EXPECT_TRUE(space.read(kVa, kSize) == std::vector<std::byte>(kSize));
}

}  // namespace
}  // namespace whole
