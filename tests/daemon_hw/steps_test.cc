// The first steps of bring-up against a device that answers, answers late, wrongly, or not at all.

#include "daemon/gpu/bringup/steps.h"

#include <gtest/gtest.h>

#include "daemon/gpu/bringup/nbio_setup.h"
#include "daemon/gpu/bringup/reset.h"
#include "daemon/gpu/registers/nbio.h"
#include "tests/daemon_hw/discovery_builder.h"
#include "tests/fake/fake_pci_device.h"
#include "tests/fake/fake_register_io.h"
#include "tests/fake/manual_reactor.h"

namespace {

using base::Errc;
using daemon_hw::DiscoveryBuilder;
using gpuumd::BringUp;
using gpuumd::Step;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint32_t kMiB = 1024;  // of VRAM
constexpr std::uint64_t kVram = kMiB * base::kMiB;
constexpr std::uint64_t kDefaultPlace = kVram - 64 * base::kKiB;
constexpr std::uint32_t kBootLoader = 0x16061, kMemSize = 0x0DE3, kScratch = 0x94;
constexpr std::uint16_t kMemory = 2, kBusMaster = 4;

class StepsTest : public testing::Test {
 protected:
  StepsTest() {
    vram_ = device_.add_bar(vfio::BarIndex::k0, 64 * base::kKiB);
    device_.add_bar(vfio::BarIndex::k2, 2 * base::kMiB);
    boot_.io = &io_;
    io_.values[kBootLoader] = 0x80000000;
    io_.values[kMemSize] = kMiB;
    io_.on_read[1] = [this] { return window(io_); };
    put_table(DiscoveryBuilder::gpu().build(), kDefaultPlace);
    put_memory(0x19800);
    put_memory(0x59800);
    for (const std::uint32_t gc : {0x1260u, 0x41260u}) put_memory(gc + 0x1524);
  }

  // FB_LOCATION at the hub part that starts at `base`, FB_OFFSET where an MMHUB has it.
  void put_memory(std::uint32_t base) {
    io_.values[base + 0x100] = 0x8000;
    io_.values[base + 0x102] = 0x8000 + kMiB / 16 - 1;
    io_.values[base + 0x2ec] = 0x100;
  }
  void put_table(std::vector<std::byte> bytes, std::uint64_t at) {
    table_ = std::move(bytes);
    table_at_ = at;
  }
  // MM_DATA at the address of MM_INDEX and MM_INDEX_HI.
  std::uint32_t window(fake::FakeRegisterIo& io) {
    const std::uint32_t index = io.values[0];
    EXPECT_NE(index & 0x80000000, 0u) << "bit 31 says VRAM";
    const std::uint64_t at = (std::uint64_t{io.values[6]} << 31) + (index & 0x7FFFFFFF);
    std::uint32_t word = 0;
    for (unsigned i = 0; i < 4; ++i)
      if (at + i >= table_at_ && at + i < table_at_ + table_.size())
        word |= std::to_integer<std::uint32_t>(table_[at + i - table_at_]) << (8 * i);
    return word;
  }

  template <class... Steps>
  base::Result<void> run(Steps... steps) {
    std::vector<Step> list;
    (list.push_back(std::move(steps)), ...);
    bring_up_.emplace(reactor_, [this] { return io_.lost() || device_.lost(); }, std::move(list));
    std::optional<base::Result<void>> result;
    bring_up_->start([&](base::Result<void> r) { result = std::move(r); });
    reactor_.advance(seconds(30));
    EXPECT_TRUE(result) << "every step ends";
    return result ? *result : base::fail(Errc::kTimeout, "the test");
  }
  base::Result<void> run_all() {
    return run(gpuumd::pci_step(device_, boot_), gpuumd::boot_loader_step(boot_),
               gpuumd::discovery_step(boot_), gpuumd::nbio_step(boot_));
  }
  void expect_error(const base::Result<void>& result, Errc code, const char* text) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, code) << result.error().message();
    EXPECT_NE(result.error().step.find(text), std::string::npos) << result.error().message();
  }

  fake::ManualReactor reactor_;
  fake::FakePciDevice device_;
  fake::FakeRegisterIo io_;
  std::shared_ptr<fake::FakeBar::State> vram_;
  std::vector<std::byte> table_;
  std::uint64_t table_at_ = 0;
  gpuumd::BootState boot_;
  std::optional<BringUp> bring_up_;
};

TEST_F(StepsTest, FromResetToDiscovered) {
  const auto up = run_all();
  ASSERT_TRUE(up) << up.error().message();
  EXPECT_EQ(boot_.vram_size, kVram);
  EXPECT_EQ(boot_.topology.xccs.size(), 2u);
  EXPECT_EQ(boot_.topology.fb_base.value(), 0x80'0000'0000u);
  EXPECT_EQ(device_.command() & kMemory, kMemory);
  EXPECT_EQ(device_.command() & kBusMaster, 0) << "off until the interrupts' sequence";
  EXPECT_EQ(io_.values[0xD20 + 0x100], 3u) << "BIF_FB_EN";
  EXPECT_EQ(io_.values[0xD20 + 0x1F7], 0xFFFFFu);
  EXPECT_EQ(io_.values[0xD20 + 0x0C0], 1u);
  EXPECT_EQ(io_.values[0xD20 + 0x1CB + 12], 0xE001001Du + (80 << 17)) << "SDMA's route";
  EXPECT_EQ(io_.values[0xD20 + 0x1CC + 12], 3u);
}

TEST_F(StepsTest, TableThroughBar0WhenItReaches) {
  constexpr std::uint32_t kSmallMiB = 16;
  io_.values[kMemSize] = kSmallMiB;
  vram_ = device_.add_bar(vfio::BarIndex::k0, kSmallMiB * base::kMiB);
  std::ranges::copy(table_, vram_->bytes.end() - 64 * base::kKiB);
  table_.clear();
  const auto up = run_all();
  ASSERT_TRUE(up) << up.error().message();
  for (const auto& access : io_.log) EXPECT_NE(access.dword, 1u) << "MM_DATA";
}

TEST_F(StepsTest, TableWhereTheScratchRegistersPoint) {
  constexpr std::uint64_t kAt = 0x2000'1000;
  put_table(DiscoveryBuilder::gpu().build(), kAt);
  io_.values[kScratch] = static_cast<std::uint32_t>(kAt);
  io_.values[kScratch + 2] = 10 * 1024;
  const auto up = run_all();
  ASSERT_TRUE(up) << up.error().message();
}

TEST_F(StepsTest, WindowAbove2GiBUsesTheHighIndex) {
  constexpr std::uint32_t kBigMiB = 6 * 1024;
  io_.values[kMemSize] = kBigMiB;
  table_at_ = kBigMiB * base::kMiB - 64 * base::kKiB;
  for (const std::uint32_t base : {0x19800u, 0x59800u, 0x1260u + 0x1524, 0x41260u + 0x1524})
    io_.values[base + 0x102] = 0x8000 + kBigMiB / 16 - 1;
  const auto up = run_all();
  ASSERT_TRUE(up) << up.error().message();
  EXPECT_EQ(io_.values[6], 2u);
}

TEST_F(StepsTest, WindowAcrossA2GiBBoundary) {
  constexpr std::uint32_t kBigMiB = 6 * 1024;
  constexpr std::uint32_t kAt = 0x7FFF'FF00;
  io_.values[kMemSize] = kBigMiB;
  put_table(DiscoveryBuilder::gpu().build(), kAt);
  ASSERT_GT(table_.size(), 0x100u);
  io_.values[kScratch] = kAt;
  io_.values[kScratch + 2] = 10 * 1024;
  for (const std::uint32_t base : {0x19800u, 0x59800u, 0x1260u + 0x1524, 0x41260u + 0x1524})
    io_.values[base + 0x102] = 0x8000 + kBigMiB / 16 - 1;
  const auto up = run_all();
  ASSERT_TRUE(up) << up.error().message();
}

TEST_F(StepsTest, NoTableAnywhere) {
  table_.clear();
  expect_error(run_all(), Errc::kNotFound, "Discovery: no signature at VRAM 0x000000003fff0000");
}

TEST_F(StepsTest, ScratchRegistersPointingOutsideVram) {
  table_.clear();
  io_.values[kScratch + 1] = 0x1000;
  io_.values[kScratch + 2] = 4096;
  expect_error(run_all(), Errc::kProtocol, "DRIVER_SCRATCH");
  io_.values[kScratch + 1] = 0;
  io_.values[kScratch] = 0xFFFFFFF1;
  expect_error(run_all(), Errc::kProtocol, "DRIVER_SCRATCH");
}

TEST_F(StepsTest, TableLargerThanItsPlace) {
  table_[10] = std::byte{0xFF};
  table_[11] = std::byte{0xFF};
  expect_error(run_all(), Errc::kProtocol, "65535 bytes in a place of 10240");
}

TEST_F(StepsTest, BootLoaderThatNeverEnds) {
  io_.values[kBootLoader] = 0x00000123;
  expect_error(run_all(), Errc::kTimeout, "BootLoader: C2PMSG_33 reads 0x00000123");
}

TEST_F(StepsTest, BootLoaderThatTakesItsTime) {
  io_.on_read[kBootLoader] = [n = 0]() mutable { return ++n < 200 ? 0u : 0x80000000u; };
  EXPECT_TRUE(run_all());
}

TEST_F(StepsTest, AllOnesIsNoBootLoader) {
  io_.values[kBootLoader] = ~0u;
  expect_error(run_all(), Errc::kTimeout, "C2PMSG_33 reads 0xffffffff");
}

TEST_F(StepsTest, SizeOfVramThatMakesNoSense) {
  io_.values[kMemSize] = 0;
  expect_error(run_all(), Errc::kUnsupported, "no VRAM");
  io_.values[kMemSize] = ~0u;
  expect_error(run_all(), Errc::kDeviceLost, "RCC_CONFIG_MEMSIZE");
}

TEST_F(StepsTest, WrongVendorOrClass) {
  device_.who.vendor = 0x10DE;
  expect_error(run_all(), Errc::kUnsupported, "PciReady: PCI vendor 0x10de");
  device_.who.vendor = 0x1002;
  device_.who.class_code = 0x020000;
  expect_error(run_all(), Errc::kUnsupported, "PCI class 0x020000");
  for (const std::uint32_t good : {0x030000u, 0x038000u, 0x120000u}) {
    device_.who.class_code = good;
    EXPECT_TRUE(run(gpuumd::pci_step(device_, boot_)));
  }
}

TEST_F(StepsTest, WhatTheBackendRemarksIsToldToUsers) {
  ASSERT_TRUE(run_all());
  EXPECT_TRUE(boot_.remarks.empty());
  device_.who.backend_remark = "opened by the back door: the front one is locked";
  ASSERT_TRUE(run_all());
  EXPECT_EQ(boot_.remarks, std::vector<std::string>{device_.who.backend_remark});
}

TEST_F(StepsTest, MissingBar) {
  device_.bars.erase(vfio::BarIndex::k2);
  expect_error(run_all(), Errc::kNotFound, "doorbell BAR (2)");
  device_.bars.erase(vfio::BarIndex::k0);
  expect_error(run_all(), Errc::kNotFound, "VRAM BAR (0)");
}

TEST_F(StepsTest, DoorbellBarThatIsTooSmall) {
  device_.add_bar(vfio::BarIndex::k2, 64);
  expect_error(run_all(), Errc::kUnsupported, "doorbell BAR (2) of 64 bytes");
}

TEST_F(StepsTest, CommandRegisterThatDoesNotTake) {
  device_.on_config_write = [this](std::uint32_t offset, std::uint32_t) {
    device_.config[offset] = std::byte{0};
  };
  expect_error(run_all(), Errc::kDeviceError, "PCI command reads 0x");
}

// Whatever the access at which the device goes, bring-up ends at once, says so, and names a step.
TEST_F(StepsTest, DeviceLostAtAnyAccess) {
  ASSERT_TRUE(run_all());
  const auto accesses = static_cast<unsigned>(io_.log.size());
  ASSERT_GT(accesses, 100u);
  for (unsigned n = 1; n <= accesses; n += n < 20 || n + 40 > accesses ? 1 : 29) {
    fake::FakeRegisterIo io;
    io.values = io_.values;
    io.on_read[1] = [&] { return window(io); };
    io.lose_at(n);
    gpuumd::BootState boot;
    boot.io = &io;
    std::vector<Step> steps;
    steps.push_back(gpuumd::pci_step(device_, boot));
    steps.push_back(gpuumd::boot_loader_step(boot));
    steps.push_back(gpuumd::discovery_step(boot));
    steps.push_back(gpuumd::nbio_step(boot));
    BringUp bring_up(reactor_, [&] { return io.lost(); }, std::move(steps));
    std::optional<base::Result<void>> result;
    bring_up.start([&](base::Result<void> r) { result = std::move(r); });
    reactor_.advance(seconds(1));
    ASSERT_TRUE(result) << n;
    ASSERT_FALSE(*result) << n;
    EXPECT_EQ(result->error().code, Errc::kDeviceLost) << n << result->error().message();
    EXPECT_EQ(device_.command() & kBusMaster, 0);
  }
}

TEST_F(StepsTest, ShutdownEndsWithBusMasteringOff) {
  ASSERT_TRUE(run_all());
  ASSERT_TRUE(gpuumd::set_bus_master(device_, true));
  EXPECT_EQ(device_.command() & kBusMaster, kBusMaster);
  std::optional<std::size_t> registers_at_that_time;
  device_.on_config_write = [&](std::uint32_t, std::uint32_t) {
    registers_at_that_time = io_.log.size();
  };
  bool down = false;
  bring_up_->shut_down([&](base::Result<void> r) { down = r.has_value(); });
  reactor_.advance(seconds(1));
  EXPECT_TRUE(down);
  EXPECT_EQ(device_.command() & kBusMaster, 0);
  EXPECT_EQ(registers_at_that_time, io_.log.size()) << "the last thing of all";
  EXPECT_EQ(io_.values[0xD20 + 0x0C0], 0u) << "doorbells off";
  EXPECT_EQ(io_.values[0xD20 + 0x1CB + 12], 0u) << "and their routes";
}

// ---- reset ----

constexpr std::uint32_t kPspMailbox = 0x16080;

class ResetTest : public StepsTest {
 protected:
  ResetTest() { io_.values[kPspMailbox] = 0x8000'0000; }

  base::Result<void> run_reset() {
    return run(gpuumd::reset_step(device_, boot_), gpuumd::pci_step(device_, boot_),
               gpuumd::mode1_reset_step(device_, boot_));
  }
};

TEST_F(ResetTest, AFunctionThatWasResetIsNotResetAgain) {
  ASSERT_TRUE(run_reset());
  EXPECT_FALSE(io_.written_at(kPspMailbox));
  EXPECT_TRUE(boot_.remarks.empty());
}

TEST_F(ResetTest, TheSecurityProcessorResetsWhereTheFunctionMustNotBe) {
  device_.no_reset = "this part dies of it";
  unsigned reads = 0;
  // The command register is as after power on, and the mailbox answers after a while.
  io_.on_write[kPspMailbox] = [&](std::uint32_t value) {
    EXPECT_EQ(value, 0x0007'0000u);
    EXPECT_TRUE(device_.write_config(4, 2, kBusMaster));
    io_.on_read[kPspMailbox] = [&reads] {
      ++reads;
      return reads < 3 ? 0x0007'0000u : reads < 5 ? ~0u : 0x8000'0000u;
    };
  };
  const auto done = run_reset();
  ASSERT_TRUE(done) << done.error().message();
  EXPECT_EQ(reads, 5u);
  EXPECT_EQ(device_.command() & (kMemory | kBusMaster), kMemory);
  ASSERT_EQ(boot_.remarks.size(), 1u);
  EXPECT_NE(boot_.remarks[0].find("this part dies of it"), std::string::npos);
}

TEST_F(ResetTest, AResetThatLeavesTheMarkHasDoneNothing) {
  ASSERT_TRUE(run_reset());
  ASSERT_FALSE(io_.written_at(kPspMailbox));
  io_.on_write[kPspMailbox] = [&](std::uint32_t) { io_.values[kPspMailbox] = 0x8000'0000; };
  ASSERT_TRUE(run_reset());  // registers as they were
  EXPECT_TRUE(io_.written_at(kPspMailbox));
  ASSERT_EQ(boot_.remarks.size(), 1u);
}

TEST_F(ResetTest, AResetByOthersIsSeenByTheMarkWhereRegistersAnswer) {
  ASSERT_TRUE(run_reset());
  constexpr std::uint32_t kMark = 0x97, kVramMib = 0x0DE3;
  gpuumd::RegisterBlock::Bases bases;
  bases.fill(gpuumd::RegisterBlock::kAbsent);
  bases[2] = 0x0D20;
  boot_.topology.nbio = gpuumd::RegisterBlock(io_, bases);
  boot_.vram_size = 256 * base::kMiB;
  io_.values[kVramMib] = 256;
  EXPECT_FALSE(gpuumd::reset_since(boot_));
  io_.values[kMark] = 0;
  EXPECT_TRUE(gpuumd::reset_since(boot_));
  for (const auto nothing : {0u, ~0u}) {
    io_.values[kMark] = io_.values[kVramMib] = nothing;
    EXPECT_FALSE(gpuumd::reset_since(boot_)) << nothing;
  }
}

TEST_F(ResetTest, ADeviceThatHasNotBootedIsLeftAlone) {
  device_.no_reset = "no way";
  io_.values[kBootLoader] = 0;
  ASSERT_TRUE(run_reset());
  EXPECT_FALSE(io_.written_at(kPspMailbox));
}

TEST_F(ResetTest, ARefusedOrUnansweredModeOneResetIsSaid) {
  device_.no_reset = "no way";
  io_.on_write[kPspMailbox] = [&](std::uint32_t) { io_.values[kPspMailbox] = 0x8000'0001; };
  expect_error(run_reset(), Errc::kDeviceError, "mode-1 reset");
  boot_.function_reset_refused.clear();
  io_.values[kPspMailbox] = 0x8000'0000;
  io_.on_write[kPspMailbox] = [&](std::uint32_t) { io_.values[kPspMailbox] = 0; };
  expect_error(run_reset(), Errc::kTimeout, "after a mode-1 reset");
}

TEST(NbioSetup, InterruptControl) {
  fake::FakeRegisterIo io;
  const gpuumd::RegisterBlock nbio(io, {0, 0x14, 0xD20, 0, 0, 0, 0, 0});
  io.values[0xD20 + 0x0F1] = 0xFFFFFFFF;
  gpuumd::set_interrupt_control(nbio, base::Iova(0x12'3456'7000));
  EXPECT_EQ(io.values[0xD20 + 0x0F1], 0xFFFFFFF6u);
  EXPECT_EQ(io.values[0xD20 + 0x0F2], 0x12345670u);
}

TEST(NbioSetup, SelfRingApertureIsTheDoorbellBar) {
  fake::FakeRegisterIo io;
  const gpuumd::RegisterBlock nbio(io, {0, 0x14, 0xD20, 0, 0, 0, 0, 0});
  gpuumd::enable_doorbells(nbio, 0x38'0020'0000);
  EXPECT_EQ(io.values[0xD20 + 0x0F3], 0x38u);
  EXPECT_EQ(io.values[0xD20 + 0x0F4], 0x00200000u);
  EXPECT_EQ(io.values[0xD20 + 0x0F5], 3u);
}

TEST(NbioSetup, MoreSdmaEnginesThanARouteCanTake) {
  fake::FakeRegisterIo io;
  const gpuumd::RegisterBlock nbio(io, {0, 0x14, 0xD20, 0, 0, 0, 0, 0});
  EXPECT_TRUE(gpuumd::route_sdma_doorbells(nbio, 12));
  const auto before = io.log.size();
  const auto refused = gpuumd::route_sdma_doorbells(nbio, 13);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, base::Errc::kUnsupported);
  EXPECT_EQ(io.log.size(), before);
}

}  // namespace
