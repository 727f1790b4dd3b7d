// The daemon's vfio-user client against this server: two readings of one protocol.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include <chrono>
#include <thread>

#include "base/shared_memory.h"
#include "fake_gpu_device.h"
#include "tools/gpusim/host/embedded.h"
#include "tools/gpusim/host/steady_clock.h"
#include "vfio/user/user_device.h"

namespace gpusim::testing {
namespace {

struct FakePod {
  FakeGpuDevice* gpu = nullptr;
  PodFactory factory() {
    return [this](ScenarioHooks&, AccessLog&, const ModelClock&) -> base::Result<PodParts> {
      PodParts parts;
      auto made = std::make_unique<FakeGpuDevice>();
      gpu = made.get();
      parts.gpus.push_back(std::move(made));
      return parts;
    };
  }
};

constexpr std::uint32_t kCommand = 4;
constexpr std::uint32_t kMemoryAndMaster = 6;

// What any host offers, asked through the client's interface.
void exercise(vfio::PciDevice& device, FakeGpuDevice& gpu, const std::function<void()>& turn) {
  EXPECT_EQ(device.identity().vendor, 0x1002);
  EXPECT_EQ(device.identity().device, 0x75F0);
  EXPECT_EQ(device.identity().class_code, 0x120000u);
  ASSERT_TRUE(device.write_config(kCommand, 2, kMemoryAndMaster));

  auto registers = device.open_bar(vfio::BarIndex::k5).value();
  EXPECT_EQ(registers->size(), FakeGpuDevice::kRegisters);
  registers->write32(0x40, 17);
  EXPECT_EQ(registers->read32(0x40), 17u);
  ASSERT_EQ(registers->mapped().size(), 1u);
  EXPECT_EQ(registers->mapped()[0].offset, FakeGpuDevice::kFlushPage);

  auto vram = device.open_bar(vfio::BarIndex::k0).value();
  vram->write64(0x1000, 0x1122334455667788);
  EXPECT_EQ(vram->read64(0x1000), 0x1122334455667788u);
  EXPECT_FALSE(device.open_bar(vfio::BarIndex::k1));

  auto doorbells = device.open_bar(vfio::BarIndex::k2).value();
  const unsigned before = gpu.doorbells_seen;
  doorbells->ring_doorbell64(0x40, before + 1);
  for (int i = 0; i < 10'000 && gpu.doorbells_seen == before; ++i) {
    turn();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_EQ(gpu.doorbells_seen, before + 1);

  auto memory = base::make_memfd("client", 0x4000).value();
  ASSERT_TRUE(
      device.map_dma(memory.get(), 0x1000, 0x2000, base::Iova(0x100000), vfio::Rights::kReadWrite));
  EXPECT_EQ(device.map_dma(memory.get(), 0, 0x1000, base::Iova(0x101000), vfio::Rights::kReadWrite)
                .error()
                .code,
            base::Errc::kExists);
  auto vectors = device.arm_msix(9).value();
  ASSERT_EQ(vectors.size(), 9u);
  ASSERT_TRUE(device.unmap_dma(base::Iova(0x100000), 0x2000));
  ASSERT_TRUE(device.disarm_msix());
  ASSERT_TRUE(device.reset());
  EXPECT_EQ(registers->read32(0x40), 0u);
  EXPECT_FALSE(device.lost());
}

TEST(VfioClient, OverAThread) {
  FakePod pod;
  auto host = ThreadHost::start(pod.factory()).value();
  auto device = vfio::connect_vfio_user(host->connect(0).value(), "sim:0").value();
  exercise(*device, *pod.gpu, [] {});
}

TEST(VfioClient, InLine) {
  FakePod pod;
  const SteadyClock clock;
  auto host = InlineHost::create(pod.factory(), clock).value();
  vfio::UserOptions options;
  options.pump = [&] { host->pump(); };
  auto device = vfio::connect_vfio_user(host->connect(0).value(), "sim:0", options).value();
  exercise(*device, *pod.gpu, [&] { host->step(); });
}

TEST(VfioClient, WithoutWakeEveryDoorbellIsAMessage) {
  FakePod pod;
  const SteadyClock clock;
  auto host = InlineHost::create(pod.factory(), clock).value();
  vfio::UserOptions options;
  options.pump = [&] { host->pump(); };
  options.offer_wake = false;
  auto device = vfio::connect_vfio_user(host->connect(0).value(), "sim:0", options).value();
  auto doorbells = device->open_bar(vfio::BarIndex::k2).value();
  EXPECT_TRUE(doorbells->mapped().empty());
  doorbells->ring_doorbell64(0x40, 5);
  doorbells->ring_doorbell32(0x48, 6);
  host->pump();
  EXPECT_EQ(pod.gpu->doorbells, (std::vector<FakeGpuDevice::Doorbell>{{0x40, 5, 8}, {0x48, 6, 4}}));
}

// The bus keeps the writes of one requester in order: trapped ones (messages) and mapped ones
// (found by looking), whichever comes first.
TEST(VfioClient, TrappedAndMappedWritesTakeEffectInTheirOrder) {
  FakePod pod;
  const SteadyClock clock;
  auto host = InlineHost::create(pod.factory(), clock).value();
  vfio::UserOptions options;
  options.pump = [&] { host->pump(); };
  auto device = vfio::connect_vfio_user(host->connect(0).value(), "sim:0", options).value();
  auto doorbells = device->open_bar(vfio::BarIndex::k2).value();
  auto registers = device->open_bar(vfio::BarIndex::k5).value();
  pod.gpu->calls.clear();
  doorbells->ring_doorbell64(0x40, 1);
  registers->write32(0x10, 1);
  registers->write32(0x20, 1);
  doorbells->ring_doorbell64(0x48, 1);
  registers->write32(0x30, 1);
  host->pump();
  EXPECT_EQ(pod.gpu->calls, (std::vector<std::string>{"doorbell 64", "write 16", "write 32",
                                                      "doorbell 72", "write 48"}));
}

TEST(VfioClient, DmaAndInterruptsInLine) {
  FakePod pod;
  const SteadyClock clock;
  std::unique_ptr<vfio::UserDevice> device;
  auto host = InlineHost::create(pod.factory(), clock, [&] { device->handle_events(); }).value();
  vfio::UserOptions options;
  options.pump = [&] { host->pump(); };
  device = vfio::connect_vfio_user(host->connect(0).value(), "sim:0", options).value();
  ASSERT_TRUE(device->write_config(kCommand, 2, kMemoryAndMaster));
  auto memory = base::make_memfd("client", 0x1000).value();
  ASSERT_TRUE(
      device->map_dma(memory.get(), 0, 0x1000, base::Iova(0x100000), vfio::Rights::kReadWrite));
  auto vectors = device->arm_msix(1).value();
  bool mapped = false;
  bool refused = false;
  pod.gpu->on_step([&](HostBus* bus) {
    std::vector<std::byte> bytes(8, std::byte{1});
    mapped = bus->write(base::Iova(0x100008), bytes);
    refused = !bus->read(base::Iova(0x200000), bytes);  // asked for by message
    bus->raise_interrupt(0);
  });
  host->step();
  EXPECT_TRUE(mapped);
  EXPECT_TRUE(refused);
  EXPECT_EQ(device->counters().dma_refused, 1u);
  pollfd entry{vectors[0].get(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 0), 1);
  std::byte byte{};
  ASSERT_EQ(::pread(memory.get(), &byte, 1, 8), 1);
  EXPECT_EQ(byte, std::byte{1});
  device.reset();
}

}  // namespace
}  // namespace gpusim::testing
