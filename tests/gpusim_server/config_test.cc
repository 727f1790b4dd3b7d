// Configuration space.
#include "server_fixture.h"

namespace gpusim::testing {
namespace {

class Config : public ServerTest {
 protected:
  void SetUp() override { client.negotiate(); }
  std::uint32_t read(std::uint64_t at) { return client.read32(wire::kConfigRegion, at); }
  void write(std::uint64_t at, std::uint32_t value) {
    EXPECT_EQ(client.write32(wire::kConfigRegion, at, value), 0);
  }
  RawClient client = connect();
};

TEST_F(Config, D55_Identity) {
  EXPECT_EQ(read(0), 0x75F01002u);
  EXPECT_EQ(read(8), 0x12000000u);
  EXPECT_EQ(read(0x2C), 0x00011002u);
  EXPECT_EQ(read(0x0C) >> 16 & 0x7F, 0u);  // header type 0
}

TEST_F(Config, BarsAreSizedByAllOnes) {
  for (const std::uint64_t at : {0x10, 0x14, 0x18, 0x1C, 0x20, 0x24, 0x30}) write(at, ~0u);
  EXPECT_EQ(read(0x10), (~0u - FakeGpuDevice::kVram + 1) | 0xC);  // 64-bit, prefetchable
  EXPECT_EQ(read(0x14), ~0u);
  EXPECT_EQ(read(0x18), (~0u - FakeGpuDevice::kDoorbells + 1) | 0x4);
  EXPECT_EQ(read(0x1C), ~0u);
  EXPECT_EQ(read(0x20), 0u);
  EXPECT_EQ(read(0x24), ~0u - FakeGpuDevice::kRegisters + 1);
  EXPECT_EQ(read(0x30), 0u);
  write(0x10, 0xABCDEF12);
  EXPECT_EQ(read(0x10), 0xAB80000Cu);
}

TEST_F(Config, CapabilitiesFormAChain) {
  EXPECT_NE(read(4) >> 16 & 0x10, 0u);
  const std::uint32_t pcie = read(0x34) & 0xFF;
  EXPECT_EQ(read(pcie) & 0xFF, 0x10u);
  EXPECT_NE(read(pcie + 4) & 1u << 28, 0u);  // function-level reset
  const std::uint32_t msix = read(pcie) >> 8 & 0xFF;
  EXPECT_EQ(read(msix) & 0xFF, 0x11u);
  EXPECT_EQ(read(msix) >> 8 & 0xFF, 0u);
  EXPECT_EQ(read(msix) >> 16 & 0x7FF, 8u);  // nine vectors
  EXPECT_EQ(read(msix + 4), FakeGpuDevice::kTable | 5);
  EXPECT_EQ(read(msix + 8), FakeGpuDevice::kPba | 5);
  EXPECT_EQ(read(0x100), 0u);  // no extended capability
}

TEST_F(Config, EverythingElseIsReadOnly) {
  std::vector<std::uint32_t> before;
  for (std::uint32_t at = 0; at < 4096; at += 4) before.push_back(read(at));
  const auto writable = [](std::uint32_t at) {
    return (at >= 0x10 && at < 0x28) || at == 0x04 || at == 0x3C || at == 0x48 || at == 0x50 ||
           at == 0x68 || at == 0xA0;
  };
  for (std::uint32_t at = 0; at < 4096; at += 4) {
    if (writable(at)) continue;
    write(at, ~0u);
    EXPECT_EQ(read(at), before[at / 4]) << at;
    write(at, 0);
    EXPECT_EQ(read(at), before[at / 4]) << at;
  }
}

TEST_F(Config, BytesAndWords) {
  const std::byte master{6};
  EXPECT_EQ(client.write(wire::kConfigRegion, 4, {&master, 1}).error(), 0);
  EXPECT_EQ(client.read(wire::kConfigRegion, 4, 1).as<std::uint8_t>(16), 6);
  EXPECT_EQ(client.read(wire::kConfigRegion, 2, 2).as<std::uint16_t>(16), 0x75F0);
  EXPECT_EQ(client.read(wire::kConfigRegion, 4094, 4).error(), EINVAL);
}

TEST_F(Config, FunctionLevelReset) {
  write(4, 6);
  client.write32(5, 0x40, 1);
  client.write32(5, FakeGpuDevice::kTable + 12, 0);
  write(0x48, read(0x48) | 1u << 15);
  EXPECT_EQ(gpu.resets, 1u);
  EXPECT_EQ(read(0x48) & 1u << 15, 0u);
  EXPECT_EQ(client.read32(5, 0x40), 0u);
  EXPECT_EQ(client.read32(5, FakeGpuDevice::kTable + 12), 1u);  // masked again
  EXPECT_EQ(read(4) & 0xFFFF, 6u);                              // kept, as VFIO restores it
}

}  // namespace
}  // namespace gpusim::testing
