// Losing and letting go of a vfio-user device, and its interrupt pin.
#include <sys/eventfd.h>
#include <unistd.h>

#include <thread>

#include "rig.h"

namespace vfio_test {
namespace {

namespace wire = vfio::wire;

using Release = Rig;

TEST_F(Release, ALostDeviceSaysWhy) {
  connect();
  EXPECT_EQ(device_->lost_why(), "");
  server().hang_up();
  EXPECT_EQ(device_->read_config(0, 4).error().code, Errc::kDisconnected);
  const std::string why = device_->lost_why();
  EXPECT_NE(why.find("disconnected"), std::string::npos) << why;
  device_->release();
  EXPECT_EQ(device_->lost_why(), why) << "the first reason stays";
}

TEST_F(Release, LeavesTheServerNothingAndTheAddressesAllOnes) {
  connect();
  open_bar(BarIndex::k0);
  const auto memory = base::make_memfd("memory", 4096).value();
  ASSERT_TRUE(device_->map_dma(memory.get(), 0, 4096, Iova(0), Rights::kRead));
  const auto vectors = device_->arm_msix(2).value();
  bar_->write32(0, 0x1234);
  std::byte* const registers = bar_->mapped()[0].data;

  device_->release();
  EXPECT_TRUE(server().dma_maps.empty());
  EXPECT_TRUE(server().vectors.empty());
  EXPECT_EQ(device_->event_fd(), -1);
  EXPECT_EQ(device_->lost_why(), "let go of: device lost");
  EXPECT_EQ(bar_->mapped()[0].data, registers);
  EXPECT_EQ(registers[0], std::byte{0xff});
  EXPECT_EQ(registers[kBar0Size - 1], std::byte{0xff});
  registers[0] = std::byte{1};
  bar_->write32(0, 1);
  bar_->ring_doorbell32(0, 1);
  EXPECT_EQ(bar_->read32(0), 0xffffffffu);
  EXPECT_EQ(*server().bar0_memory.at<std::uint32_t>(0), 0x1234u);
  expect_lost();
  device_->release();
}

TEST_F(Release, ABarThatIsGoneIsNotTouched) {
  connect();
  open_bar(BarIndex::k0);
  bar_.reset();
  open_bar(BarIndex::k2);
  device_->release();
  EXPECT_EQ(bar_->mapped()[0].data[0], std::byte{0xff});
}

TEST_F(Release, ASilentServerDoesNotHoldItUp) {
  connect(hasty());
  open_bar(BarIndex::k0);
  const auto memory = base::make_memfd("memory", 4096).value();
  ASSERT_TRUE(device_->map_dma(memory.get(), 0, 4096, Iova(0), Rights::kRead));
  server().script(Command::kDmaUnmap, [](ScriptedServer&, const Packet&, Packet&) {});
  device_->release();
  expect_lost();
  EXPECT_NE(device_->lost_why().find("DMA_UNMAP"), std::string::npos) << device_->lost_why();
}

// Registers a pin with the interrupts that the server has already.
void give_pin(ScriptedServer& server) {
  server.script(Command::kDeviceGetIrqInfo,
                [](ScriptedServer& s, const Packet& request, Packet& reply) {
                  const auto index = request.as<wire::IrqInfo>().index;
                  reply.body = bytes_of(wire::IrqInfo{16, wire::kIrqEventfd, index, 1});
                  s.send(reply);
                });
}

TEST_F(Release, IntxRingsAndIsUnmasked) {
  give_pin(server());
  connect();
  EXPECT_EQ(device_->unmask_intx().error().code, Errc::kInvalidArgument);
  const auto pin = device_->arm_intx();
  ASSERT_TRUE(pin) << pin.error().message();
  auto set = server().last(Command::kDeviceSetIrqs).as<wire::IrqSet>();
  EXPECT_EQ(set.index, 0u);
  EXPECT_EQ(set.flags, 4u | 32u);
  EXPECT_EQ(set.count, 1u);
  const std::uint64_t one = 1;
  std::uint64_t count = 0;
  ASSERT_EQ(::write(server().vectors.at(0).get(), &one, 8), 8);
  EXPECT_EQ(::read(pin->get(), &count, 8), 8);

  ASSERT_TRUE(device_->unmask_intx());
  set = server().last(Command::kDeviceSetIrqs).as<wire::IrqSet>();
  EXPECT_EQ(set.index, 0u);
  EXPECT_EQ(set.flags, 1u | 16u);
  EXPECT_EQ(set.count, 1u);
  EXPECT_EQ(device_->arm_msix(1).error().code, Errc::kBusy);

  ASSERT_TRUE(device_->disarm_msix());
  EXPECT_TRUE(server().vectors.empty());
  EXPECT_TRUE(device_->arm_msix(1));
  EXPECT_EQ(device_->arm_intx().error().code, Errc::kBusy);
}

TEST_F(Release, IntxWithoutAPinIsNotSupported) {
  connect();
  EXPECT_EQ(device_->arm_intx().error().code, Errc::kUnsupported);
  EXPECT_FALSE(device_->lost());
}

}  // namespace
}  // namespace vfio_test
