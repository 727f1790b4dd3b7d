// BARs behind vfio-user: what of them is memory and what is trapped, and doorbells.
#include "vfio/user/user_bar.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstring>

#include "rig.h"

namespace vfio_test {
namespace {

namespace wire = vfio::wire;

using UserBar = Rig;

TEST_F(UserBar, MappedBarIsMemory) {
  connect();
  open_bar(BarIndex::k0);
  EXPECT_EQ(bar_->size(), kBar0Size);
  ASSERT_EQ(bar_->mapped().size(), 1u);
  EXPECT_EQ(bar_->mapped()[0].offset, 0u);
  EXPECT_EQ(bar_->mapped()[0].size, kBar0Size);

  bar_->write32(8, 0x11223344);
  bar_->write64(kBar0Size - 8, 0x8877665544332211);
  EXPECT_EQ(*server().bar0_memory.at<std::uint32_t>(8), 0x11223344u);
  EXPECT_EQ(*server().bar0_memory.at<std::uint64_t>(kBar0Size - 8), 0x8877665544332211u);
  EXPECT_EQ(bar_->read32(8), 0x11223344u);
  EXPECT_EQ(bar_->read64(kBar0Size - 8), 0x8877665544332211u);
  EXPECT_EQ(server().count(Command::kRegionWrite), 0u);
}

TEST_F(UserBar, SparseBarIsMappedInPart) {
  connect();
  open_bar(BarIndex::k5);
  ASSERT_EQ(bar_->mapped().size(), 1u);
  EXPECT_EQ(bar_->mapped()[0].offset, kMappedRegister);
  const auto reads = server().count(Command::kRegionRead);

  *server().bar5_memory.at<std::uint32_t>(kMappedRegister + 4) = 77;
  EXPECT_EQ(bar_->read32(kMappedRegister + 4), 77u);
  EXPECT_EQ(server().count(Command::kRegionRead), reads);

  bar_->write32(kMappedRegister - 4, 99);
  EXPECT_EQ(bar_->read32(kMappedRegister - 4), 99u);
  EXPECT_EQ(server().count(Command::kRegionRead), reads + 1);
  EXPECT_EQ(server().count(Command::kRegionWrite), 1u);
}

TEST_F(UserBar, TrappedAccessIsOneMessageOfItsWidth) {
  connect();
  open_bar(BarIndex::k5);
  bar_->write64(0x40, 0x0102030405060708);
  EXPECT_EQ(bar_->read64(0x40), 0x0102030405060708u);

  const Packet write = server().last(Command::kRegionWrite);
  EXPECT_EQ(write.header.flags, wire::kNoReply);
  EXPECT_EQ(write.as<std::uint64_t>(0), 0x40u);
  EXPECT_EQ(write.as<std::uint32_t>(8), 5u);
  EXPECT_EQ(write.as<std::uint32_t>(12), 8u);
  EXPECT_EQ(write.body.size(), 24u);
  const Packet read = server().last(Command::kRegionRead);
  EXPECT_EQ(read.as<std::uint32_t>(12), 8u);
  EXPECT_EQ(server().count(Command::kRegionWrite), 1u);
}

TEST_F(UserBar, DoorbellWakesASleepingServer) {
  connect();
  open_bar(BarIndex::k2);
  ASSERT_EQ(bar_->mapped().size(), 1u);
  std::atomic_ref<std::uint32_t> sleeping(*server().wake_memory.at<std::uint32_t>(0));
  std::atomic_ref<std::uint64_t> slot(*server().bar2_memory.at<std::uint64_t>(kDoorbellPage + 64));

  bar_->ring_doorbell64(kDoorbellPage + 64, 5);
  EXPECT_EQ(slot.load(), 5u);
  EXPECT_FALSE(signalled(server().wake_eventfd.get())) << "woken though awake";

  sleeping = 1;
  bar_->ring_doorbell64(kDoorbellPage + 64, 6);
  EXPECT_EQ(slot.load(), 6u);
  EXPECT_TRUE(signalled(server().wake_eventfd.get()));
  bar_->ring_doorbell32(kDoorbellPage + 64, 7);
  EXPECT_EQ(slot.load(), 7u);
  EXPECT_TRUE(signalled(server().wake_eventfd.get()));

  bar_->write64(kDoorbellPage + 64, 8);
  EXPECT_FALSE(signalled(server().wake_eventfd.get())) << "a plain write promises no wake";
}

TEST_F(UserBar, DoorbellOfAFullEventfdDoesNotBlock) {
  // The server's end was blocking, and its counter is full.
  const int fd = server().wake_eventfd.get();
  ASSERT_EQ(::fcntl(fd, F_SETFL, 0), 0);
  const std::uint64_t full = UINT64_MAX - 1;
  ASSERT_EQ(::write(fd, &full, sizeof(full)), 8);
  connect();
  open_bar(BarIndex::k2);
  *server().wake_memory.at<std::uint32_t>(0) = 1;
  bar_->ring_doorbell64(kDoorbellPage, 1);
  EXPECT_EQ(*server().bar2_memory.at<std::uint64_t>(kDoorbellPage), 1u);
}

TEST_F(UserBar, WithoutWakeEveryDoorbellIsAMessage) {
  auto options = patient();
  options.offer_wake = false;
  connect(options);
  open_bar(BarIndex::k2);
  EXPECT_TRUE(bar_->mapped().empty());
  bar_->ring_doorbell64(kDoorbellPage + 8, 0xabcdef0123456789);
  ASSERT_TRUE(server().wait_until([&] {
    return std::memcmp(server().registers.data() + kDoorbellPage + 8,
                       "\x89\x67\x45\x23\x01\xef\xcd\xab", 8) == 0;
  }));
  const Packet write = server().last(Command::kRegionWrite);
  EXPECT_EQ(write.as<std::uint32_t>(8), 2u);
  EXPECT_EQ(write.as<std::uint32_t>(12), 8u);
}

TEST_F(UserBar, BulkCopyCrossesMappedAndTrapped) {
  connect();
  open_bar(BarIndex::k5);
  std::vector<std::byte> pattern(32);
  for (std::size_t i = 0; i < pattern.size(); ++i) pattern[i] = std::byte(i + 1);
  const std::uint64_t at = kMappedRegister - 13;  // 13 bytes trapped, 19 mapped
  ASSERT_TRUE(bar_->write(at, pattern));
  EXPECT_EQ(std::memcmp(server().registers.data() + at, pattern.data(), 13), 0);
  EXPECT_EQ(std::memcmp(server().bar5_memory.data() + kMappedRegister, pattern.data() + 13, 19), 0);
  EXPECT_EQ(server().count(Command::kRegionWrite), 3u);  // 1 + 4 + 8 bytes, each aligned
  std::vector<std::byte> back(32);
  ASSERT_TRUE(bar_->read(at, back));
  EXPECT_EQ(back, pattern);
  EXPECT_EQ(bar_->read(kBar5Size - 4, back).error().code, Errc::kOutOfRange);
  EXPECT_EQ(bar_->write(UINT64_MAX - 4, back).error().code, Errc::kOutOfRange);
}

TEST_F(UserBar, BarThatIsNotThere) {
  connect();
  EXPECT_EQ(device_->open_bar(BarIndex::k1).error().code, Errc::kNotFound);
  EXPECT_FALSE(device_->lost());
}

TEST_F(UserBar, UnsealedDescriptorIsTrapped) {
  const auto open = base::make_memfd("open", kBar0Size, 0).value();
  server().script(Command::kDeviceGetRegionInfo,
                  [&](ScriptedServer& s, const Packet&, Packet& reply) {
                    if (!reply.send_fds.empty()) reply.send_fds = {open.get()};
                    s.send(reply);
                  });
  connect();
  open_bar(BarIndex::k0);
  EXPECT_TRUE(bar_->mapped().empty());
  bar_->write32(0, 5);
  EXPECT_EQ(bar_->read32(0), 5u);
  EXPECT_EQ(server().count(Command::kRegionWrite), 1u);
}

TEST_F(UserBar, ReadOnlyDescriptorIsTrapped) {
  const auto fixed = base::make_memfd("fixed", kBar0Size, base::kSizeSeals | F_SEAL_WRITE).value();
  server().script(Command::kDeviceGetRegionInfo,
                  [&](ScriptedServer& s, const Packet&, Packet& reply) {
                    if (!reply.send_fds.empty()) reply.send_fds = {fixed.get()};
                    s.send(reply);
                  });
  connect();
  open_bar(BarIndex::k0);
  EXPECT_TRUE(bar_->mapped().empty());
}

TEST_F(UserBar, AsksAgainForALongRegionInfo) {
  // 300 areas do not fit the room of the first request.
  server().script(
      Command::kDeviceGetRegionInfo, [](ScriptedServer& s, const Packet& request, Packet& reply) {
        auto info = reply.as<wire::RegionInfo>();
        if (info.index != 0) return s.send(reply);
        info.argsz = sizeof(info) + 16 + 8 * 16;
        info.flags |= wire::kRegionHasCapabilities;
        info.capability_offset = sizeof(info);
        Bytes areas;
        for (std::uint64_t i = 0; i < 8; ++i) {
          const auto area = bytes_of(wire::SparseArea{i * 8192, 4096});
          areas.insert(areas.end(), area.begin(), area.end());
        }
        const std::uint32_t padding = 8192 - 16 - 8 * 16;
        info.argsz += padding;
        info.capability_offset += padding;
        reply.body = bytes_of(info);
        if (request.as<wire::RegionInfo>().argsz >= info.argsz) {
          reply.body.resize(sizeof(info) + padding);
          const auto rest = bytes_of(wire::CapabilityHeader{wire::kCapabilitySparseMmap, 1, 0},
                                     wire::SparseMmap{8, 0});
          reply.body.insert(reply.body.end(), rest.begin(), rest.end());
          reply.body.insert(reply.body.end(), areas.begin(), areas.end());
        }
        reply.header.size = static_cast<std::uint32_t>(16 + reply.body.size());
        s.send(reply);
      });
  connect();
  open_bar(BarIndex::k0);
  EXPECT_EQ(bar_->mapped().size(), 8u);
}

}  // namespace
}  // namespace vfio_test
