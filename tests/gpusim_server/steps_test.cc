// Which steps of a model in line look at the socket (ServerOptions::steps_a_look).
#include <atomic>

#include "base/shared_memory.h"
#include "server_fixture.h"

namespace gpusim::testing {
namespace {

class StepsALook : public ServerTest {
 protected:
  static constexpr unsigned kSteps = 16;

  StepsALook() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    rare.connect(base::UniqueFd(ends[0]));
    client.emplace(base::UniqueFd(ends[1]), [this] { rare.serve(); });
    client->negotiate_with_wake();
    Received info =
        client->call(wire::kGetRegionInfo, wire::RegionInfo{256, 0, kDoorbellRegion, 0, 0, 0});
    doorbells = base::Mapping::map(info.fds.at(0).get(), 0, 4096, PROT_READ | PROT_WRITE).value();
    // To the step after a look.
    client->send(wire::kDeviceReset, {});
    while (gpu.resets == 0) rare.step();
    rare.step();
    EXPECT_TRUE(client->receive());
    gpu.resets = 0;
  }
  void store(std::uint64_t value) {
    std::atomic_ref(*doorbells.at<std::uint64_t>(0x40)).store(value, std::memory_order_release);
  }

  GpuServer rare{gpu,
                 {.name = "rare",
                  .dma_deadline = std::chrono::seconds(5),
                  .while_waiting = {},
                  .steps_a_look = kSteps}};
  std::optional<RawClient> client;
  base::Mapping doorbells;
};

TEST_F(StepsALook, IdleStepsLookEachSixteenthTime) {
  client->send(wire::kDeviceReset, {});
  for (unsigned i = 1; i < kSteps; ++i) {
    EXPECT_FALSE(rare.step());
    EXPECT_EQ(gpu.resets, 0u) << i;
  }
  EXPECT_TRUE(rare.step());
  EXPECT_EQ(gpu.resets, 1u);
}

TEST_F(StepsALook, AStoreIsTakenByTheNextStepAndTheSocketLookedAt) {
  client->send(wire::kDeviceReset, {});
  store(5);
  EXPECT_TRUE(rare.step());
  ASSERT_EQ(gpu.doorbells.size(), 1u);
  EXPECT_EQ(gpu.doorbells[0].value, 5u);
  EXPECT_EQ(gpu.resets, 1u);
}

TEST_F(StepsALook, TheStepAfterWorkLooks) {
  gpu.on_step([](HostBus*) {});
  EXPECT_TRUE(rare.step());
  client->send(wire::kDeviceReset, {});
  EXPECT_TRUE(rare.step());
  EXPECT_EQ(gpu.resets, 1u);
}

// Nothing that was sent while it was awake may be slept over.
TEST_F(StepsALook, TheStepBeforeASleepLooks) {
  client->send(wire::kDeviceReset, {});
  EXPECT_FALSE(rare.step());
  ASSERT_TRUE(rare.prepare_sleep());
  EXPECT_TRUE(rare.step());
  EXPECT_EQ(gpu.resets, 1u);
}

TEST_F(StepsALook, AClientThatWaitsIsServedAtOnce) {
  EXPECT_EQ(client->write32(kRegisterRegion, 0x10, 3), 0);
  EXPECT_EQ(client->read32(kRegisterRegion, 0x10), 3u);
}

TEST_F(ServerTest, ByDefaultEachStepLooks) {
  RawClient eager = connect_ready();
  turns(3);
  eager.send(wire::kDeviceReset, {});
  EXPECT_TRUE(server.step());
  EXPECT_EQ(gpu.resets, 1u);
}

}  // namespace
}  // namespace gpusim::testing
