#include "daemon/gpu/bringup/topology.h"

#include <gtest/gtest.h>

#include "daemon/gpu/registers/nbio.h"
#include "daemon/gpu/registers/osssys.h"
#include "daemon/gpu/registers/sdma.h"
#include "tests/daemon_hw/discovery_builder.h"
#include "tests/fake/fake_register_io.h"

namespace {

using daemon_hw::DiscoveryBuilder;
using gpuumd::GpuTopology;
using namespace gpuumd::vm_hub;

constexpr std::uint64_t kVram = base::kGiB;

class TopologyTest : public testing::Test {
 protected:
  base::Result<GpuTopology> make() {
    auto table = gpuumd::discovery::parse(builder_.build());
    if (!table) return std::unexpected(table.error());
    return gpuumd::make_topology(*table, io_);
  }
  void expect_refused(const char* what) {
    const auto topology = make();
    ASSERT_FALSE(topology);
    EXPECT_EQ(topology.error().code, base::Errc::kUnsupported);
    EXPECT_NE(topology.error().step.find(what), std::string::npos) << topology.error().message();
  }
  // FB_LOCATION of all hubs and FB_OFFSET of the MMHUBs.
  void set_memory(const GpuTopology& t, std::uint32_t base, std::uint32_t top,
                  std::uint32_t offset) {
    const auto location = [&](const gpuumd::VmHub& hub) {
      io_.values[hub.registers.dword<FB_LOCATION_BASE_LO32>()] = base;
      io_.values[hub.registers.dword<FB_LOCATION_TOP_LO32>()] = top;
    };
    for (const auto& hub : t.mmhubs) {
      location(hub);
      io_.values[hub.registers.dword<FB_OFFSET>()] = offset;
    }
    for (const auto& xcc : t.xccs) location(xcc.hub);
  }
  DiscoveryBuilder builder_ = DiscoveryBuilder::gpu();
  fake::FakeRegisterIo io_;
};

TEST_F(TopologyTest, BlocksOfTwoMidsAndTwoXccs) {
  const auto t = make();
  ASSERT_TRUE(t) << t.error().message();
  EXPECT_EQ(t->mmhubs.size(), 2u);
  EXPECT_EQ(t->xccs.size(), 2u);
  EXPECT_EQ(t->sdma_per_xcc(), 2u);
  EXPECT_EQ(t->sdma_engines(), 4u);
  EXPECT_EQ(t->hubs().mmhubs, 0b11u);
  EXPECT_EQ(t->nbio.dword<gpuumd::nbio::RCC_CONFIG_MEMSIZE>(), 0x0DE3u);
  EXPECT_EQ(t->osssys.dword<gpuumd::osssys::IH_RB_CNTL>(0), 0x1120u);
  EXPECT_EQ(t->mmhubs[1].registers.dword<L2_CNTL>(), 0x59824u);
  EXPECT_EQ(t->xccs[1].hub.registers.dword<CONTEXT_CNTL>(0), 0x41260u + 0x1634);
  EXPECT_EQ(t->xccs[1].sdma[1].dword<gpuumd::sdma::RB_CNTL>(0), 0x41260u + 0x800);
  EXPECT_TRUE(io_.log.empty());
}

TEST_F(TopologyTest, HarvestedXccLeavesAGapInTheNumbers) {
  builder_ = DiscoveryBuilder::gpu(1, 3);
  builder_.harvested = {{11, 1}, {42, 2}, {42, 3}};
  const auto t = make();
  ASSERT_TRUE(t) << t.error().message();
  ASSERT_EQ(t->xccs.size(), 2u);
  EXPECT_EQ(t->xccs[1].hub.instance, 2u);
  EXPECT_EQ(t->hubs().gfxhubs, 0b101u);
}

TEST_F(TopologyTest, EveryMissingBlockIsNamed) {
  const std::pair<std::uint16_t, const char*> blocks[] = {
      {108, "NBIO"}, {40, "OSSSYS"}, {255, "MP0"}, {91, "LSDMA"}, {34, "MMHUB"}, {11, "GC"}};
  for (const auto& [id, name] : blocks) {
    builder_ = DiscoveryBuilder::gpu();
    std::erase_if(builder_.dies[0], [id = id](const auto& entry) { return entry.id == id; });
    SCOPED_TRACE(name);
    expect_refused(name);
  }
  builder_ = DiscoveryBuilder::gpu();
  std::erase_if(builder_.dies[0], [](const auto& entry) { return entry.id == 42; });
  expect_refused("0 SDMA instances");
}

TEST_F(TopologyTest, HdpIsNotNeeded) {
  std::erase_if(builder_.dies[0], [](const auto& entry) { return entry.id == 41; });
  EXPECT_TRUE(make());
}

TEST_F(TopologyTest, MissingSegmentIsNamed) {
  for (auto& entry : builder_.dies[0])
    if (entry.id == 11 && entry.instance == 1) entry.bases.resize(1);
  expect_refused("GC instance 1 has no usable base for segment 1");
}

TEST_F(TopologyTest, OtherVersionIsNamed) {
  for (auto& entry : builder_.dies[0])
    if (entry.id == 40) entry.minor = 0;
  expect_refused("OSSSYS instance 0 is version 7.0.0, not 7.1.0");
}

TEST_F(TopologyTest, UnevenSdmaIsRefused) {
  builder_.dies[0].pop_back();
  expect_refused("3 SDMA instances for 2 XCCs");
}

TEST_F(TopologyTest, TwoBlocksOfOneNumberAreRefused) {
  builder_.dies[0].push_back({34, 1, 4, 2, 0, {0, 0, 0x99800}});
  const auto t = make();
  ASSERT_FALSE(t);
  EXPECT_EQ(t.error().code, base::Errc::kProtocol);
}

TEST_F(TopologyTest, D8_MemoryLayoutIsReadFromTheHubs) {
  auto t = make();
  ASSERT_TRUE(t);
  set_memory(*t, 0x8000, 0x803F, 0x1100);
  const auto laid = gpuumd::read_memory_layout(*t, kVram);
  ASSERT_TRUE(laid) << laid.error().message();
  EXPECT_EQ(t->fb_base.value(), 0x80'0000'0000u);
  EXPECT_EQ(t->fb_top.value(), 0x80'3FFF'FFFFu);
  EXPECT_EQ(t->vram_base.value(), 0x11'0000'0000u);
  EXPECT_TRUE(io_.writes().empty()) << "the firmware's values are only read";
}

TEST_F(TopologyTest, Bit56OfTheFrameBuffer) {
  auto t = make();
  ASSERT_TRUE(t);
  set_memory(*t, 0x8000, 0x803F, 0);
  for (const auto& hub : t->mmhubs) {
    io_.values[hub.registers.dword<FB_LOCATION_BASE_HI32>()] = 1;
    io_.values[hub.registers.dword<FB_LOCATION_TOP_HI32>()] = 1;
  }
  for (const auto& xcc : t->xccs) {
    io_.values[xcc.hub.registers.dword<FB_LOCATION_BASE_HI32>()] = 1;
    io_.values[xcc.hub.registers.dword<FB_LOCATION_TOP_HI32>()] = 1;
  }
  ASSERT_TRUE(gpuumd::read_memory_layout(*t, kVram));
  EXPECT_EQ(t->fb_base.value(), 0x0100'0080'0000'0000u);
}

TEST_F(TopologyTest, FrameBufferSmallerThanVramIsADeviceError) {
  auto t = make();
  ASSERT_TRUE(t);
  for (const std::uint32_t top : {0x803Eu, 0x7FFFu}) {
    set_memory(*t, 0x8000, top, 0);
    const auto laid = gpuumd::read_memory_layout(*t, kVram);
    ASSERT_FALSE(laid);
    EXPECT_EQ(laid.error().code, base::Errc::kDeviceError);
    EXPECT_NE(laid.error().step.find("FB_LOCATION"), std::string::npos);
  }
}

TEST_F(TopologyTest, HubsThatDisagreeAreADeviceError) {
  auto t = make();
  ASSERT_TRUE(t);
  set_memory(*t, 0x8000, 0x803F, 0x1100);
  io_.values[t->xccs[1].hub.registers.dword<FB_LOCATION_BASE_LO32>()] = 0x7000;
  auto laid = gpuumd::read_memory_layout(*t, kVram);
  ASSERT_FALSE(laid);
  EXPECT_NE(laid.error().step.find("GFXHUB 1"), std::string::npos);
  set_memory(*t, 0x8000, 0x803F, 0x1100);
  io_.values[t->mmhubs[1].registers.dword<FB_OFFSET>()] = 0x1200;
  laid = gpuumd::read_memory_layout(*t, kVram);
  ASSERT_FALSE(laid);
  EXPECT_NE(laid.error().step.find("MMHUB 1"), std::string::npos);
  set_memory(*t, 0x8000, 0x803F, 0x1100);
  io_.values[t->mmhubs[1].registers.dword<FB_LOCATION_TOP_LO32>()] = 0x807F;
  laid = gpuumd::read_memory_layout(*t, kVram);
  ASSERT_FALSE(laid);
  EXPECT_NE(laid.error().step.find("MMHUB 1"), std::string::npos);
}

}  // namespace
