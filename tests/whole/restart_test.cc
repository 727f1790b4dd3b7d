// Daemons that die and come again.
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "tests/whole/client.h"

namespace whole {
namespace {

using namespace gpuumd;

constexpr std::uint64_t kSize = 8 << 20;

class Restart : public System {
 protected:
  void expect_works(unsigned node, std::uint64_t seed) {
    auto client = connect(node);
    auto device = open(client);
    auto space = Space::make(device, GPUUMD_VM_FAULTS);
    auto buffer = vram(device, kSize);
    space.map_on_fault(kVa, buffer, kSize, 256 << 10);
    EXPECT_TRUE(space.read(kVa, kSize) == std::vector<std::byte>(kSize)) << "not cleared";
    const auto data = random_bytes(kSize, seed);
    must(space.staging.upload(kVa, data, Wait(30s)));
    EXPECT_TRUE(space.read(kVa, kSize) == data);
  }
};

class GuestRestart : public Restart {};

TEST_F(GuestRestart, KilledInTheMiddleOfWorkItComesUpColdOnTheSameDevice) {
  start();
  for (std::uint64_t round = 0; round < 2; ++round) {
    auto client = connect();
    auto device = open(client);
    auto space = Space::make(device);
    auto buffer = vram(device, kSize);
    must(space.vm.map(kVa, buffer, 0, kSize, kReadWrite));
    must(space.staging.upload(kVa, random_bytes(kSize, 30), Wait(30s)));
    // Enough that the engine is busy when the daemon dies.
    for (int n = 0; n < 100; ++n) must(space.queue.copy(kVa, kVa + kSize / 2, kSize / 2));
    must(space.queue.signal(space.fence, 1));
    must(space.queue.submit());
    kill_daemon(0);
    const auto waited = space.fence.wait(1, Wait(10s));
    if (!waited) {
      EXPECT_EQ(waited.error().status, GPUUMD_DISCONNECTED) << waited.error().text;
    }
    const auto ping = device.ping(Wait(10s));
    ASSERT_FALSE(ping);
    EXPECT_EQ(ping.error().status, GPUUMD_DISCONNECTED);
    start_daemon(0);
    // The old client stays disconnected, also now that there is a daemon again.
    const auto again = device.ping(Wait(10s));
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().status, GPUUMD_DISCONNECTED);
    expect_works(0, 31 + round);
  }
}

TEST_F(GuestRestart, StoppedInOrderItComesUpAgain) {
  start();
  expect_works(0, 33);
  EXPECT_EQ(daemon(0).stop(), 0) << daemon(0).log();
  start_daemon(0);
  expect_works(0, 34);
}

// Its parts give back what they had mapped while the device is going.
TEST_F(Restart, ADaemonWhoseDeviceIsLostEndsWithAnErrorNotACrash) {
  for (int round = 0; round < 12; ++round) {
    start();
    expect_works(0, 35);
    model().signal(round % 3 == 2 ? SIGSTOP : SIGKILL);
    end_daemon(0, 1);
    kill_model();
    std::filesystem::remove_all(directory() + "/sim");
  }
}

class GuestRestartPod : public Restart {
 protected:
  void start_pod() { start({.gpus = 2, .model = {}, .daemon = {"--no-same-host"}}); }
};

TEST_F(GuestRestartPod, AnExportersDaemonThatDiesEndsTheImportAndNothingHangs) {
  start_pod();
  auto client_b = connect(1);
  auto b = open(client_b);
  auto loop = Space::make(b), other = Space::make(b);
  auto own = vram(b, kSize), target = vram(b, kSize);
  const auto data = random_bytes(kSize, 35);
  must(other.vm.map(kVa, own, 0, kSize, kReadWrite));
  must(other.staging.upload(kVa, data, Wait(30s)));

  auto client_a = std::make_optional(connect(0));
  auto a = std::make_optional(open(*client_a));
  auto exported = std::make_optional(vram(*a, kSize));
  const auto handle = must(exported->export_handle());
  auto import = must(b.import_handle(handle, Wait(20s)));
  must(loop.vm.map(kVa, import, 0, kSize, GPUUMD_BIND_READ));
  must(loop.vm.map(2 * kVa, target, 0, kSize, kReadWrite));

  std::atomic<int> copies{0};
  std::atomic<bool> enough{false};
  gpuumd_status ended = GPUUMD_OK;
  std::thread copier([&] {
    while (!enough.load()) {
      const auto done = loop.copy(2 * kVa, kVa, kSize);
      if (!done) {
        ended = done.error().status;
        return;
      }
      copies.fetch_add(1);
    }
  });
  EXPECT_TRUE(eventually([&] { return copies.load() >= 2; }));
  kill_daemon(0);
  exported.reset();  // the objects of a dead daemon go without waiting for it
  a.reset();
  client_a.reset();
  start_daemon(0);  // resets the device under the importer, and greets it
  // The copies end, in one way or another, with a reason that names the peer.
  const bool told = eventually([&] { return must(import.state()) != GPUUMD_OK; });
  enough = true;
  copier.join();
  EXPECT_TRUE(told);
  const auto state = must(import.state());
  EXPECT_TRUE(state == GPUUMD_REVOKED || state == GPUUMD_PEER_LOST) << gpuumd_status_text(state);
  // A kernel resets the device when its daemon has died, and nobody explains the refusals in time.
  const bool refusal = std::getenv("GPUUMD_TEST_DEVICES") != nullptr && ended == GPUUMD_REFUSED;
  EXPECT_TRUE(ended == GPUUMD_OK || ended == GPUUMD_REVOKED || ended == GPUUMD_PEER_LOST || refusal)
      << gpuumd_status_text(ended);
  // B's own work goes on, and the pair works again.
  EXPECT_TRUE(other.read(kVa, kSize) == data);
  auto client_new = connect(0);
  auto device_new = open(client_new);
  auto space_new = Space::make(device_new);
  auto fresh = vram(device_new, kSize);
  must(space_new.vm.map(kVa, fresh, 0, kSize, kReadWrite));
  must(space_new.staging.upload(kVa, data, Wait(30s)));
  const auto fresh_handle = must(fresh.export_handle());
  auto fresh_import = must(b.import_handle(fresh_handle, Wait(20s)));
  must(other.vm.map(4 * kVa, fresh_import, 0, kSize, GPUUMD_BIND_READ));
  EXPECT_TRUE(other.read(4 * kVa, kSize) == data);
}

TEST_F(GuestRestartPod, AnImportersDaemonThatDiesLetsTheExporterFree) {
  start_pod();
  auto client_a = connect(0);
  auto a = open(client_a);
  auto exported = std::make_optional(vram(a, kSize));
  const auto handle = must(exported->export_handle());
  {
    auto client_b = connect(1);
    auto b = open(client_b);
    auto import = must(b.import_handle(handle, Wait(20s)));
    kill_daemon(1);
  }
  exported.reset();
  // Freed, though the importer never says that it lets go.
  EXPECT_TRUE(
      eventually([&] { return number(0, GPUUMD_QUERY_STATUS, {"vram_reserved_bytes"}) == 0; }));
  start_daemon(1);
  expect_works(0, 36);
  expect_works(1, 37);
}

}  // namespace
}  // namespace whole
