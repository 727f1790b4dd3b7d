#include "daemon/gpu/memory/hub_setup.h"

#include <gtest/gtest.h>

#include "tests/daemon_memory/hub_fixture.h"
#include "tests/daemon_memory/memory_fixture.h"

namespace {

using namespace gpuumd;

class HubSetupTest : public ::testing::Test {
 protected:
  HubSetup setup{.vram = fake::kVramMap,
                 .gart_root = directory_entry(0x1'0010'0000, false),
                 .gart_first = base::McAddress(0),
                 .gart_bytes = 512 * base::kMiB,
                 .default_page = base::VramOffset(0x4000),
                 .retry = true};
  std::uint32_t value(const VmHub& hub, std::uint32_t l2_or_vm_offset) {
    return f.io.values[offset(hub, l2_or_vm_offset)];
  }
  // Dword of an offset of the MMHUB table of docs/hardware/vmhub.md.
  std::uint32_t offset(const VmHub& hub, std::uint32_t at) {
    const std::uint32_t base = &hub == &f.hubs[0] ? 0x10000 : 0x30000;
    if (hub.kind == HubKind::kMmhub) return base + at;
    return base + at + (at < 0x100 ? 0x15A0 : 0x1524);
  }
  fake::Hubs f;
};

TEST_F(HubSetupTest, BothKindsEndWithTheSameMapOfVmidZero) {
  for (const VmHub* hub : {&f.hubs[0], &f.hubs[2]}) {
    bring_up_hub(*hub, setup);
    EXPECT_EQ(value(*hub, 0x17b), 0x0010'0005u);  // root: physical, V and C
    EXPECT_EQ(value(*hub, 0x17c), 0x1u);
    EXPECT_EQ(value(*hub, 0x19b), 0u);
    EXPECT_EQ(value(*hub, 0x1bb), 0x1FFFFu);
    EXPECT_EQ(value(*hub, 0x10a), 0x80'0000'0000u >> 18);
    EXPECT_EQ(value(*hub, 0x10c), (0x80'0000'0000u + 64 * base::kMiB - 1) >> 18);
    EXPECT_GT(value(*hub, 0x106), value(*hub, 0x104));  // AGP closed
    EXPECT_EQ(value(*hub, 0x110) & 0x1FF, 0x1u);        // flat, no retry
    EXPECT_EQ(value(*hub, 0x035), 0x1'0000'4000u >> 12);
    EXPECT_EQ(value(*hub, 0x000), 0x1'0000'4000u >> 12);
    EXPECT_EQ(value(*hub, 0x02e) >> 18 & 3, 3u);
    EXPECT_EQ(value(*hub, 0x038), 0xFFFF'FFFFu);  // identity aperture closed
    EXPECT_EQ(value(*hub, 0x039), 0x1FFFu);
    EXPECT_EQ(value(*hub, 0x03a), 0u);
    EXPECT_EQ(value(*hub, 0x179), 0xFFFF'FFFFu);  // engine 17: whole space
    EXPECT_EQ(value(*hub, 0x17a), 0x3FFFu);
    EXPECT_EQ(value(*hub, 0x02c) & 0x3FFC, 0x3FFCu);
  }
}

TEST_F(HubSetupTest, ClientContextsHaveFiveLevelsRetryAndNoRootYet) {
  bring_up_hub(f.hubs[2], setup);
  for (unsigned n = 1; n < 16; ++n) {
    const std::uint32_t control = value(f.hubs[2], 0x110 + n);
    EXPECT_EQ(control & 0xFF, 0x9u) << n;  // enabled, depth 4, block 0
    EXPECT_EQ(control >> 8 & 1, 1u) << n;
    EXPECT_EQ(control & 0x155400, 0x155400u) << n;  // interrupts
    EXPECT_EQ(value(f.hubs[2], 0x17b + 2 * n), 0u) << n;
    EXPECT_EQ(value(f.hubs[2], 0x1bb + 2 * n), 0xFFFF'FFFFu) << n;
    EXPECT_EQ(value(f.hubs[2], 0x1bc + 2 * n), 0x1FFFu) << n;
  }
}

// D46: what a peer asks for and may not have is refused, not answered with the default page.
TEST_F(HubSetupTest, D46_NpaContextNeitherRetriesNorUsesTheDefaultPage) {
  bring_up_hub(f.hubs[0], setup);
  EXPECT_EQ(value(f.hubs[0], 0x11f) >> 8 & 1, 0u);
  EXPECT_EQ(value(f.hubs[0], 0x11f) & 0x2AA800, 0u);
  EXPECT_NE(value(f.hubs[0], 0x11e) & 0x2AA800, 0u);
}

TEST_F(HubSetupTest, RootIsWrittenLowHalfFirst) {
  set_root(f.hubs[2], base::Vmid(7), Pde(0x0000'0001'2345'6005));
  const auto writes = f.io.writes();
  ASSERT_EQ(writes.size(), 2u);
  EXPECT_EQ(writes[0].dword, offset(f.hubs[2], 0x17b + 14));
  EXPECT_EQ(writes[0].value, 0x2345'6005u);
  EXPECT_EQ(writes[1].dword, offset(f.hubs[2], 0x17c + 14));
  EXPECT_EQ(writes[1].value, 1u);
  set_fault_mode(f.hubs[2], base::Vmid(7), true);
  EXPECT_EQ(value(f.hubs[2], 0x117), 0xAAA100u);  // retry; default page for all but RANGE
  set_fault_mode(f.hubs[2], base::Vmid(7), false);
  EXPECT_EQ(value(f.hubs[2], 0x117), 0u);
}

TEST_F(HubSetupTest, D8_VramMapComesFromTheDevice) {
  f.io.values[offset(f.hubs[0], 0x100)] = 0x8000;
  f.io.values[offset(f.hubs[0], 0x102)] = 0x8003;  // 64 MiB, inclusive
  f.io.values[offset(f.hubs[0], 0x2ec)] = 0x100;
  const auto map = read_vram_map(f.hubs[0], 64 * base::kMiB, 16 * base::kMiB);
  ASSERT_TRUE(map);
  EXPECT_EQ(map->mc(base::VramOffset(0x1000)).value(), 0x80'0000'1000u);
  EXPECT_EQ(map->physical(base::VramOffset(0x1000)).value(), 0x1'0000'1000u);
  EXPECT_EQ(read_vram_map(f.hubs[0], 65 * base::kMiB, 0).error().code, base::Errc::kDeviceError);
  f.io.lose();
  EXPECT_EQ(read_vram_map(f.hubs[0], 64 * base::kMiB, 0).error().code, base::Errc::kDeviceLost);
}

}  // namespace
