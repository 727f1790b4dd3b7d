// Sleeping and waking (docs/model.md).
#include <sys/eventfd.h>

#include <atomic>

#include "base/shared_memory.h"
#include "server_fixture.h"

namespace gpusim::testing {
namespace {

class Wake : public ServerTest {
 protected:
  void SetUp() override {
    Received reply = client.negotiate_with_wake();
    ASSERT_EQ(reply.fds.size(), 2u);
    EXPECT_EQ(base::sealed_size(reply.fds[0].get()).value(), 4096u);
    page = base::Mapping::map(reply.fds[0].get(), 0, 4096, PROT_READ).value();
    event = std::move(reply.fds[1]);
    Received info =
        client.call(wire::kGetRegionInfo, wire::RegionInfo{256, 0, kDoorbellRegion, 0, 0, 0});
    ASSERT_EQ(info.fds.size(), 1u);
    doorbells = base::Mapping::map(info.fds[0].get(), 0, 4096, PROT_READ | PROT_WRITE).value();
  }
  std::uint32_t sleeping() const {
    return std::atomic_ref(*page.at<std::uint32_t>()).load(std::memory_order_seq_cst);
  }
  void store(std::uint64_t offset, std::uint64_t value) {
    std::atomic_ref(*doorbells.at<std::uint64_t>(offset)).store(value, std::memory_order_release);
  }

  RawClient client = connect();
  base::Mapping page;
  base::Mapping doorbells;
  base::UniqueFd event;
};

TEST_F(Wake, WordSaysWhetherTheModelSleeps) {
  EXPECT_EQ(sleeping(), 0u);
  ASSERT_TRUE(server.prepare_sleep());
  EXPECT_EQ(sleeping(), 1u);
  server.wake_up();
  EXPECT_EQ(sleeping(), 0u);
}

TEST_F(Wake, StoreBeforeTheSleepIsFoundByTheLastLook) {
  store(0x40, 9);
  EXPECT_FALSE(server.prepare_sleep());
  EXPECT_EQ(sleeping(), 0u);
  ASSERT_EQ(gpu.doorbells.size(), 1u);
  EXPECT_EQ(gpu.doorbells[0], (FakeGpuDevice::Doorbell{0x40, 9, 0}));
  EXPECT_TRUE(server.prepare_sleep());
}

TEST_F(Wake, EventfdEndsThePollAndIsDrained) {
  ASSERT_TRUE(server.prepare_sleep());
  std::vector<pollfd> fds;
  server.add_poll_fds(fds);
  EXPECT_EQ(::poll(fds.data(), fds.size(), 0), 0);
  store(0x48, 1);
  ASSERT_EQ(sleeping(), 1u);
  ::eventfd_write(event.get(), 1);
  EXPECT_EQ(::poll(fds.data(), fds.size(), 0), 1);
  server.wake_up();
  EXPECT_EQ(::poll(fds.data(), fds.size(), 0), 0);
  EXPECT_TRUE(server.step());
  EXPECT_EQ(gpu.doorbells.size(), 1u);
}

TEST_F(Wake, MessageEndsThePoll) {
  ASSERT_TRUE(server.prepare_sleep());
  std::vector<pollfd> fds;
  server.add_poll_fds(fds);
  client.send(wire::kDeviceReset, {});
  EXPECT_EQ(::poll(fds.data(), fds.size(), 0), 1);
}

TEST_F(Wake, StoresAreTakenBeforeAnyMessageIsServed) {
  store(0x40, 3);
  client.write32(kDoorbellRegion, 0x80, 4);
  ASSERT_EQ(gpu.doorbells.size(), 2u);
  EXPECT_EQ(gpu.doorbells[0].value, 3u);
  EXPECT_EQ(gpu.doorbells[1].value, 4u);
}

TEST_F(Wake, NextClientGetsAPageOfItsOwn) {
  client.close();
  turns(1);
  EXPECT_TRUE(server.prepare_sleep());
  EXPECT_EQ(sleeping(), 0u);  // the old page is nobody's
  server.wake_up();
  RawClient next = connect();
  EXPECT_EQ(next.negotiate_with_wake().fds.size(), 2u);
  EXPECT_TRUE(server.prepare_sleep());
}

}  // namespace
}  // namespace gpusim::testing
