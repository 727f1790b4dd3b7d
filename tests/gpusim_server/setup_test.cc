// Options of a pod and pod files.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "base/address.h"
#include "tools/gpusim/host/pod_file.h"
#include "tools/gpusim/host/setup.h"

namespace gpusim::testing {
namespace {

TEST(Setup, ListOfOptions) {
  PodSetup setup;
  ASSERT_TRUE(
      setup.set_list("gpus=2,vram=512M,bar0=vram,stall=instance,hdp=off,seed=0x10,bases=0"));
  EXPECT_EQ(setup.gpus, 2u);
  EXPECT_EQ(setup.gpu.vram_bytes, 512 * base::kMiB);
  EXPECT_EQ(setup.gpu.bar0_bytes, 0u);
  EXPECT_EQ(setup.gpu.stall, StallScope::kInstance);
  EXPECT_EQ(setup.gpu.hdp, HdpMode::kRelaxed);
  EXPECT_EQ(setup.gpu.seed, 16u);
  EXPECT_EQ(setup.gpu.bases_seed, 0u);
  EXPECT_TRUE(setup.set_list(""));
  EXPECT_TRUE(setup.check());
}

TEST(Setup, BadOptionsAreNamed) {
  for (const char* list : {"vrm=1G", "vram", "vram=", "vram=1X", "gpus=0", "gpus=65", "stall=never",
                           "hdp=maybe", "seed=-1", "vram=99999999999999G", "revision=16"}) {
    PodSetup setup;
    const auto result = setup.set_list(list);
    ASSERT_FALSE(result) << list;
    EXPECT_EQ(result.error().code, base::Errc::kInvalidArgument);
    EXPECT_NE(result.error().message().find(std::string(list).substr(0, 3)), std::string::npos);
  }
}

TEST(Setup, ChecksWhatDoesNotFit) {
  PodSetup setup;
  EXPECT_TRUE(setup.check());
  for (const char* list :
       {"vram=1", "vram=0", "vram=24M", "vram=1T", "bar0=3M", "bar0=4K", "bar0=2G"}) {
    PodSetup bad;
    ASSERT_TRUE(bad.set_list(list)) << list;
    EXPECT_FALSE(bad.check()) << list;
  }
  PodSetup small;
  ASSERT_TRUE(small.set_list("vram=16M"));
  EXPECT_EQ(small.gpu.bar0_bytes, 16 * base::kMiB);
  EXPECT_TRUE(small.check());
  PodSetup huge;
  ASSERT_TRUE(huge.set_list("gpus=64,vram=1048576G"));
  EXPECT_EQ(huge.check().error().code, base::Errc::kNoMemory);
}

class PodFile : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/gpusim-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory = name;
  }
  void TearDown() override { std::filesystem::remove_all(directory); }
  base::Result<std::vector<PodOptions>> read(const std::string& text, unsigned gpus) {
    std::ofstream(directory + "/pod") << text;
    return read_pod_file(directory + "/pod", gpus);
  }
  std::string directory;
};

TEST_F(PodFile, CommonMembersAndThoseOfEachGpu) {
  const auto pod =
      read(R"({"vpod_id": 7, "addr_mode": "ident", "members": [3, 40], "config_state": 5,
      "ppod_id": "000102030405060708090a0b0c0d0eFF", "local_accelerators": [3, 40],
      "gpus": [{"accel_id": 3}, {"accel_id": 40, "completes": false}]})",
           2);
  ASSERT_TRUE(pod) << pod.error().message();
  EXPECT_EQ((*pod)[0].config.accel_id, 3u);
  EXPECT_EQ((*pod)[1].config.accel_id, 40u);
  EXPECT_EQ((*pod)[1].config.active[0], 8u);
  EXPECT_EQ((*pod)[1].config.active[1], 0x100u);
  EXPECT_EQ((*pod)[1].config.vpod_size, 2u);
  EXPECT_EQ((*pod)[0].config.addr_mode, 1u);
  EXPECT_EQ((*pod)[0].config.ppod_id[15], 0xFF);
  EXPECT_EQ((*pod)[0].config.local_accelerators[2], 0xFFFF'FFFFu);
  EXPECT_TRUE((*pod)[0].completes);
  EXPECT_FALSE((*pod)[1].completes);
}

TEST_F(PodFile, WhatIsWrongIsNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"{", "not an object"},
      {R"({"gpus":[{}]})", "gpus"},
      {R"({"gpus":[{},{"accel_id":1024}]})", "accel_id"},
      {R"({"gpus":[{},{"accelid":1}]})", "accelid"},
      {R"({"ppod_id":"12","gpus":[{},{}]})", "ppod_id"},
      {R"({"members":[1024],"gpus":[{},{}]})", "members"},
      {R"({"addr_mode":"both","gpus":[{},{}]})", "addr_mode"},
      {R"({"completes":1,"gpus":[{},{}]})", "completes"},
  };
  for (const auto& [text, named] : cases) {
    const auto pod = read(text, 2);
    ASSERT_FALSE(pod) << text;
    EXPECT_NE(pod.error().message().find(named), std::string::npos) << pod.error().message();
  }
  EXPECT_EQ(read_pod_file(directory + "/none", 1).error().code, base::Errc::kNotFound);
}

}  // namespace
}  // namespace gpusim::testing
