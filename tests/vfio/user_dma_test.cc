// What the server asks of us: DMA_READ and DMA_WRITE, served from our mappings and refused
// otherwise.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <thread>

#include "rig.h"
#include "vfio/user/user_dma.h"

namespace vfio_test {
namespace {

namespace wire = vfio::wire;

class Dma : public Rig {
 protected:
  void SetUp() override {
    connect();
    memory_ = base::make_memfd("memory", 4 * 4096).value();
    for (std::uint32_t i = 0; i < 4 * 4096; i += 4) ASSERT_EQ(::pwrite(memory_.get(), &i, 4, i), 4);
  }
  void TearDown() override { memory_.reset(); }

  // Asks while the client is idle: its reactor sees the socket and handles the event.
  Packet ask(Command command, Bytes body) {
    const auto id = server().send_command(command, std::move(body));
    pollfd socket{device_->event_fd(), POLLIN, 0};
    EXPECT_EQ(::poll(&socket, 1, 10'000), 1);
    device_->handle_events();
    // A long message takes more than one look.
    std::thread handler([this, stop = &stop_] {
      while (!*stop && !device_->lost()) {
        device_->handle_events();
        std::this_thread::sleep_for(1ms);
      }
    });
    auto answer = server().wait_answer(id);
    stop_ = true;
    handler.join();
    stop_ = false;
    EXPECT_TRUE(answer);
    if (!answer) return {};
    EXPECT_EQ(answer->header.command, static_cast<std::uint16_t>(command));
    return std::move(*answer);
  }
  std::uint32_t refused(Command command, Bytes body) {
    const auto before = device_->counters().dma_refused;
    const Packet answer = ask(command, std::move(body));
    EXPECT_EQ(answer.header.flags, wire::kTypeReply | wire::kError);
    EXPECT_EQ(answer.header.size, 16u);
    EXPECT_EQ(device_->counters().dma_refused, before + 1);
    EXPECT_FALSE(device_->lost());
    return answer.header.error;
  }
  std::uint32_t refused_read(std::uint64_t at, std::uint64_t count) {
    return refused(Command::kDmaRead, bytes_of(wire::DmaAccess{at, count}));
  }
  void map(std::uint64_t offset, std::uint64_t size, std::uint64_t at,
           Rights rights = Rights::kReadWrite) {
    ASSERT_TRUE(device_->map_dma(memory_.get(), offset, size, Iova(at), rights));
  }
  std::uint32_t word(std::uint64_t offset) {
    std::uint32_t value = 0;
    EXPECT_EQ(::pread(memory_.get(), &value, 4, static_cast<off_t>(offset)), 4);
    return value;
  }

  base::UniqueFd memory_;
  std::atomic<bool> stop_ = false;
};

TEST_F(Dma, ReadIsServedWhileIdle) {
  map(4096, 8192, 0x100000);
  const Packet answer = ask(Command::kDmaRead, bytes_of(wire::DmaAccess{0x100100, 8}));
  EXPECT_EQ(answer.header.flags, wire::kTypeReply);
  EXPECT_EQ(answer.as<std::uint64_t>(0), 0x100100u);
  EXPECT_EQ(answer.as<std::uint64_t>(8), 8u);
  EXPECT_EQ(answer.as<std::uint32_t>(16), 0x1100u);
  EXPECT_EQ(answer.as<std::uint32_t>(20), 0x1104u);
  EXPECT_EQ(device_->counters().dma_reads, 1u);
}

TEST_F(Dma, WriteIsServed) {
  map(4096, 8192, 0x100000);
  const Packet answer =
      ask(Command::kDmaWrite, bytes_of(wire::DmaAccess{0x100008, 4}, std::uint32_t{0xabcd}));
  EXPECT_EQ(answer.header.flags, wire::kTypeReply);
  EXPECT_EQ(answer.body.size(), 16u);
  EXPECT_EQ(word(4096 + 8), 0xabcdu);
  EXPECT_EQ(device_->counters().dma_writes, 1u);
}

TEST_F(Dma, LongestTransfer) {
  constexpr std::uint64_t kSize = base::kMiB;
  const auto big = base::make_memfd("big", kSize).value();
  const std::uint32_t mark = 0x600df00d;
  ASSERT_EQ(::pwrite(big.get(), &mark, 4, kSize - 4), 4);
  ASSERT_TRUE(device_->map_dma(big.get(), 0, kSize, Iova(0), Rights::kRead));
  const Packet answer = ask(Command::kDmaRead, bytes_of(wire::DmaAccess{0, kSize}));
  ASSERT_EQ(answer.body.size(), 16 + kSize);
  EXPECT_EQ(answer.as<std::uint32_t>(16 + kSize - 4), mark);
  EXPECT_EQ(refused_read(0, kSize + 1), std::uint32_t{EINVAL});
}

TEST_F(Dma, ReadCrossesARegisterRead) {
  map(0, 4096, 0x3000);
  open_bar(BarIndex::k5);
  server().script(Command::kRegionRead, [](ScriptedServer& s, const Packet&, Packet& reply) {
    const Packet answer = s.ask(Command::kDmaRead, bytes_of(wire::DmaAccess{0x3040, 4}));
    EXPECT_EQ(answer.as<std::uint32_t>(16), 0x40u);
    const Packet no = s.ask(Command::kDmaRead, bytes_of(wire::DmaAccess{0x4000, 4}));
    EXPECT_EQ(no.header.error, std::uint32_t{EFAULT});
    base::store(std::span(reply.body), 16, std::uint32_t{0x77});
    s.send(reply);
  });
  EXPECT_EQ(bar_->read32(0), 0x77u);
  EXPECT_EQ(device_->counters().dma_refused, 1u);
}

TEST_F(Dma, MemoryIsThereBeforeTheMapIsAnswered) {
  server().script(Command::kDmaMap, [](ScriptedServer& s, const Packet&, Packet& reply) {
    EXPECT_EQ(s.ask(Command::kDmaRead, bytes_of(wire::DmaAccess{0x3000, 4})).header.flags,
              wire::kTypeReply);
    s.send(reply);
  });
  map(0, 4096, 0x3000);
}

TEST_F(Dma, MemoryIsThereUntilTheUnmapIsAnswered) {
  map(0, 4096, 0x3000);
  server().script(Command::kDmaUnmap, [](ScriptedServer& s, const Packet&, Packet& reply) {
    EXPECT_EQ(s.ask(Command::kDmaRead, bytes_of(wire::DmaAccess{0x3000, 4})).header.flags,
              wire::kTypeReply);
    s.send(reply);
  });
  ASSERT_TRUE(device_->unmap_dma(Iova(0x3000), 4096));
  EXPECT_EQ(refused_read(0x3000, 4), std::uint32_t{EFAULT});
}

TEST_F(Dma, MapThatTheServerRefusedIsNotThere) {
  server().script(Command::kDmaMap, [](ScriptedServer& s, const Packet&, Packet& reply) {
    reply.header.flags |= wire::kError;
    reply.header.error = ENOMEM;
    s.send(reply);
  });
  EXPECT_EQ(device_->map_dma(memory_.get(), 0, 4096, Iova(0x3000), Rights::kRead).error().code,
            Errc::kNoMemory);
  EXPECT_EQ(refused_read(0x3000, 4), std::uint32_t{EFAULT});
}

TEST_F(Dma, NothingIsMappedByDefault) {
  EXPECT_EQ(refused_read(0, 4), std::uint32_t{EFAULT});
  EXPECT_EQ(refused(Command::kDmaWrite, bytes_of(wire::DmaAccess{0x1000, 4}, 0u)),
            std::uint32_t{EFAULT});
}

TEST_F(Dma, EdgesOfAMapping) {
  map(0, 4096, 0x3000);
  EXPECT_EQ(refused_read(0x2ffc, 8), std::uint32_t{EFAULT});
  EXPECT_EQ(refused_read(0x3ffc, 8), std::uint32_t{EFAULT});
  EXPECT_EQ(refused_read(0x4000, 1), std::uint32_t{EFAULT});
  EXPECT_EQ(ask(Command::kDmaRead, bytes_of(wire::DmaAccess{0x3ffc, 4})).as<std::uint32_t>(16),
            0xffcu);
}

TEST_F(Dma, RightsAreTheDevices) {
  map(0, 4096, 0x1000, Rights::kRead);
  map(4096, 4096, 0x2000, Rights::kWrite);
  EXPECT_EQ(refused_read(0x2000, 4), std::uint32_t{EACCES});
  EXPECT_EQ(refused(Command::kDmaWrite, bytes_of(wire::DmaAccess{0x1000, 4}, 7u)),
            std::uint32_t{EACCES});
  EXPECT_EQ(word(0), 0u);
}

TEST_F(Dma, AccessMaySpanNeighbours) {
  map(2 * 4096, 4096, 0x10000);
  map(0, 4096, 0x11000);
  const Packet answer = ask(Command::kDmaRead, bytes_of(wire::DmaAccess{0x10ffc, 8}));
  EXPECT_EQ(answer.as<std::uint32_t>(16), 0x2ffcu);
  EXPECT_EQ(answer.as<std::uint32_t>(20), 0u);
}

TEST_F(Dma, RefusedWriteHasNoEffect) {
  map(0, 4096, 0x10000);
  EXPECT_EQ(refused(Command::kDmaWrite,
                    bytes_of(wire::DmaAccess{0x10ffc, 8}, std::uint64_t{0xffffffffffffffff})),
            std::uint32_t{EFAULT});
  EXPECT_EQ(word(0xffc), 0xffcu);
}

TEST_F(Dma, MalformedRequests) {
  map(0, 4096, 0x3000);
  EXPECT_EQ(refused_read(0x3000, 0), std::uint32_t{EINVAL});
  EXPECT_EQ(refused_read(UINT64_MAX - 1, 8), std::uint32_t{EINVAL});
  EXPECT_EQ(refused_read(0x3000, UINT64_MAX), std::uint32_t{EINVAL});
  EXPECT_EQ(refused(Command::kDmaRead, {}), std::uint32_t{EINVAL});
  EXPECT_EQ(refused(Command::kDmaRead, bytes_of(wire::DmaAccess{0x3000, 4}, 0u)),
            std::uint32_t{EINVAL});
  EXPECT_EQ(refused(Command::kDmaWrite, bytes_of(wire::DmaAccess{0x3000, 8}, 0u)),
            std::uint32_t{EINVAL});
  EXPECT_EQ(refused(Command::kDeviceReset, {}), std::uint32_t{EOPNOTSUPP});
  EXPECT_EQ(refused(static_cast<Command>(999), bytes_of(1u)), std::uint32_t{EOPNOTSUPP});
}

TEST_F(Dma, PostedWriteGetsNoAnswer) {
  map(0, 4096, 0x3000);
  server().send_command(Command::kDmaWrite, bytes_of(wire::DmaAccess{0x3000, 4}, 9u),
                        wire::kNoReply);
  const Packet answer = ask(Command::kDmaRead, bytes_of(wire::DmaAccess{0x3000, 4}));
  EXPECT_EQ(answer.as<std::uint32_t>(16), 9u);
  EXPECT_EQ(device_->counters().dma_writes, 1u);
}

TEST_F(Dma, MemoryThatShrankIsRefused) {
  const auto loose = base::make_memfd("loose", 8192, 0).value();
  ASSERT_TRUE(device_->map_dma(loose.get(), 0, 8192, Iova(0), Rights::kReadWrite));
  ASSERT_EQ(::ftruncate(loose.get(), 4096), 0);
  EXPECT_EQ(refused_read(4096, 4), std::uint32_t{EFAULT});
}

TEST_F(Dma, SealedMemoryIsNotWritten) {
  const auto fixed = base::make_memfd("fixed", 4096, base::kSizeSeals | F_SEAL_WRITE).value();
  ASSERT_TRUE(device_->map_dma(fixed.get(), 0, 4096, Iova(0), Rights::kReadWrite));
  EXPECT_EQ(refused(Command::kDmaWrite, bytes_of(wire::DmaAccess{0, 4}, 9u)),
            std::uint32_t{EFAULT});
}

TEST_F(Dma, HangUpIsNoticedWhileIdle) {
  server().hang_up();
  pollfd socket{device_->event_fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&socket, 1, 10'000), 1);
  device_->handle_events();
  expect_lost();
}

TEST_F(Dma, DescriptorsWithACommandLoseTheDevice) {
  const int fd = memory_.get();
  const Header header{1, 11, 32, 0, 0};
  server().send_raw(bytes_of(header, wire::DmaAccess{0, 4}), std::span(&fd, 1));
  while (!device_->lost()) device_->handle_events();
  expect_lost();
}

TEST_F(Dma, CommandThatIsTooLongLosesTheDevice) {
  server().send_raw(bytes_of(Header{1, 12, 2u << 20, 0, 0}));
  while (!device_->lost()) device_->handle_events();
  expect_lost();
}

TEST_F(Dma, ServerThatTakesNoAnswersLosesTheDevice) {
  const auto big = base::make_memfd("big", base::kMiB).value();
  bar_.reset();
  device_.reset();
  server_.reset();
  server_.emplace();
  connect(hasty());
  ASSERT_TRUE(device_->map_dma(big.get(), 0, base::kMiB, Iova(0), Rights::kRead));
  open_bar(BarIndex::k5);
  server().script(Command::kRegionRead, [](ScriptedServer& s, const Packet&, Packet&) {
    for (int i = 0; i < 64; ++i)
      s.send_command(Command::kDmaRead, bytes_of(wire::DmaAccess{0, base::kMiB}));
    std::this_thread::sleep_for(2s);  // longer than the client's deadline
  });
  EXPECT_EQ(bar_->read32(0), 0xffffffffu);
  EXPECT_LE(device_->counters().dma_reads, 2u) << "answers pile up";
  expect_lost();
}

// hugetlbfs has no write(): served through a mapping. Needs a free huge page.
TEST(DmaTable, WritesHugePages) {
  constexpr std::uint64_t kHuge = 2 * base::kMiB;
  const auto huge = base::make_memfd("huge", kHuge, base::kSizeSeals, MFD_HUGETLB);
  if (!huge || ::fallocate(huge->get(), 0, 0, kHuge) != 0)
    GTEST_SKIP() << "no huge page of 2 MiB is free";
  vfio::DmaTable table;
  ASSERT_TRUE(table.reserve(huge->get(), 0, kHuge, Iova(0), Rights::kReadWrite, 1));
  const std::uint64_t value = 0x0123456789abcdef;
  EXPECT_EQ(table.write(Iova(0x1ffffc - 4), base::as_bytes(value)), 0);
  std::uint64_t back = 0;
  EXPECT_EQ(table.read(Iova(0x1ffffc - 4), base::as_writable_bytes(back)), 0);
  EXPECT_EQ(back, value);
}

}  // namespace
}  // namespace vfio_test
