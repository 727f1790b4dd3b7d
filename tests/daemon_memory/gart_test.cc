#include "daemon/gpu/memory/gart.h"

#include <gtest/gtest.h>

#include "tests/daemon_memory/hub_fixture.h"
#include "tests/daemon_memory/memory_fixture.h"

namespace {

using namespace gpuumd;
using namespace std::chrono_literals;

constexpr PteFlags kReadWrite{.read = true, .write = true};

class GartTest : public ::testing::Test {
 protected:
  GartTest() {
    auto made = Gart::create(format, vram, writer, flushes, count());
    EXPECT_TRUE(made);
    gart = std::move(*made);
    EXPECT_EQ(done, 1);
    done = 0;
  }
  Done count() {
    return [this](base::Result<void> result) { done += result ? 1 : 100; };
  }
  // The entry in memory, found as the hardware does: flat, from BASE.
  std::uint64_t entry(base::McAddress at) {
    const std::uint64_t root = gart->root().raw() & 0x000F'FFFF'FFFF'F000;
    return bar.read64(root - fake::kVramMap.fb_physical().value() + at.page() * 8);
  }

  fake::Hubs hubs;
  fake::ManualReactor reactor;
  PteFormat format{.vram = fake::kVramMap};
  Vram vram = std::move(*Vram::create(fake::kVramMap.size(), fake::kVramMap.visible(), {}));
  fake::FakeBar bar{fake::kVramMap.visible()};
  TableWriter writer{fake::kVramMap, bar, fake::nbio_block(hubs.io), nullptr};
  FlushQueue flushes{reactor, hubs.hubs, {}, {}};
  std::unique_ptr<Gart> gart;
  int done = 0;
};

TEST_F(GartTest, StartsWithEveryEntryInvalidOverWhateverWasThere) {
  auto second_vram = std::move(*Vram::create(fake::kVramMap.size(), fake::kVramMap.visible(), {}));
  std::fill(bar.state().bytes.begin(), bar.state().bytes.end(), std::byte{0xFF});
  auto again = std::move(*Gart::create(format, second_vram, writer, flushes, {}));
  for (std::uint64_t page = 0; page < Gart::kPages; page += 7)
    ASSERT_EQ(entry(base::McAddress(page * 4096)), 0u) << page;
}

TEST_F(GartTest, LR_11_WhatIsHandedOutIsMappedAllOver) {
  const auto range = gart->map(std::vector{PhysRun::system(base::Iova(0x7000'0000), 3),
                                           PhysRun::vram(base::VramOffset(0x5000), 2)},
                               kReadWrite, count());
  ASSERT_TRUE(range);
  EXPECT_EQ(done, 1);  // and in memory before anybody uses it
  EXPECT_NE(range->address().value(), 0u);
  const auto at = range->address();
  EXPECT_EQ(entry(at), 0x80C0'0000'7000'0067u);
  EXPECT_EQ(entry(at + 2 * 4096), 0x80C0'0000'7000'2067u);
  EXPECT_EQ(entry(at + 3 * 4096), 0x8800'0001'0000'5065u);
  EXPECT_EQ(entry(at + 4 * 4096), 0x8800'0001'0000'6065u);
  EXPECT_EQ(entry(at + 5 * 4096), 0u);
  EXPECT_EQ(gart->entry(at).raw(), entry(at));
}

TEST_F(GartTest, DMA_3_AddressesComeBackOnlyAfterTheFlush) {
  std::vector<PhysRun> all = {PhysRun::system(base::Iova(0x10'0000'0000), Gart::kPeersFirst - 1)};
  auto range = gart->map(all, kReadWrite, {});
  ASSERT_TRUE(range);
  const auto at = range->address();
  hubs.acknowledge = false;
  int unmapped = 0;
  range->unmap([&](base::Result<void> r) { unmapped += r ? 1 : 100; });
  EXPECT_EQ(entry(at), 0u);
  reactor.turn();
  EXPECT_EQ(unmapped, 0);
  EXPECT_EQ(gart->map(all, kReadWrite, {}).error().code, base::Errc::kNoSpace);
  for (const auto& hub : hubs.hubs)
    EXPECT_EQ(hubs.io.values[hubs.req(hub)] & 0x7FFFF, 0x20001u) << "heavy, VMID 0, every hub";
  hubs.acknowledge_all();
  reactor.advance(1ms);
  EXPECT_EQ(unmapped, 1);
  EXPECT_TRUE(gart->map(all, kReadWrite, {}));
  hubs.acknowledge = true;
  reactor.settle();
}

TEST_F(GartTest, AddressesOfAFailedFlushAreNeverUsedAgain) {
  auto window =
      gart->acquire_window(std::vector{PhysRun::system(base::Iova(0x5000), 1)}, kReadWrite, {});
  ASSERT_TRUE(window);
  hubs.acknowledge = false;
  {
    const GartRange gone = std::move(*window);
  }
  reactor.advance(2s);
  EXPECT_EQ(gart->free_windows(), Gart::kWindows - 1);
}

TEST_F(GartTest, WindowsAreTwoMebibytesAndReturnAfterTheirFlush) {
  std::vector<GartRange> windows;
  for (unsigned i = 0; i < Gart::kWindows; ++i) {
    auto window = gart->acquire_window(
        std::vector{PhysRun::system(base::Iova(0x10'0000'0000 + i * 2 * base::kMiB), 512)},
        kReadWrite, {});
    ASSERT_TRUE(window);
    EXPECT_TRUE(window->address().aligned(2 * base::kMiB));
    EXPECT_LT(window->address().value(), 512 * base::kMiB);
    windows.push_back(std::move(*window));
  }
  const std::vector one = {PhysRun::system(base::Iova(0x5000), 1)};
  EXPECT_EQ(gart->acquire_window(one, kReadWrite, {}).error().code, base::Errc::kAgain);
  windows.pop_back();
  EXPECT_FALSE(gart->acquire_window(one, kReadWrite, {}));
  reactor.settle();
  EXPECT_TRUE(gart->acquire_window(one, kReadWrite, {}));
  EXPECT_EQ(gart->acquire_window(std::vector{PhysRun::system(base::Iova(0), 513)}, kReadWrite, {})
                .error()
                .code,
            base::Errc::kInvalidArgument);
  windows.clear();
  reactor.settle();
}

TEST_F(GartTest, PeerPagesHaveFixedPlacesAndAreRemoteAndUncached) {
  const base::Npa ring((std::uint64_t{9} << 41) | 0x20'6000);
  ASSERT_TRUE(gart->map_peer(9, Gart::PeerPage::kShootdownRing, ring, count()));
  const auto at = Gart::peer_address(9, Gart::PeerPage::kShootdownRing);
  EXPECT_EQ(entry(at), 0x89C0'0000'0000'0064u | ring.value());
  EXPECT_EQ(gart->map_peer(9, Gart::PeerPage::kShootdownRing, ring, {}).error().code,
            base::Errc::kExists);
  EXPECT_EQ(gart->map_peer(256, Gart::PeerPage::kDoorbell, ring, {}).error().code,
            base::Errc::kInvalidArgument);
  done = 0;
  gart->unmap_peer(9, count());
  EXPECT_EQ(entry(at), 0u);
  EXPECT_EQ(done, 0);
  reactor.settle();
  EXPECT_EQ(done, 1);
}

TEST_F(GartTest, PartsOfTheMapDoNotMeet) {
  auto range = gart->map(std::vector{PhysRun::system(base::Iova(0), 1)}, kReadWrite, {});
  EXPECT_EQ(range->address().page(), Gart::kPermanentFirst);  // page 0 stays a trap
  EXPECT_EQ(Gart::peer_address(0, Gart::PeerPage{}).page(), Gart::kPeersFirst);
  EXPECT_LT(Gart::peer_address(255, Gart::PeerPage::kDoorbell).page(), Gart::kWindowsFirst);
  const PteFormat overlapping{.vram = VramMap(64 * base::kMiB, 16 * base::kMiB,
                                              base::McAddress(256 * base::kMiB),
                                              base::PhysicalAddress(0))};
  EXPECT_EQ(Gart::create(overlapping, vram, writer, flushes, {}).error().code,
            base::Errc::kDeviceError);
  range = {};
  reactor.settle();
}

}  // namespace
