// A whole GPU behind GpuDevice: BARs, mapped pages, reset, removal, scenarios, and that the blocks
// are wired to each other.
#include "tools/gpusim/model/gpu.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "tests/gpusim_blocks/fakes.h"

namespace gpusim {
namespace {

constexpr std::uint64_t kVram = 64 << 20, kBar0 = 16 << 20;
constexpr std::uint64_t kMc = 0x80'0000'0000;  // FB_LOCATION_BASE
constexpr std::uint32_t kFlush = 0xE17, kFbEn = 0xE20, kAperEn = 0xDE0, kS2a = 0xEEB,
                        kAccess = 0xF17;
constexpr std::uint64_t kHost = 0x5'0000'0000;

GpuOptions small() {
  GpuOptions options;
  options.index = 1;
  options.vram_bytes = kVram;
  options.bar0_bytes = kBar0;
  options.pod.config.accel_id = 5;
  options.pod.config.ppod_size = 8;
  return options;
}

struct FakeNht : NhtBlock {
  struct Rung {
    std::uint16_t sender;
    unsigned port, index;
    std::uint32_t value;
  };
  std::vector<Rung> rung;
  unsigned resets = 0;
  void remote_doorbell(std::uint16_t sender, unsigned port, unsigned index,
                       std::uint32_t value) override {
    rung.push_back({sender, port, index, value});
  }
  void reset() override { ++resets; }
  bool step() override { return false; }
  bool waiting() const override { return false; }
};

RemoteAccess write_of(std::span<const std::byte> bytes, std::uint64_t npa) {
  RemoteAccess access;
  access.kind = RemoteAccess::Kind::kWrite;
  access.sender = 6;
  access.npa = npa;
  access.write_from = bytes;
  return access;
}

class GpuTest : public ::testing::Test {
 protected:
  explicit GpuTest(GpuOptions options = small()) {
    auto made = Gpu::create(options, {.clock = clock, .hooks = &hooks});
    if (!made) ADD_FAILURE() << made.error().message();
    gpu = std::move(*made);
    gpu->attach(bus);
  }
  std::uint32_t read(std::uint32_t dword) { return gpu->read_register(std::uint64_t{dword} * 4); }
  void write(std::uint32_t dword, std::uint32_t value) {
    gpu->write_register(std::uint64_t{dword} * 4, value);
  }
  std::uint32_t at(Ip ip, unsigned segment, std::uint32_t offset) const {
    return gpu->bases().at(ip, 0, segment) + offset;
  }
  void settle() {
    while (gpu->step()) {
    }
  }
  std::uint32_t mm_read(std::uint64_t offset) {
    write(6, static_cast<std::uint32_t>(offset >> 31));
    write(0, static_cast<std::uint32_t>(offset & 0x7FFF'FFFF) | 0x8000'0000);
    return read(1);
  }
  template <class T>
  void put(std::uint64_t offset, T value) {
    gpu->write_vram_bar(offset, base::as_bytes(value));
  }
  std::uint32_t get(std::uint64_t offset) {
    std::uint32_t word = 0;
    gpu->read_vram_bar(offset, base::as_writable_bytes(word));
    return word;
  }
  // All of VRAM in VMID 0 of MMHUB 0, by the system aperture.
  void open_aperture() {
    for (const std::uint32_t row : {0x10Au, 0x10Cu}) {
      const std::uint64_t address = row == 0x10A ? kMc : kMc + kVram - 1;
      write(at(Ip::kMmhub, 2, row), static_cast<std::uint32_t>(address >> 18));
      write(at(Ip::kMmhub, 2, row + 1), static_cast<std::uint32_t>(address >> 50));
    }
  }
  void open_doorbells() {
    write(kAperEn, 1);
    write(kAccess, 0xF'FFFF);
    write(kS2a + 2, 0x0011'A001);
    write(kS2a + 3, 3);
    write(kS2a + 12, 0xE001'001D + (40 << 17));
    write(kS2a + 13, 3);
  }
  void start_interrupts() {
    const std::uint32_t ih = at(Ip::kOsssys, 0, 0);
    write(ih + 0x83, static_cast<std::uint32_t>(kHost >> 8));
    write(ih + 0x84, static_cast<std::uint32_t>(kHost >> 40));
    write(ih + 0x87, 0x1000'0340);
    write(ih + 0x88, 0x1000'0344);
    write(ih + 0x80, 1 | 7 << 1 | 1 << 16 | 1 << 17 | 1 << 21 | 2 << 28);
  }

  // Command 0x59 through a ring of its own.
  bool enable_npa() {
    open_aperture();
    const std::uint32_t mailbox = at(Ip::kMp0, 1, 0x80);
    write(mailbox + 5, static_cast<std::uint32_t>(kMc + 0x10000));
    write(mailbox + 6, static_cast<std::uint32_t>((kMc + 0x10000) >> 32));
    write(mailbox + 7, 4096);
    write(mailbox, 2 << 16);
    settle();
    put(0x10000, kMc + 0x20000);
    put(0x10008, 1024u);
    put(0x1000C, kMc + 0x30000);
    put(0x20004, 1u);
    put(0x20008, 0x59u);
    put(0x2001C, 15u);
    put(0x20020, 1u);
    write(kFlush, 0);
    write(mailbox + 3, 16);
    settle();
    return gpu->security_processor().npa_enabled();
  }

  FakeClock clock;
  ScenarioHooks hooks;
  FakeBus bus{kHost, 0x10000};
  FakeNht nht;
  std::unique_ptr<Gpu> gpu;
};

TEST_F(GpuTest, D55_IdentityAndBars) {
  const PciIdentity identity = gpu->identity();
  EXPECT_EQ(identity.vendor, 0x1002);
  EXPECT_EQ(identity.device, 0x75F0);
  EXPECT_EQ(identity.class_code, 0x120000u);
  EXPECT_EQ(gpu->bar_size(Bar::kVram), kBar0);
  EXPECT_EQ(gpu->bar_size(Bar::kDoorbells), 2u << 20);
  EXPECT_EQ(gpu->bar_size(Bar::kRegisters), 512u << 10);
}

TEST_F(GpuTest, D30_MsixLiesInBar5OutsideMappedPages) {
  const MsixLayout msix = gpu->msix();
  EXPECT_EQ(msix.vectors, 9u);
  EXPECT_EQ(msix.table_offset, 4 * at(Ip::kNbio, 3, 0x400));
  EXPECT_EQ(msix.pba_offset, 4 * at(Ip::kNbio, 3, 0x800));
  EXPECT_EQ(msix.pba_offset % 8, 0u);
  EXPECT_LT(msix.pba_offset + 8, gpu->bar_size(Bar::kRegisters));
  const auto areas = gpu->bar_memory(Bar::kRegisters).areas;
  ASSERT_EQ(areas.size(), 1u);
  EXPECT_EQ(areas[0].offset, 0x3000u);
  EXPECT_TRUE(msix.table_offset + 9 * 16 <= 0x3000 || msix.table_offset >= 0x4000);
}

TEST(GpuOptions, D55_Bar0CanBeAllOfVram) {
  const FakeClock clock;
  GpuOptions options = small();
  options.vram_bytes = 48 << 20;
  options.bar0_bytes = 0;
  const auto gpu = Gpu::create(options, {.clock = clock});
  ASSERT_TRUE(gpu);
  EXPECT_EQ((*gpu)->bar_size(Bar::kVram), 64u << 20);
  EXPECT_EQ((*gpu)->bar_memory(Bar::kVram).areas[0].size, 48u << 20);
  std::uint32_t word = 0;
  (*gpu)->read_vram_bar(50 << 20, base::as_writable_bytes(word));
  EXPECT_EQ(word, ~0u) << "no VRAM there";
}

TEST(GpuOptions, WhatCannotBeIsRefusedByName) {
  const FakeClock clock;
  const auto error_of = [&](auto change) {
    GpuOptions options = small();
    change(options);
    const auto gpu = Gpu::create(options, {.clock = clock});
    return gpu ? std::string() : gpu.error().message();
  };
  EXPECT_NE(error_of([](GpuOptions& o) { o.vram_bytes = 1; }).find("VRAM"), std::string::npos);
  EXPECT_NE(error_of([](GpuOptions& o) { o.bar0_bytes = 3 << 20; }).find("BAR 0"),
            std::string::npos);
  EXPECT_NE(error_of([](GpuOptions& o) { o.xccs = 9; }).find("XCC"), std::string::npos);
  EXPECT_NE(error_of([](GpuOptions& o) { o.mids = 0; }).find("MID"), std::string::npos);
  EXPECT_NE(error_of([](GpuOptions& o) { o.sdma_per_xcc = 3; }).find("SDMA"), std::string::npos);
  EXPECT_NE(error_of([](GpuOptions& o) { o.binary_major = 3; }).find("discovery"),
            std::string::npos);
}

TEST_F(GpuTest, DiscoveryTableAtItsPlace) {
  EXPECT_EQ(mm_read(kVram - 0x10000), 0x28211407u);
  EXPECT_EQ(read(0x94), kVram - 0x10000);
  EXPECT_EQ(read(0x96), mm_read(kVram - 0x10000 + 8) >> 16) << "its size is at byte 10";
}

// Registers at one dword twice are an assert of the register file.
TEST(GpuOptions, D6_BlocksNeverOverlapWhateverTheSeed) {
  const FakeClock clock;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    GpuOptions options = small();
    options.bases_seed = options.seed = seed;
    options.xccs = 8;
    options.mids = 4;
    EXPECT_TRUE(Gpu::create(options, {.clock = clock})) << seed;
  }
}

TEST(GpuOptions, DiscoveryTableByScratchOnly) {
  const FakeClock clock;
  GpuOptions options = small();
  options.bar0_bytes = 0;
  options.discovery = DiscoveryPlace::kScratchOnly;
  const auto gpu = Gpu::create(options, {.clock = clock});
  ASSERT_TRUE(gpu);
  const auto word = [&](std::uint64_t offset) {
    std::uint32_t value = 0;
    (*gpu)->read_vram_bar(offset, base::as_writable_bytes(value));
    return value;
  };
  EXPECT_NE(word(kVram - 0x10000), 0x28211407u);
  EXPECT_EQ(word((*gpu)->read_register(0x94 * 4)), 0x28211407u);
}

TEST_F(GpuTest, D6_SecondInstancesAreBeyondBar5BySmn) {
  const std::uint32_t far = gpu->bases().at(Ip::kMmhub, 1, 2) + 0x100;  // FB_LOCATION_BASE
  ASSERT_GE(far, Bases::kBar5Dwords);
  write(0xE, far * 4);
  EXPECT_EQ(read(0xF), 0x8000u);
  write(0xE, (gpu->bases().at(Ip::kGc, 1, 0) + 0x1624) * 4);
  EXPECT_EQ(read(0xF), 0x8000u);
}

TEST_F(GpuTest, D8_FramebufferLocationAndOffset) {
  EXPECT_EQ(read(at(Ip::kMmhub, 2, 0x100)), 0x8000u);
  EXPECT_EQ(read(at(Ip::kMmhub, 2, 0x102)), 0x8000u + kVram / (16 << 20) - 1);
  EXPECT_EQ(read(at(Ip::kMmhub, 2, 0x2EC)), 0x1100u) << "GPU 1";
}

TEST_F(GpuTest, D57_ClosedFramebufferReadsOnesAndDropsWrites) {
  put(0x1000, 0x1234u);
  write(kFbEn, 0);
  put(0x1000, 0x5678u);
  EXPECT_EQ(get(0x1000), ~0u);
  write(kFbEn, 3);
  EXPECT_EQ(get(0x1000), 0x1234u);
}

// Registers, VRAM, MMHUB 0, security processor and host flush in one path.
TEST_F(GpuTest, CommandThroughTheRingInVram) {
  open_aperture();
  const std::uint32_t mailbox = at(Ip::kMp0, 1, 0x80);
  write(mailbox + 5, static_cast<std::uint32_t>(kMc + 0x10000));
  write(mailbox + 6, static_cast<std::uint32_t>((kMc + 0x10000) >> 32));
  write(mailbox + 7, 4096);
  write(mailbox, 2 << 16);
  settle();
  ASSERT_EQ(read(mailbox), 0x8002'0000u);
  put(0x10000, kMc + 0x20000);
  put(0x10008, 1024u);
  put(0x1000C, kMc + 0x30000);
  put(0x10014, 0xABCDu);
  put(0x20004, 1u);
  put(0x20008, 0x53u);
  write(kFlush, 0);
  write(mailbox + 3, 16);
  settle();
  EXPECT_EQ(get(0x30000), 0xABCDu);
  EXPECT_EQ(get(0x20000 + 864), 0u);
  EXPECT_EQ(get(0x20000 + 864 + 64), 0x0001'0000u);
}

TEST_F(GpuTest, D27_InterruptsReachTheHost) {
  start_interrupts();
  ASSERT_TRUE(gpu->interrupts().raise(Iv{.client = 0x1C}));
  EXPECT_EQ(bus.msis, 0u);
  settle();
  EXPECT_EQ(bus.msis, 1u);
  EXPECT_EQ(bus.word(kHost), 0x1Cu);
}

TEST_F(GpuTest, D29_DoorbellsTrappedAndMapped) {
  start_interrupts();
  gpu->interrupts().raise(Iv{.client = 0x1C});
  settle();
  const std::uint32_t rptr = at(Ip::kOsssys, 0, 0x81);
  gpu->ring_doorbell(0x340 * 4, 32, 4);
  EXPECT_EQ(read(rptr), 0u);
  EXPECT_EQ(gpu->doorbells().counters().dropped_aperture, 1u);
  open_doorbells();
  gpu->ring_doorbell(0x340 * 4, 32, 4);
  EXPECT_EQ(read(rptr), 32u);

  const BarMemory memory = gpu->bar_memory(Bar::kDoorbells);
  auto page = *base::Mapping::map(memory.fd, memory.areas[0].offset, memory.areas[0].size,
                                  PROT_READ | PROT_WRITE);
  __atomic_store_n(page.at<std::uint32_t>(0x340 * 4), 64u, __ATOMIC_RELEASE);
  EXPECT_TRUE(gpu->look());
  EXPECT_EQ(read(rptr), 64u);
  EXPECT_FALSE(gpu->look());
  gpu->ring_doorbell(0x200 * 4, 64, 8);
  EXPECT_EQ(gpu->doorbells().counters().dropped_consumer, 1u) << "no SDMA queue listens";
}

TEST_F(GpuTest, D62_FlushByTheMappedPage) {
  const BarMemory memory = gpu->bar_memory(Bar::kRegisters);
  auto page = *base::Mapping::map(memory.fd, memory.areas[0].offset, memory.areas[0].size,
                                  PROT_READ | PROT_WRITE);
  EXPECT_EQ(*page.at<std::uint32_t>((0xDE3 - 0xC00) * 4), kVram >> 20);
  const auto before = gpu->nbio().flushes();
  __atomic_store_n(page.at<std::uint32_t>((kFlush - 0xC00) * 4), 0u, __ATOMIC_RELEASE);
  EXPECT_TRUE(gpu->look());
  EXPECT_EQ(gpu->nbio().flushes(), before + 1);
  write(kFbEn, 1);
  EXPECT_EQ(*page.at<std::uint32_t>((kFbEn - 0xC00) * 4), 1u) << "trapped writes show";
  write(0xE, kFbEn * 4);
  write(0xF, 2);
  EXPECT_EQ(*page.at<std::uint32_t>((kFbEn - 0xC00) * 4), 2u) << "by SMN too";
}

TEST_F(GpuTest, D56_ResetKeepsVramAndFirmwareRegisters) {
  gpu->set_nht(&nht);
  std::vector<bool> link;
  gpu->set_link_observer([&](bool up) { link.push_back(up); });
  open_doorbells();
  open_aperture();
  start_interrupts();
  put(0x1000, 0x77u);
  gpu->reset();
  EXPECT_EQ(get(0x1000), 0x77u);
  EXPECT_EQ(read(kAperEn), 0u);
  EXPECT_EQ(read(at(Ip::kOsssys, 0, 0x80)), 0u);
  EXPECT_EQ(read(at(Ip::kMmhub, 2, 0x100)), 0x8000u);
  EXPECT_EQ(read(0x94), kVram - 0x10000);
  EXPECT_EQ(mm_read(kVram - 0x10000), 0x28211407u);
  EXPECT_EQ(nht.resets, 1u);
  EXPECT_EQ(link, (std::vector<bool>{false, true}));
  EXPECT_EQ(gpu->accel_id(), 5u);
}

TEST_F(GpuTest, SurpriseRemovalReadsOnes) {
  start_interrupts();
  ASSERT_TRUE(hooks.run("device.gone", {{"gpu", "1"}}));
  EXPECT_TRUE(gpu->gone());
  EXPECT_FALSE(gpu->link_up());
  EXPECT_EQ(read(0xDE3), ~0u);
  EXPECT_EQ(get(0x1000), ~0u);
  gpu->interrupts().raise(Iv{.client = 1});
  EXPECT_FALSE(gpu->step());
  const BarMemory memory = gpu->bar_memory(Bar::kRegisters);
  auto page = *base::Mapping::map(memory.fd, memory.areas[0].offset, 4096, PROT_READ);
  EXPECT_EQ(*page.at<std::uint32_t>((0xDE3 - 0xC00) * 4), ~0u);
  ASSERT_TRUE(hooks.run("device.gone", {{"gpu", "1"}, {"on", "false"}}));
  EXPECT_EQ(read(0xDE3), kVram >> 20);
  EXPECT_EQ(*page.at<std::uint32_t>((0xDE3 - 0xC00) * 4), kVram >> 20);
}

TEST_F(GpuTest, RemovalAfterSoManyAccesses) {
  ASSERT_TRUE(hooks.run("device.gone", {{"gpu", "1"}, {"after", "2"}}));
  EXPECT_EQ(read(0xDE3), kVram >> 20);
  write(0xDE3, 0);
  EXPECT_FALSE(gpu->gone());
  EXPECT_EQ(read(0xDE3), ~0u);
  EXPECT_TRUE(gpu->gone());
  ASSERT_TRUE(hooks.run("device.gone", {{"gpu", "1"}, {"after", "1"}}));
  ASSERT_TRUE(hooks.run("device.gone", {{"gpu", "1"}, {"on", "false"}}));
  EXPECT_EQ(read(0xDE3), kVram >> 20);
  EXPECT_EQ(read(0xDE3), kVram >> 20) << "forgotten";
}

TEST_F(GpuTest, D54_IncomingAccessesNeedTheNpaSwitch) {
  gpu->set_nht(&nht);
  std::array<std::byte, 4> word{std::byte{7}};
  RemoteAccess access = write_of(word, 5ull << 41);
  EXPECT_EQ(gpu->incoming(access), Outcome::kRefused);
  access.npa = 0xFFFull << 40 | 5ull << 30 | 0x9 << 8 | 1 << 6;
  EXPECT_EQ(gpu->incoming(access), Outcome::kRefused);
  EXPECT_TRUE(nht.rung.empty());
}

TEST_F(GpuTest, D48_RemoteDoorbellReachesTheNhtBlock) {
  gpu->set_nht(&nht);
  ASSERT_TRUE(enable_npa());
  std::array<std::byte, 4> word{std::byte{7}};
  RemoteAccess access = write_of(word, 0xFFFull << 40 | 5ull << 30 | 0x9 << 8 | 1 << 6);
  EXPECT_EQ(gpu->incoming(access), Outcome::kOk);
  ASSERT_EQ(nht.rung.size(), 1u);
  EXPECT_EQ(nht.rung[0].sender, 6);
  EXPECT_EQ(nht.rung[0].port, 9u);
  EXPECT_EQ(nht.rung[0].index, 1u);
  EXPECT_EQ(nht.rung[0].value, 7u);
  std::array<std::byte, 8> wide{};
  access.write_from = wide;
  EXPECT_EQ(gpu->incoming(access), Outcome::kRefused) << "a doorbell is 4 bytes";
  gpu->set_link(false);
  access.write_from = word;
  EXPECT_EQ(gpu->incoming(access), Outcome::kPeerLost);
}

TEST_F(GpuTest, ScenarioCommands) {
  start_interrupts();
  ASSERT_TRUE(hooks.run("ih.drop_iv", {{"gpu", "1"}, {"client", "0x1c"}}));
  const auto raised = hooks.run("ih.raise", {{"gpu", "1"}, {"client", "0x1c"}, {"count", "3"}});
  ASSERT_TRUE(raised);
  EXPECT_EQ(*raised->number("raised"), 3u);
  settle();
  EXPECT_EQ(read(at(Ip::kOsssys, 0, 0x82)), 64u) << "one was lost";
  EXPECT_EQ(bus.word(kHost + 16), 1u);
  ASSERT_TRUE(hooks.run("ih.raise", {{"gpu", "1"}, {"client", "3"}, {"count", "40"}}));
  settle();
  const auto counters = hooks.run("device.counters", {{"gpu", "1"}});
  ASSERT_TRUE(counters);
  EXPECT_EQ(*counters->number("ih.overflows"), 1u);
  EXPECT_FALSE(hooks.run("ih.raise", {{"gpu", "1"}}));
  EXPECT_FALSE(hooks.run("ih.raise", {{"gpu", "1"}, {"client", "256"}}));
  EXPECT_FALSE(hooks.run("ih.delay_iv", {{"gpu", "1"}, {"us", "soon"}}));
}

TEST_F(GpuTest, ScenarioChangesTheConfiguration) {
  start_interrupts();
  write(at(Ip::kMp0, 1, 0x141), 0xFF);
  write(at(Ip::kMp0, 1, 0x142), 0);
  ASSERT_TRUE(hooks.run("psp.config", {{"gpu", "1"}, {"vpod_id", "3"}, {"vpod_size", "2"}}));
  settle();
  EXPECT_EQ(bus.word(kHost) & 0xFFFF, 0xFF1Eu);
  EXPECT_EQ(bus.word(kHost + 16), 0x0100'0001u);
  EXPECT_EQ(gpu->security_processor().config().vpod_id, 3u);
}

TEST_F(GpuTest, D56_ResetMayPoisonAllButTheTable) {
  ASSERT_TRUE(hooks.run("device.reset", {{"gpu", "1"}, {"poison", "true"}}));
  EXPECT_NE(get(0x1000), 0u);
  EXPECT_EQ(mm_read(kVram - 0x10000), 0x28211407u);
}

TEST_F(GpuTest, ItsScenariosGoWithIt) {
  gpu.reset();
  EXPECT_FALSE(hooks.run("device.counters", {{"gpu", "1"}}));
}

}  // namespace
}  // namespace gpusim
