// Region information and trapped accesses.
#include <sys/mman.h>
#include <algorithm>

#include "base/shared_memory.h"
#include "server_fixture.h"

namespace gpusim::testing {
namespace {

class Regions : public ServerTest {
 protected:
  static Received info(RawClient& client, std::uint32_t index, std::uint32_t argsz = 256) {
    return client.call(wire::kGetRegionInfo, wire::RegionInfo{argsz, 0, index, 0, 0, 0});
  }
};

TEST_F(Regions, NineWithTheSizesOfTheBars) {
  RawClient client = connect();
  client.negotiate();
  const std::uint64_t sizes[9] = {FakeGpuDevice::kVram,
                                  0,
                                  FakeGpuDevice::kDoorbells,
                                  0,
                                  0,
                                  FakeGpuDevice::kRegisters,
                                  0,
                                  4096,
                                  0};
  for (std::uint32_t i = 0; i < 9; ++i) {
    const Received reply = info(client, i);
    EXPECT_EQ(reply.as<wire::RegionInfo>().size, sizes[i]) << i;
    EXPECT_EQ(reply.as<wire::RegionInfo>().index, i);
  }
  EXPECT_EQ(info(client, 9).error(), EINVAL);
  EXPECT_EQ(info(client, 0, 31).error(), EINVAL);
}

TEST_F(Regions, VramIsMappedWholeThroughASealedDescriptor) {
  RawClient client = connect();
  client.negotiate();
  const Received reply = info(client, kVramRegion);
  EXPECT_EQ(reply.as<wire::RegionInfo>().flags,
            wire::kRegionReadable | wire::kRegionWritable | wire::kRegionMmap);
  ASSERT_EQ(reply.fds.size(), 1u);
  EXPECT_EQ(base::sealed_size(reply.fds[0].get()).value(), FakeGpuDevice::kVram);
  gpu.vram()[1000] = std::byte{9};
  const auto map =
      base::Mapping::map(reply.fds[0].get(), 0, FakeGpuDevice::kVram, PROT_READ).value();
  EXPECT_EQ(map.data()[1000], std::byte{9});
}

TEST_F(Regions, RegistersOfferTheWatchedPageOnly) {
  RawClient client = connect();
  client.negotiate();
  const Received reply = info(client, kRegisterRegion);
  const auto header = reply.as<wire::RegionInfo>();
  ASSERT_EQ(header.flags & (wire::kRegionMmap | wire::kRegionCaps),
            wire::kRegionMmap | wire::kRegionCaps);
  const auto sparse = reply.as<wire::SparseMmap>(header.cap_offset);
  EXPECT_EQ(sparse.id, 1);
  ASSERT_EQ(sparse.areas, 1u);
  const auto area = reply.as<wire::SparseArea>(header.cap_offset + sizeof sparse);
  EXPECT_EQ(area.offset, FakeGpuDevice::kFlushPage);
  EXPECT_EQ(area.size, 4096u);
  EXPECT_EQ(reply.fds.size(), 1u);
}

TEST_F(Regions, TooLittleRoomTellsHowMuchIsNeeded) {
  RawClient client = connect();
  client.negotiate();
  const Received small = info(client, kRegisterRegion, sizeof(wire::RegionInfo));
  const auto header = small.as<wire::RegionInfo>();
  EXPECT_EQ(small.body.size(), sizeof(wire::RegionInfo));
  EXPECT_EQ(header.cap_offset, sizeof header);  // QEMU refuses 0 beside the flag
  EXPECT_TRUE(small.fds.empty());
  const Received full = info(client, kRegisterRegion, header.argsz);
  EXPECT_EQ(full.body.size(), header.argsz);
  EXPECT_NE(full.as<wire::RegionInfo>().cap_offset, 0u);
}

TEST_F(Regions, D62_DoorbellsAreMappedOnlyForAClientThatWakesUs) {
  {
    RawClient client = connect();
    client.negotiate(R"({"capabilities":{"gpuumd.wake":{"version":2}}})");
    const Received reply = info(client, kDoorbellRegion);
    EXPECT_EQ(reply.as<wire::RegionInfo>().flags, wire::kRegionReadable | wire::kRegionWritable);
    EXPECT_TRUE(reply.fds.empty());
  }
  RawClient client = connect();
  client.negotiate_with_wake();
  const Received reply = info(client, kDoorbellRegion);
  EXPECT_NE(reply.as<wire::RegionInfo>().flags & wire::kRegionMmap, 0u);
  EXPECT_EQ(reply.fds.size(), 1u);
}

TEST_F(Regions, D64_WidthsOfRegisterAccesses) {
  RawClient client = connect();
  client.negotiate();
  EXPECT_EQ(client.write32(kRegisterRegion, 0x300, 0x44332211), 0);
  EXPECT_EQ(client.write(kRegisterRegion, 0x308, pattern(8)).error(), 0);
  EXPECT_EQ(gpu.calls.end()[-2], "write 776");  // low half first
  EXPECT_EQ(gpu.calls.end()[-1], "write 780");
  EXPECT_EQ(client.read(kRegisterRegion, 0x302, 1).as<std::uint8_t>(16), 0x33);
  EXPECT_EQ(client.read(kRegisterRegion, 0x302, 2).as<std::uint16_t>(16), 0x4433);
  EXPECT_EQ(client.read(kRegisterRegion, 0x300, 8).as<std::uint64_t>(16), 0x44332211u);
  EXPECT_EQ(client.write(kRegisterRegion, 0x300, pattern(1)).error(), EINVAL);
  EXPECT_EQ(client.write(kRegisterRegion, 0x300, pattern(2)).error(), EINVAL);
  EXPECT_EQ(client.write(kRegisterRegion, 0x302, pattern(4)).error(), EINVAL);
  EXPECT_EQ(client.write(kRegisterRegion, 0x304, pattern(8)).error(), EINVAL);
  EXPECT_EQ(client.read(kRegisterRegion, 0x301, 2).error(), EINVAL);
  EXPECT_EQ(client.read(kRegisterRegion, 0x300, 12).error(), EINVAL);
}

TEST_F(Regions, D64_Doorbells) {
  RawClient client = connect();
  client.negotiate();
  const std::uint64_t value = 0x1122334455667788;
  EXPECT_EQ(client.write(kDoorbellRegion, 0x10, base::as_bytes(value)).error(), 0);
  EXPECT_EQ(client.write32(kDoorbellRegion, 0x1FFFFC, 3), 0);
  EXPECT_EQ(gpu.doorbells,
            (std::vector<FakeGpuDevice::Doorbell>{{0x10, value, 8}, {0x1FFFFC, 3, 4}}));
  EXPECT_EQ(client.read32(kDoorbellRegion, 0x10), 0u);
  EXPECT_EQ(client.write(kDoorbellRegion, 0x14, base::as_bytes(value)).error(), EINVAL);
  EXPECT_EQ(client.write(kDoorbellRegion, 0x10, pattern(2)).error(), EINVAL);
}

TEST_F(Regions, VramTakesAnyWidth) {
  RawClient client = connect();
  client.negotiate();
  const auto bytes = pattern(100'001);
  EXPECT_EQ(client.write(kVramRegion, 77, bytes).error(), 0);
  const Received back = client.read(kVramRegion, 77, 100'001);
  EXPECT_TRUE(std::ranges::equal(std::span(back.body).subspan(16), bytes));
}

TEST_F(Regions, AccessesOutsideAreRefused) {
  RawClient client = connect();
  client.negotiate();
  EXPECT_EQ(client.read(kVramRegion, FakeGpuDevice::kVram - 3, 4).error(), EINVAL);
  EXPECT_EQ(client.read(kVramRegion, ~0ull - 1, 4).error(), EINVAL);
  EXPECT_EQ(client.read(1, 0, 4).error(), EINVAL);
  EXPECT_EQ(client.read(9, 0, 4).error(), EINVAL);
  EXPECT_EQ(client.read(kVramRegion, 0, (1 << 20) + 1).error(), EINVAL);
  EXPECT_EQ(client.write(kRegisterRegion, FakeGpuDevice::kRegisters, pattern(4)).error(), EINVAL);
  // A write whose count and data disagree.
  const wire::RegionAccess lying{0, kVramRegion, 8};
  EXPECT_EQ(client.call(wire::kRegionWrite, join(base::as_bytes(lying), pattern(4))).error(),
            EINVAL);
}

TEST_F(Regions, MemorySpaceOffReadsOnesAndDropsWrites) {
  RawClient client = connect();
  client.negotiate();
  client.write32(kRegisterRegion, 0x10, 1);
  client.write32(wire::kConfigRegion, 4, 0);
  EXPECT_EQ(client.read32(kRegisterRegion, 0x10), ~0u);
  EXPECT_EQ(client.write32(kRegisterRegion, 0x10, 2), 0);
  EXPECT_EQ(client.write32(kDoorbellRegion, 0x10, 2), 0);
  EXPECT_TRUE(gpu.doorbells.empty());
  client.write32(wire::kConfigRegion, 4, 2);
  EXPECT_EQ(client.read32(kRegisterRegion, 0x10), 1u);
}

TEST_F(Regions, RemovedDeviceReadsOnesEverywhere) {
  RawClient client = connect_ready();
  gpu.set_gone(true);
  EXPECT_EQ(client.read32(wire::kConfigRegion, 0), ~0u);
  EXPECT_EQ(client.read32(kRegisterRegion, 0x10), ~0u);
  EXPECT_EQ(client.write32(wire::kConfigRegion, 4, 0), 0);
  gpu.set_gone(false);
  EXPECT_EQ(client.read32(wire::kConfigRegion, 4) & 0xFFFF, 6u);
}

TEST_F(Regions, NoRegionHasIoDescriptors) {
  RawClient client = connect();
  client.negotiate();
  const Received reply =
      client.call(wire::kGetRegionIoFds, wire::RegionIoFds{16, 0, kDoorbellRegion, 0});
  EXPECT_EQ(reply.as<wire::RegionIoFds>().count, 0u);
  EXPECT_TRUE(reply.fds.empty());
  EXPECT_EQ(client.call(wire::kGetRegionIoFds, wire::RegionIoFds{16, 0, 9, 0}).error(), EINVAL);
}

}  // namespace
}  // namespace gpusim::testing
