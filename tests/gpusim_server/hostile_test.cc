// Clients that break the protocol: the session may end, the server never does.
#include <fcntl.h>

#include <random>

#include "base/shared_memory.h"
#include "server_fixture.h"

namespace gpusim::testing {
namespace {

class Hostile : public ServerTest {
 protected:
  void expect_alive() {
    RawClient client = connect();
    EXPECT_FALSE(client.negotiate().failed());
    EXPECT_FALSE(client.call(wire::kDeviceGetInfo, wire::DeviceInfo{}).failed());
    client.close();
    turns(1);
    EXPECT_FALSE(server.connected());
  }
  static unsigned open_descriptors() {
    unsigned count = 0;
    for (int fd = 0; fd < 1024; ++fd) count += ::fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    return count;
  }
};

TEST_F(Hostile, SizesThatNoMessageHas) {
  for (const std::uint32_t size : {0u, 15u, wire::kMaxMessage + 1, ~0u}) {
    RawClient client = connect();
    client.negotiate();
    const wire::Header header{1, wire::kDeviceReset, size, 0, 0};
    client.send_bytes(base::as_bytes(header));
    EXPECT_TRUE(client.ended()) << size;
    expect_alive();
  }
}

TEST_F(Hostile, TruncatedBodies) {
  RawClient client = connect();
  client.negotiate();
  for (std::uint16_t command = 2; command <= 13; ++command) {
    if (command == wire::kDeviceReset) continue;
    for (const std::size_t size : {0, 1, 7, 15}) {
      const Received reply = client.call(command, std::vector<std::byte>(size));
      EXPECT_NE(reply.error(), 0) << command << " with " << size;
    }
  }
  EXPECT_TRUE(server.connected());
}

TEST_F(Hostile, EndsInTheMiddleOfAMessage) {
  for (const std::size_t sent : {1, 15, 16, 20}) {
    RawClient client = connect();
    client.negotiate();
    const wire::Header header{1, wire::kDeviceGetInfo, 32, 0, 0};
    const auto message = join(base::as_bytes(header), std::vector<std::byte>(16));
    client.send_bytes(std::span(message).first(sent));
    turns(3);
    client.close();
    turns(1);
    EXPECT_FALSE(server.connected());
  }
  expect_alive();
}

TEST_F(Hostile, NeitherCommandNorReply) {
  RawClient client = connect();
  client.negotiate();
  client.send(wire::kDeviceReset, {}, {}, 5);
  EXPECT_TRUE(client.ended());
  expect_alive();
}

TEST_F(Hostile, RepliesThatNobodyAskedFor) {
  RawClient client = connect();
  client.negotiate();
  for (int i = 0; i < 100; ++i) client.send(wire::kDmaRead, pattern(24), {}, wire::kReply);
  EXPECT_FALSE(client.call(wire::kDeviceGetInfo, wire::DeviceInfo{}).failed());
}

TEST_F(Hostile, DescriptorsThatNobodyAskedForAreClosed) {
  RawClient client = connect();
  client.negotiate();
  const auto memory = base::make_memfd("client", 4096).value();
  const std::vector<int> fds(wire::kMaxFds, memory.get());
  const unsigned before = open_descriptors();
  for (int i = 0; i < 20; ++i) {
    const wire::DeviceInfo info{};
    client.call(wire::kDeviceGetInfo, base::as_bytes(info), fds);
  }
  EXPECT_EQ(open_descriptors(), before);
  // More than a message may carry.
  const std::vector<int> many(wire::kMaxFds + 8, memory.get());
  client.send(wire::kDeviceGetInfo, pattern(16), many);
  EXPECT_TRUE(client.ended());
  client.close();
  turns(1);
  EXPECT_LE(open_descriptors(), before);
  expect_alive();
}

TEST_F(Hostile, DeeplyNestedJson) {
  RawClient client = connect();
  EXPECT_NE(client.negotiate(std::string(500'000, '[')).error(), 0);
  client.close();
  turns(1);
  expect_alive();
}

// Well-framed messages of random content, and now and then random bytes.
TEST_F(Hostile, ThousandsOfRandomMessages) {
  std::mt19937_64 random(20260);
  const auto memory = base::make_memfd("client", 0x10000).value();
  const std::vector<int> fds(4, memory.get());
  RawClient client = connect_ready();
  for (int i = 0; i < 6000; ++i) {
    if (!server.connected()) client = connect_ready();
    std::vector<std::byte> body(random() % 64);
    for (std::size_t at = 0; at + 4 <= body.size(); at += 4) {
      // Small and extreme words find more than uniform ones.
      const std::uint64_t kind = random() % 4;
      const std::uint32_t word = kind == 0   ? random() % 16
                                 : kind == 1 ? random() % 64 * 0x1000
                                 : kind == 2 ? ~0u - random() % 4
                                             : static_cast<std::uint32_t>(random());
      base::store(std::span(body), at, word);
    }
    const auto with = std::span(fds).first(random() % 5);
    if (random() % 200 == 0)
      client.send_bytes(pattern(1 + random() % 100, static_cast<unsigned>(i)), with);
    else
      client.send(static_cast<std::uint16_t>(1 + random() % 14), body, with,
                  random() % 8 == 0
                      ? static_cast<std::uint32_t>(random()) & ~(random() % 16 ? 0xEu : 0u)
                      : 0);
    turns(1);
    if (random() % 4 == 0) {
      // Drain, so that output does not stop the server from reading.
      std::byte bytes[65536];
      while (::recv(client.fd(), bytes, sizeof bytes, MSG_DONTWAIT) > 0) turns(1);
    }
  }
  client.close();
  turns(2);
  expect_alive();
  EXPECT_GT(server.counters().messages, 3000u);
}

}  // namespace
}  // namespace gpusim::testing
