// Connection, handshake and information commands.
#include <nlohmann/json.hpp>

#include "server_fixture.h"

namespace gpusim::testing {
namespace {

using Protocol = ServerTest;

nlohmann::json capabilities(const Received& reply) {
  const auto* text = reinterpret_cast<const char*>(reply.body.data() + sizeof(wire::Version));
  EXPECT_EQ(reply.body.back(), std::byte{});
  return nlohmann::json::parse(text).at("capabilities");
}

TEST_F(Protocol, VersionAnswersTheClientsMinor) {
  for (const std::uint16_t minor : {std::uint16_t{0}, std::uint16_t{1}, std::uint16_t{7}}) {
    RawClient client = connect();
    const Received reply = client.call(wire::kVersion, version_body(0, minor, ""));
    EXPECT_FALSE(reply.failed());
    EXPECT_EQ(reply.as<wire::Version>().minor, minor);
    EXPECT_EQ(reply.as<wire::Version>().major, 0);
    EXPECT_EQ(capabilities(reply)["max_dma_maps"], 65535);
    EXPECT_TRUE(reply.fds.empty());
    client.close();
    turns(1);
  }
}

TEST_F(Protocol, VersionIsRefusedWhenItCannotBeServed) {
  for (const auto& body : {version_body(1, 0, ""), version_body(0, 0, "{"),
                           version_body(0, 0, "[1]"), version_body(0, 0, R"({"capabilities":3})"),
                           version_body(0, 0, R"({"capabilities":{"max_data_xfer_size":0}})"),
                           version_body(0, 0, R"({"capabilities":{"max_data_xfer_size":"big"}})"),
                           std::vector<std::byte>(3)}) {
    RawClient client = connect();
    EXPECT_NE(client.call(wire::kVersion, body).error(), 0);
    client.close();
    turns(1);
  }
}

TEST_F(Protocol, CommandBeforeVersionEndsTheSession) {
  RawClient client = connect();
  client.send(wire::kDeviceReset, {});
  EXPECT_TRUE(client.ended());
  EXPECT_EQ(gpu.resets, 0u);
  EXPECT_EQ(server.counters().broken_sessions, 1u);
}

TEST_F(Protocol, SecondVersionIsRefused) {
  RawClient client = connect();
  client.negotiate();
  EXPECT_EQ(client.call(wire::kVersion, version_body(0, 1, "")).error(), EINVAL);
}

TEST_F(Protocol, DeviceInfo) {
  RawClient client = connect();
  client.negotiate();
  const Received reply = client.call(wire::kDeviceGetInfo, wire::DeviceInfo{16, 0, 0, 0});
  const auto info = reply.as<wire::DeviceInfo>();
  EXPECT_EQ(info.flags, wire::kDeviceCanReset | wire::kDevicePci);
  EXPECT_EQ(info.num_regions, 9u);
  EXPECT_EQ(info.num_irqs, 5u);
}

TEST_F(Protocol, UnknownCommandIsRefusedAndTheSessionGoesOn) {
  RawClient client = connect();
  client.negotiate();
  EXPECT_EQ(client.call(99).error(), EOPNOTSUPP);
  EXPECT_EQ(client.call(wire::kDmaRead, wire::DmaAccess{0, 4}).error(), EOPNOTSUPP);
  EXPECT_FALSE(client.call(wire::kDeviceReset).failed());
  EXPECT_EQ(gpu.resets, 1u);
}

TEST_F(Protocol, NoReplyFlagGetsNoReply) {
  RawClient client = connect();
  client.negotiate();
  const wire::RegionAccess access{0x100, kRegisterRegion, 4};
  const std::uint32_t value = 77;
  client.send(wire::kRegionWrite, join(base::as_bytes(access), base::as_bytes(value)), {},
              wire::kCommand | wire::kNoReply);
  // One that fails gets none either.
  client.send(99, {}, {}, wire::kCommand | wire::kNoReply);
  EXPECT_EQ(client.read32(kRegisterRegion, 0x100), 77u);  // the next message is this one's reply
  EXPECT_EQ(gpu.registers[0x100], 77u);
}

TEST_F(Protocol, MessagesInPiecesAndManyAtOnce) {
  RawClient client = connect();
  client.negotiate();
  wire::Header header{7, wire::kDeviceGetInfo, 32, 0, 0};
  const auto one = join(base::as_bytes(header), base::as_bytes(wire::DeviceInfo{16, 0, 0, 0}));
  for (const std::byte& byte : one) {
    client.send_bytes({&byte, 1});
    turns(1);
  }
  EXPECT_EQ(client.receive()->header.id, 7);
  std::vector<std::byte> many;
  for (int i = 0; i < 200; ++i) many.insert(many.end(), one.begin(), one.end());
  client.send_bytes(many);
  for (int i = 0; i < 200; ++i) ASSERT_TRUE(client.receive());
}

TEST_F(Protocol, SecondClientIsClosedAtOnce) {
  RawClient first = connect();
  first.negotiate();
  RawClient second = connect();
  EXPECT_TRUE(second.ended());
  EXPECT_EQ(server.counters().turned_away, 1u);
  EXPECT_FALSE(first.call(wire::kDeviceGetInfo, wire::DeviceInfo{}).failed());
}

TEST_F(Protocol, D56_DisconnectKeepsTheDeviceAndDropsMappings) {
  {
    RawClient client = connect_ready();
    client.write32(kRegisterRegion, 0x200, 42);
    const auto memory = base::make_memfd("client", 4096).value();
    EXPECT_EQ(client.map(0x10000, 4096, memory.get()), 0);
    ASSERT_NE(gpu.bus()->direct(base::Iova(0x10000), 8, true), nullptr);
  }
  turns(1);
  EXPECT_EQ(gpu.bus(), nullptr);
  RawClient client = connect();
  client.negotiate();
  EXPECT_EQ(client.read32(kRegisterRegion, 0x200), 42u);
  // Bus mastering is still on, the mapping is gone.
  EXPECT_EQ(client.read32(wire::kConfigRegion, 4) & 0xFFFF, 6u);
  EXPECT_EQ(gpu.bus()->direct(base::Iova(0x10000), 8, true), nullptr);
  EXPECT_EQ(gpu.resets, 0u);
}

TEST_F(Protocol, PostedWritesOfAClientThatLeftAreServedBeforeTheNextClient) {
  {
    RawClient client = connect();
    client.negotiate();
    const wire::RegionAccess access{8, kDoorbellRegion, 8};
    const std::uint64_t value = 5;
    client.send(wire::kRegionWrite, join(base::as_bytes(access), base::as_bytes(value)), {},
                wire::kNoReply);
  }
  RawClient next = connect();  // no turn of the server in between
  EXPECT_FALSE(next.negotiate().failed());
  ASSERT_EQ(gpu.doorbells.size(), 1u);
  EXPECT_EQ(gpu.doorbells[0].value, 5u);
}

TEST_F(Protocol, ClientThatNeverReadsIsNotServedFurther) {
  RawClient client = connect();
  client.negotiate();
  const wire::RegionAccess access{0, kVramRegion, 1 << 20};
  for (int i = 0; i < 64; ++i) client.send(wire::kRegionRead, base::as_bytes(access));
  turns(100);
  EXPECT_LT(server.counters().messages, 10u);  // a socket holds less than a few replies
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(client.receive()) << i;
}

}  // namespace
}  // namespace gpusim::testing
