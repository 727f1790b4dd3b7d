// The pod that several GPUs form by themselves, and who else may be in it.
#include <gtest/gtest.h>

#include <bit>
#include <set>

#include "tests/gpusim_fabric/pod_bench.h"
#include "tools/gpusim/host/local_switch.h"

namespace gpusim::test {
namespace {

TEST(DefaultPod, AllAreMembersAndTheirConfigurationIsComplete) {
  for (const unsigned gpus : {1u, 2u, 64u}) {
    std::set<std::uint32_t> ids;
    for (const PodOptions& pod : default_pod(gpus, false)) {
      const PodConfig& c = pod.config;
      EXPECT_EQ(c.config_state, 5u);
      EXPECT_NE(c.accel_id, 0u);
      EXPECT_LT(c.accel_id, c.ppod_size);
      EXPECT_LE(c.ppod_size, 256u);
      EXPECT_NE(c.vpod_id, 0u);
      EXPECT_EQ(c.vpod_size, gpus);
      unsigned members = 0;
      for (const std::uint32_t word : c.active) members += std::popcount(word);
      EXPECT_EQ(members, gpus);
      EXPECT_NE(c.active[c.accel_id / 32] >> c.accel_id % 32 & 1, 0u);
      EXPECT_EQ(c.addr_mode, 0u);
      ids.insert(c.accel_id);
    }
    EXPECT_EQ(ids.size(), gpus);
  }
  EXPECT_EQ(default_pod(2, true)[1].config.addr_mode, 1u);
}

TEST(DefaultPod, D52_OneGpuHasNoneUnlessAsked) {
  EXPECT_EQ(PodBench(1).gpu(0).pod_config().config_state, 0u);
  EXPECT_EQ(PodBench(1, "pod=default").gpu(0).pod_config().config_state, 5u);
  EXPECT_EQ(PodBench(2).gpu(1).pod_config().accel_id, 6u);
  EXPECT_EQ(PodBench(2, "pod=none").gpu(1).pod_config().accel_id, 0xFFFF'FFFFu);
}

TEST(DefaultPod, SixtyFourGpusReachEachOther) {
  PodBench pod(64, "vram=16M,xccs=1,mids=1,sdma=1");
  // Nobody was brought up: the last one answers, and refuses.
  RemoteAccess access;
  std::uint64_t word = 0;
  access.npa = std::uint64_t{pod.gpu(63).accel_id()} << 41;
  access.read_to = base::as_writable_bytes(word);
  EXPECT_EQ(pod.gpu(0).context().fabric.access(access), Outcome::kRefused);
  EXPECT_EQ(access.sender, 3u);
  EXPECT_EQ(*pod.run("fabric.counters").number("refused"), 1u);
}

}  // namespace
}  // namespace gpusim::test
