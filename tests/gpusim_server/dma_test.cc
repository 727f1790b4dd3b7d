// DMA mappings, and what an engine reaches through them.
#include <algorithm>
#include <cstring>

#include "base/shared_memory.h"
#include "server_fixture.h"

namespace gpusim::testing {
namespace {

class Dma : public ServerTest {
 protected:
  // Lets the device do `job` in its next step, while the client is `client`.
  void in_step(std::function<void(HostBus&)> job) {
    gpu.on_step([job](HostBus* bus) { job(*bus); });
    server.step();
  }
  static base::UniqueFd memory(std::uint64_t size) {
    return base::make_memfd("client", size).value();
  }
  static void fill(int fd, std::uint64_t at, std::span<const std::byte> bytes) {
    ASSERT_EQ(::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(at)),
              static_cast<ssize_t>(bytes.size()));
  }
  static std::vector<std::byte> content(int fd, std::uint64_t at, std::size_t size) {
    std::vector<std::byte> bytes(size);
    EXPECT_EQ(::pread(fd, bytes.data(), size, static_cast<off_t>(at)), static_cast<ssize_t>(size));
    return bytes;
  }
};

TEST_F(Dma, D58_MapRules) {
  RawClient client = connect_ready();
  const auto fd = memory(0x10000);
  EXPECT_EQ(client.map(0x100000, 0x4000, fd.get()), 0);
  EXPECT_EQ(client.map(0x100000, 0x4000, fd.get()), EEXIST);
  EXPECT_EQ(client.map(0xFF000, 0x2000), EEXIST);
  EXPECT_EQ(client.map(0x103000, 0x1000), EEXIST);
  EXPECT_EQ(client.map(0x0, 0x200000), EEXIST);
  EXPECT_EQ(client.map(0x104000, 0x1000), 0);
  EXPECT_EQ(client.map(0xFF000, 0x1000), 0);
  EXPECT_EQ(client.map(0x200000, 0), EINVAL);
  EXPECT_EQ(client.map(0x200800, 0x1000), EINVAL);
  EXPECT_EQ(client.map(0x200000, 0x1800), EINVAL);
  EXPECT_EQ(client.map(0x200000, 0x1000, fd.get(), 0x800), EINVAL);
  EXPECT_EQ(client.map(~0ull - 0xFFF, 0x2000), EINVAL);
  EXPECT_EQ(client.map(~0ull - 0xFFF, 0x1000), 0);                     // the last page of the space
  EXPECT_EQ(client.map(0x200000, 0x1000, fd.get(), 0x10000), EINVAL);  // past the file
  EXPECT_EQ(client.map(0x200000, 0x1000, fd.get(), ~0ull - 0xFFF), EINVAL);
  EXPECT_EQ(client.map(0x200000, 0x1000, fd.get(), 0, 0), EINVAL);
  EXPECT_EQ(client.map(0x200000, 0x1000, fd.get(), 0, 4), EINVAL);
}

TEST_F(Dma, D58_UnmapRules) {
  RawClient client = connect_ready();
  const auto fd = memory(0x10000);
  for (const std::uint64_t at : {0x100000, 0x101000, 0x104000})
    EXPECT_EQ(client.map(at, at == 0x104000 ? 0x2000 : 0x1000, fd.get()), 0);
  EXPECT_EQ(client.unmap(0x200000, 0x1000), 0);  // nothing there
  EXPECT_EQ(client.unmap(0x100000, 0x5000), EINVAL);
  EXPECT_EQ(client.unmap(0x105000, 0x1000), EINVAL);
  HostBus& bus = *gpu.bus();
  EXPECT_NE(bus.direct(base::Iova(0x100000), 1, false), nullptr);  // nothing was removed
  EXPECT_EQ(client.unmap(0xFF000, 0x4000), 0);                     // two whole ones
  EXPECT_EQ(bus.direct(base::Iova(0x100000), 1, false), nullptr);
  EXPECT_EQ(bus.direct(base::Iova(0x101000), 1, false), nullptr);
  EXPECT_NE(bus.direct(base::Iova(0x104000), 0x2000, false), nullptr);
  EXPECT_EQ(client.unmap(0x104000, 0), EINVAL);
  EXPECT_EQ(client.unmap(0x104800, 0x1000), EINVAL);
  EXPECT_EQ(client.unmap(0x2000, ~0ull - 0xFFF), EINVAL);
  EXPECT_EQ(client.unmap(0, 0, wire::kUnmapAll), 0);
  EXPECT_EQ(bus.direct(base::Iova(0x104000), 1, false), nullptr);
  EXPECT_EQ(client.unmap(0, 0x1000, wire::kUnmapDirtyBitmap), EINVAL);
}

TEST_F(Dma, MappedMemoryIsReachedDirectlyAndByCopy) {
  RawClient client = connect_ready();
  const auto fd = memory(0x8000);
  const auto bytes = pattern(0x8000);
  fill(fd.get(), 0, bytes);
  // Neighbours in IOVA, not in the file.
  EXPECT_EQ(client.map(0x10000, 0x1000, fd.get(), 0x3000), 0);
  EXPECT_EQ(client.map(0x11000, 0x1000, fd.get(), 0x1000), 0);
  in_step([&](HostBus& bus) {
    const std::byte* at = bus.direct(base::Iova(0x10010), 0xFF0, false);
    ASSERT_NE(at, nullptr);
    EXPECT_EQ(std::memcmp(at, bytes.data() + 0x3010, 0xFF0), 0);
    EXPECT_EQ(bus.direct(base::Iova(0x10010), 0xFF1, false), nullptr);  // straddles
    std::vector<std::byte> got(0x1800);
    ASSERT_TRUE(bus.read(base::Iova(0x10400), got));
    EXPECT_EQ(std::memcmp(got.data(), bytes.data() + 0x3400, 0xC00), 0);
    EXPECT_EQ(std::memcmp(got.data() + 0xC00, bytes.data() + 0x1000, 0xC00), 0);
    ASSERT_TRUE(bus.write(base::Iova(0x10FFE), pattern(4, 9)));
  });
  EXPECT_EQ(content(fd.get(), 0x3FFE, 2),
            (std::vector<std::byte>{pattern(4, 9)[0], pattern(4, 9)[1]}));
  EXPECT_EQ(content(fd.get(), 0x1000, 2),
            (std::vector<std::byte>{pattern(4, 9)[2], pattern(4, 9)[3]}));
  EXPECT_EQ(server.counters().dma_messages, 0u);
}

TEST_F(Dma, BusMasterOffRefusesEverything) {
  RawClient client = connect();
  client.negotiate();
  const auto fd = memory(0x1000);
  EXPECT_EQ(client.map(0x10000, 0x1000, fd.get()), 0);
  in_step([](HostBus& bus) {
    std::vector<std::byte> bytes(8);
    EXPECT_EQ(bus.direct(base::Iova(0x10000), 8, false), nullptr);
    EXPECT_FALSE(bus.read(base::Iova(0x10000), bytes));
    EXPECT_FALSE(bus.write(base::Iova(0x10000), bytes));
    EXPECT_FALSE(bus.read(base::Iova(0x90000), bytes));
  });
  EXPECT_EQ(server.counters().dma_messages, 0u);
  EXPECT_EQ(server.counters().dma_refused, 3u);
}

// The client's side of DMA messages: answers from `memory`, or refuses.
struct DmaAnswerer {
  RawClient& client;
  std::vector<std::byte> memory;
  std::uint64_t base;
  int error = 0;
  std::vector<std::pair<std::uint16_t, wire::DmaAccess>> asked;

  void serve_one() {
    // Not through RawClient::receive(): the server is inside its step.
    RawClient inner(base::UniqueFd(::dup(client.fd())), {});
    const auto message = inner.receive();
    ASSERT_TRUE(message);
    const auto access = message->as<wire::DmaAccess>();
    asked.push_back({message->header.command, access});
    if (error != 0) {
      inner.reply(*message, {}, error);
      return;
    }
    const auto part = std::span(memory).subspan(access.address - base, access.count);
    if (message->header.command == wire::kDmaRead) {
      inner.reply(*message, join(base::as_bytes(access), part));
    } else {
      std::copy(message->body.begin() + sizeof access, message->body.end(), part.begin());
      inner.reply(*message, base::as_bytes(access));
    }
  }
};

class DmaMessages : public Dma {
 protected:
  DmaMessages() {
    options().while_waiting = [this] { turn(); };
  }
  // The server's options are fixed when it is made, so these tests have a server of their own.
  ServerOptions& options() { return options_; }
  RawClient connect_own(const std::string& json = "") {
    own_ = std::make_unique<GpuServer>(gpu, options_);
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    own_->connect(base::UniqueFd(ends[0]));
    RawClient client(base::UniqueFd(ends[1]), [this] { own_->step(); });
    client.negotiate(json);
    client.set_bus_master();
    return client;
  }
  void in_own_step(std::function<void(HostBus&)> job) {
    gpu.on_step([job](HostBus* bus) { job(*bus); });
    own_->step();
  }
  void turn() {
    if (on_wait) on_wait();
  }

  std::function<void()> on_wait;
  ServerOptions options_{
      .name = "test", .dma_deadline = std::chrono::seconds(5), .while_waiting = {}};
  std::unique_ptr<GpuServer> own_;
};

TEST_F(DmaMessages, UnmappedMemoryIsAskedFor) {
  RawClient client = connect_own();
  DmaAnswerer answerer{client, pattern(0x2000), 0x50000, 0, {}};
  on_wait = [&] { answerer.serve_one(); };
  in_own_step([&](HostBus& bus) {
    std::vector<std::byte> got(100);
    ASSERT_TRUE(bus.read(base::Iova(0x50010), got));
    EXPECT_EQ(std::memcmp(got.data(), pattern(0x2000).data() + 0x10, 100), 0);
    ASSERT_TRUE(bus.write(base::Iova(0x50200), pattern(64, 3)));
  });
  EXPECT_EQ(std::memcmp(answerer.memory.data() + 0x200, pattern(64, 3).data(), 64), 0);
  EXPECT_EQ(own_->counters().dma_messages, 2u);
}

TEST_F(DmaMessages, TransfersAreCutToWhatTheClientTakes) {
  RawClient client = connect_own(R"({"capabilities":{"max_data_xfer_size":1024}})");
  DmaAnswerer answerer{client, pattern(0x2000), 0x50000, 0, {}};
  on_wait = [&] { answerer.serve_one(); };
  in_own_step([&](HostBus& bus) {
    std::vector<std::byte> got(2500);
    ASSERT_TRUE(bus.read(base::Iova(0x50000), got));
    EXPECT_EQ(std::memcmp(got.data(), pattern(0x2000).data(), 2500), 0);
  });
  ASSERT_EQ(answerer.asked.size(), 3u);
  EXPECT_EQ(answerer.asked[2].second.address, 0x50800u);
  EXPECT_EQ(answerer.asked[2].second.count, 452u);
}

TEST_F(DmaMessages, ReadOnlyMappingIsAskedForWhenWritten) {
  RawClient client = connect_own();
  const auto fd = memory(0x1000);
  EXPECT_EQ(client.map(0x50000, 0x1000, fd.get(), 0, wire::kDmaReadable), 0);
  DmaAnswerer answerer{client, pattern(0x1000), 0x50000, EACCES, {}};
  on_wait = [&] { answerer.serve_one(); };
  in_own_step([&](HostBus& bus) {
    EXPECT_NE(bus.direct(base::Iova(0x50000), 8, false), nullptr);
    EXPECT_EQ(bus.direct(base::Iova(0x50000), 8, true), nullptr);
    EXPECT_FALSE(bus.write(base::Iova(0x50000), pattern(8)));
  });
  ASSERT_EQ(answerer.asked.size(), 1u);
  EXPECT_EQ(answerer.asked[0].first, wire::kDmaWrite);
  EXPECT_EQ(content(fd.get(), 0, 8), std::vector<std::byte>(8));
}

TEST_F(DmaMessages, RefusalInTheMiddleDeliversNothing) {
  RawClient client = connect_own();
  const auto fd = memory(0x1000);
  EXPECT_EQ(client.map(0x50000, 0x1000, fd.get()), 0);
  DmaAnswerer answerer{client, {}, 0, EFAULT, {}};
  on_wait = [&] { answerer.serve_one(); };
  in_own_step([&](HostBus& bus) {
    std::vector<std::byte> got(16, std::byte{0x5A});
    EXPECT_FALSE(bus.read(base::Iova(0x50FF8), got));
    EXPECT_EQ(got, std::vector<std::byte>(16, std::byte{0x5A}));
    EXPECT_FALSE(bus.write(base::Iova(0x50FF8), pattern(16)));
  });
  EXPECT_EQ(content(fd.get(), 0xFF8, 8), std::vector<std::byte>(8));
  EXPECT_EQ(own_->counters().dma_refused, 2u);
}

TEST_F(DmaMessages, MappingWithoutDescriptorIsReachedByMessage) {
  RawClient client = connect_own();
  EXPECT_EQ(client.map(0x50000, 0x1000), 0);
  DmaAnswerer answerer{client, pattern(0x1000), 0x50000, 0, {}};
  on_wait = [&] { answerer.serve_one(); };
  in_own_step([&](HostBus& bus) {
    std::vector<std::byte> got(8);
    EXPECT_EQ(bus.direct(base::Iova(0x50000), 8, false), nullptr);
    EXPECT_TRUE(bus.read(base::Iova(0x50000), got));
  });
  EXPECT_EQ(answerer.asked.size(), 1u);
}

TEST_F(DmaMessages, D63_CommandsThatArriveMeanwhileWait) {
  RawClient client = connect_own();
  gpu.registers[0x40] = 1;
  DmaAnswerer answerer{client, pattern(0x1000), 0x50000, 0, {}};
  std::uint16_t asked = 0;
  on_wait = [&] {
    if (asked == 0) {
      const wire::RegionAccess access{0x40, kRegisterRegion, 4};
      asked = client.send(wire::kRegionRead, base::as_bytes(access));
      // The answer to our DMA_READ must come before any to this.
      RawClient inner(base::UniqueFd(::dup(client.fd())), {});
      const auto message = inner.receive();
      ASSERT_TRUE(message);
      EXPECT_EQ(message->header.command, wire::kDmaRead);
      const auto request = message->as<wire::DmaAccess>();
      inner.reply(*message, join(base::as_bytes(request), pattern(request.count)));
    }
  };
  in_own_step([&](HostBus& bus) {
    gpu.registers[0x40] = 2;  // half done: nobody may see it
    std::vector<std::byte> got(8);
    EXPECT_TRUE(bus.read(base::Iova(0x50000), got));
    EXPECT_EQ(std::ranges::count(gpu.calls, "read 64"), 0);
    gpu.registers[0x40] = 3;
  });
  const auto reply = client.receive();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->header.id, asked);
  EXPECT_EQ(reply->as<std::uint32_t>(16), 3u);
}

TEST_F(DmaMessages, NoAnswerIsARefusalAfterTheDeadline) {
  options().dma_deadline = std::chrono::milliseconds(50);
  options().while_waiting = {};
  RawClient client = connect_own();
  in_own_step([](HostBus& bus) {
    std::vector<std::byte> got(8);
    EXPECT_FALSE(bus.read(base::Iova(0x50000), got));
  });
  // The late answer is dropped and the session goes on.
  const auto late = client.receive();
  ASSERT_TRUE(late);
  client.reply(*late, join(base::as_bytes(late->as<wire::DmaAccess>()), pattern(8)));
  EXPECT_FALSE(client.call(wire::kDeviceGetInfo, wire::DeviceInfo{}).failed());
}

TEST_F(DmaMessages, AnswerOfTheWrongSizeIsARefusal) {
  RawClient client = connect_own();
  on_wait = [&] {
    RawClient inner(base::UniqueFd(::dup(client.fd())), {});
    const auto message = inner.receive();
    ASSERT_TRUE(message);
    inner.reply(*message, join(base::as_bytes(message->as<wire::DmaAccess>()), pattern(7)));
  };
  in_own_step([](HostBus& bus) {
    std::vector<std::byte> got(8);
    EXPECT_FALSE(bus.read(base::Iova(0x50000), got));
  });
}

TEST_F(DmaMessages, ClientThatOnlySendsCommandsIsDropped) {
  RawClient client = connect_own();
  const wire::RegionAccess access{0x40, kRegisterRegion, 4};
  on_wait = [&] {
    for (int i = 0; i < 64; ++i)
      client.send(wire::kRegionRead, base::as_bytes(access), {}, wire::kNoReply);
  };
  in_own_step([](HostBus& bus) {
    std::vector<std::byte> got(8);
    EXPECT_FALSE(bus.read(base::Iova(0x50000), got));
  });
  EXPECT_FALSE(own_->connected());
  EXPECT_EQ(own_->counters().broken_sessions, 1u);
}

}  // namespace
}  // namespace gpusim::testing
