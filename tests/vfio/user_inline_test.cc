// A model in line: no thread of its own, stepped while the client waits.
#include <unistd.h>

#include <array>
#include <functional>
#include <memory>

#include "rig.h"

namespace vfio_test {
namespace {

namespace wire = vfio::wire;

TEST(InlineModel, IsPumpedWhileTheClientWaits) {
  ScriptedServer server(ScriptedServer::Host::kInline);
  auto options = patient();
  unsigned pumped = 0;
  options.pump = [&] {
    ++pumped;
    server.step();
  };
  auto device = vfio::connect_vfio_user(server.take_client_end(), "sim:inline", options);
  ASSERT_TRUE(device) << device.error().message();
  auto bar = (*device)->open_bar(BarIndex::k5);
  ASSERT_TRUE(bar);
  (*bar)->write32(0x10, 42);
  EXPECT_EQ((*bar)->read32(0x10), 42u);
  EXPECT_GT(pumped, 0u);

  // A model that asks for memory from inside its step is answered through handle_events().
  const auto memory = base::make_memfd("memory", 4096).value();
  const std::uint64_t value = 0x1234567890abcdef;
  ASSERT_EQ(::pwrite(memory.get(), &value, 8, 16), 8);
  ASSERT_TRUE((*device)->map_dma(memory.get(), 0, 4096, Iova(0x7000), Rights::kRead));
  server.while_asking = [&] { (*device)->handle_events(); };
  server.script(Command::kRegionRead, [&](ScriptedServer& s, const Packet&, Packet& reply) {
    const Packet answer = s.ask(Command::kDmaRead, bytes_of(wire::DmaAccess{0x7010, 8}));
    EXPECT_EQ(answer.as<std::uint64_t>(16), value);
    s.send(reply);
  });
  EXPECT_EQ((*bar)->read32(0x10), 42u);
  bar->reset();
  device->reset();
}

// More posted writes than a socket holds: the client pumps instead of blocking for ever.
TEST(InlineModel, IsPumpedWhenItsSocketIsFull) {
  ScriptedServer server(ScriptedServer::Host::kInline);
  auto options = patient();
  options.pump = [&] { server.step(); };
  auto device = vfio::connect_vfio_user(server.take_client_end(), "sim:inline", options);
  ASSERT_TRUE(device);
  auto bar = (*device)->open_bar(BarIndex::k5);
  ASSERT_TRUE(bar);
  for (std::uint32_t i = 0; i < 20000; ++i) (*bar)->write32((i % 1024) * 4, i);
  EXPECT_EQ((*bar)->read32(19999 % 1024 * 4), 19999u);
  EXPECT_EQ(server.count(Command::kRegionWrite), 20000u);
  bar->reset();
  device->reset();
}

// A model in line does nothing until it is pumped, so what a posted write finds in mapped memory is
// what was stored before it was waited for.
class PostedOrder : public testing::Test {
 protected:
  PostedOrder() {
    auto options = patient();
    options.pump = [this] { server.step(); };
    device = vfio::connect_vfio_user(server.take_client_end(), "sim:inline", options).value();
    doorbells = device->open_bar(BarIndex::k2).value();
    registers = device->open_bar(BarIndex::k5).value();
    server.script(Command::kRegionWrite, [this](ScriptedServer&, const Packet&, Packet&) {
      found = {*server.bar2_memory.at<std::uint64_t>(kDoorbellPage),
               *server.bar5_memory.at<std::uint64_t>(kMappedRegister)};
      *server.bar5_memory.at<std::uint32_t>(kMappedRegister + 8) = ++served;
    });
  }
  // Posts, stores by `store`, and expects the store to have come second.
  void expect_order(const char* what, const std::function<void()>& store) {
    registers->write32(0x40, ++posted);
    store();
    EXPECT_EQ(served, posted) << what << " overtook a posted write";
    EXPECT_EQ(found, (std::array<std::uint64_t, 2>{})) << what;
    *server.bar2_memory.at<std::uint64_t>(kDoorbellPage) = 0;
    *server.bar5_memory.at<std::uint64_t>(kMappedRegister) = 0;
  }

  ScriptedServer server{ScriptedServer::Host::kInline};
  std::unique_ptr<vfio::UserDevice> device;
  std::unique_ptr<vfio::Bar> doorbells, registers;
  std::array<std::uint64_t, 2> found{};
  std::uint32_t posted = 0, served = 0;
};

TEST_F(PostedOrder, MappedStoresFollowPostedWrites) {
  expect_order("ring_doorbell64", [&] { doorbells->ring_doorbell64(kDoorbellPage, 1); });
  expect_order("ring_doorbell32", [&] { doorbells->ring_doorbell32(kDoorbellPage, 1); });
  expect_order("write32", [&] { registers->write32(kMappedRegister, 1); });
  expect_order("write64", [&] { registers->write64(kMappedRegister, 1); });
  const std::uint64_t one = 1;
  expect_order("write",
               [&] { ASSERT_TRUE(registers->write(kMappedRegister, base::as_bytes(one))); });
}

TEST_F(PostedOrder, MappedLoadsFollowPostedWrites) {
  registers->write32(0x40, 1);
  EXPECT_EQ(registers->read32(kMappedRegister + 8), 1u);
  registers->write32(0x40, 2);
  std::uint32_t value = 0;
  ASSERT_TRUE(registers->read(kMappedRegister + 8, base::as_writable_bytes(value)));
  EXPECT_EQ(value, 2u);
}

TEST_F(PostedOrder, NothingIsAskedWhenNothingIsOpen) {
  registers->write32(0x40, 1);
  EXPECT_EQ(registers->read32(0x44), 0u);  // its reply comes after the posted write
  const auto reads = server.count(Command::kRegionRead);
  doorbells->ring_doorbell64(kDoorbellPage, 1);
  registers->write32(kMappedRegister, 1);
  EXPECT_EQ(server.count(Command::kRegionRead), reads);
  registers->write32(0x40, 2);
  doorbells->ring_doorbell64(kDoorbellPage, 2);
  doorbells->ring_doorbell64(kDoorbellPage, 3);
  EXPECT_EQ(server.count(Command::kRegionRead), reads + 1);
}

}  // namespace
}  // namespace vfio_test
