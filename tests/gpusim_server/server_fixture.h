// One server over a fake GPU, and one client, all on the test's thread.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "fake_gpu_device.h"
#include "raw_client.h"
#include "tools/gpusim/server/gpu_server.h"

namespace gpusim::testing {

class ServerTest : public ::testing::Test {
 protected:
  RawClient connect() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    server.connect(base::UniqueFd(ends[0]));
    return RawClient(base::UniqueFd(ends[1]), [this] { server.step(); });
  }
  // Of a client that is ready to have its memory reached.
  RawClient connect_ready() {
    RawClient client = connect();
    client.negotiate();
    client.set_bus_master();
    return client;
  }
  void turns(int count) {
    for (int i = 0; i < count; ++i) server.step();
  }

  static constexpr std::uint32_t kVramRegion = 0;
  static constexpr std::uint32_t kDoorbellRegion = 2;
  static constexpr std::uint32_t kRegisterRegion = 5;

  explicit ServerTest(bool intx = false) : gpu(intx) {}

  FakeGpuDevice gpu;
  GpuServer server{gpu,
                   {.name = "test", .dma_deadline = std::chrono::seconds(5), .while_waiting = {}}};
};

}  // namespace gpusim::testing
