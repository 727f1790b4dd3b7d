#include "tools/gpusim/model/interrupt_handler.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/gpusim_blocks/fakes.h"

namespace gpusim {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint64_t kHost = 0x7'1000'0000;  // IOVA of the host's memory
constexpr std::uint64_t kRing0 = kHost, kRing1 = kHost + 0x8000, kWriteBack = kHost + 0x10000;
constexpr std::uint32_t kLogDwords = 7;  // 512 bytes: 16 vectors
constexpr std::uint32_t kRingBytes = 512;
constexpr std::uint32_t kEnable = 1, kWriteBackEnable = 1 << 8, kOverflowEnable = 1 << 16,
                        kIntr = 1 << 17, kRearm = 1 << 21, kBus = 2u << 28, kGpuVa = 4u << 28,
                        kOverflowClear = 1u << 31;
constexpr std::uint32_t kRing0Cntl =
    kEnable | kLogDwords << 1 | kWriteBackEnable | kOverflowEnable | kIntr | kRearm | kBus;
constexpr std::uint32_t kRing1Cntl = kEnable | kLogDwords << 1 | kBus;

class InterruptHandlerTest : public ::testing::Test {
 protected:
  InterruptHandlerTest() {
    ih.set_host(&bus);
    ih.set_address_space(space);
    program(0x83, kRing0);
    registers.write(base + 0x85, static_cast<std::uint32_t>(kWriteBack >> 32));
    registers.write(base + 0x86, static_cast<std::uint32_t>(kWriteBack));
    registers.write(base + 0x80, kRing0Cntl);
  }
  void program(std::uint32_t offset, std::uint64_t address) {
    registers.write(base + offset, static_cast<std::uint32_t>(address >> 8));
    registers.write(base + offset + 1, static_cast<std::uint32_t>(address >> 40));
  }
  void start_ring1() {
    program(0x8F, kRing1);
    registers.write(base + 0x8C, kRing1Cntl);
  }
  void raise(std::uint32_t mark, std::uint8_t client = 0x0A, std::uint8_t source = 0x31) {
    Iv iv{.client = client, .source = source};
    iv.src_data[0] = mark;
    ASSERT_TRUE(ih.raise(iv));
  }
  void settle() {
    while (ih.step()) {
    }
  }
  std::uint32_t vector_word(unsigned slot, unsigned dword, std::uint64_t ring = kRing0) const {
    return bus.word(ring + 32 * slot + 4 * dword);
  }
  std::uint32_t wptr() { return registers.read(base + 0x82); }

  GpuOptions options;
  Bases bases{options};
  std::uint32_t base = bases.at(Ip::kOsssys, 0, 0);
  RegisterFile registers;
  FakeClock clock;
  FakeBus bus{kHost, 0x20000};
  FakeSpace space{0x4000'0000, 0x20000};
  InterruptHandler ih{registers, bases, options, clock};
};

TEST_F(InterruptHandlerTest, VectorLayout) {
  Iv iv{.client = 0x1B,
        .source = 1,
        .ring_id = 0x12,
        .vmid = 5,
        .vmid_src_mmhub = true,
        .pasid = 0xABCD,
        .node_id = 3,
        .src_data = {0x1111, 0x2222, 0x3333, 0x4444}};
  clock.advance(seconds(100));
  ASSERT_TRUE(ih.raise(iv));
  settle();
  EXPECT_EQ(vector_word(0, 0), 0x8512'011Bu);
  const std::uint64_t ticks = 10'000'000'000u + 100'000;  // 100 MHz (D36); the clock began at 1 ms
  EXPECT_EQ(vector_word(0, 1), static_cast<std::uint32_t>(ticks));
  EXPECT_EQ(vector_word(0, 2), static_cast<std::uint32_t>(ticks >> 32));
  EXPECT_EQ(vector_word(0, 3), 0x0003'ABCDu);
  EXPECT_EQ(vector_word(0, 4), 0x1111u);
  EXPECT_EQ(vector_word(0, 7), 0x4444u);
  EXPECT_EQ(registers.read(base + 0x20), 0x8512'011Bu);  // COOKIE_0
}

TEST_F(InterruptHandlerTest, D36_TimestampIsTakenWhenTheEventHappens) {
  raise(1);
  clock.advance(seconds(1));
  settle();
  EXPECT_EQ(vector_word(0, 1), 100'000u);
}

TEST_F(InterruptHandlerTest, D27_RingThenWriteBackThenMsi) {
  raise(7);
  EXPECT_EQ(bus.word(kWriteBack), 0u) << "host memory is reached from step() only";
  settle();
  EXPECT_EQ(vector_word(0, 4), 7u);
  EXPECT_EQ(bus.word(kWriteBack), 32u);
  EXPECT_EQ(wptr(), 32u);
  EXPECT_EQ(bus.msis, 1u);
  EXPECT_EQ(bus.last_vector, 0u);
}

TEST_F(InterruptHandlerTest, TheLineIsLetGoWhenTheReadPointerHasReachedTheWritePointer) {
  raise(1);
  raise(2);
  settle();
  EXPECT_EQ(bus.lowered, 0u);
  registers.write(base + 0x81, 32);
  EXPECT_EQ(bus.lowered, 0u) << "one is left";
  registers.write(base + 0x81, 64);
  EXPECT_EQ(bus.lowered, 1u);
}

TEST_F(InterruptHandlerTest, TheLineIsLetGoByAReset) {
  raise(1);
  settle();
  const auto before = bus.lowered;
  ih.reset();
  EXPECT_EQ(bus.lowered, before + 1);
}

TEST_F(InterruptHandlerTest, D27_OneMsiUntilTheReadPointerIsWritten) {
  raise(1);
  raise(2);
  settle();
  raise(3);
  settle();
  EXPECT_EQ(bus.msis, 1u);
  registers.write(base + 0x81, 96);
  settle();
  EXPECT_EQ(bus.msis, 1u) << "the ring is empty";
  raise(4);
  settle();
  EXPECT_EQ(bus.msis, 2u);
}

TEST_F(InterruptHandlerTest, D27_ReadPointerShortOfTheWritePointerFiresAtOnce) {
  raise(1);
  raise(2);
  settle();
  registers.write(base + 0x81, 32);
  settle();
  EXPECT_EQ(bus.msis, 2u);
}

TEST_F(InterruptHandlerTest, D27_WithoutRearmEachVectorHasItsMsi) {
  registers.write(base + 0x80, kRing0Cntl & ~kRearm);
  raise(1);
  raise(2);
  settle();
  EXPECT_EQ(bus.msis, 2u);
  registers.write(base + 0x80, kRing0Cntl & ~(kRearm | kIntr));
  raise(3);
  settle();
  EXPECT_EQ(bus.msis, 2u);
}

TEST_F(InterruptHandlerTest, D27_OverflowGoesOnOverTheOldest) {
  for (std::uint32_t n = 0; n < 15; ++n) raise(n);
  settle();
  EXPECT_EQ(wptr(), 15u * 32);
  raise(15);
  settle();
  EXPECT_EQ(wptr(), 1u) << "pointers equal, RB_OVERFLOW";
  EXPECT_EQ(bus.word(kWriteBack), 1u);
  EXPECT_NE(registers.read(base + 0xC2) & 1 << 5, 0u);
  raise(16);
  settle();
  EXPECT_EQ(vector_word(0, 4), 16u);
  EXPECT_EQ(wptr(), 33u) << "the bit stays and is no part of the offset";
  EXPECT_EQ(ih.counters().overflows, 1u);

  registers.write(base + 0x81, 64);  // the oldest intact one
  registers.write(base + 0x80, kRing0Cntl | kOverflowClear);
  registers.write(base + 0x80, kRing0Cntl);
  EXPECT_EQ(wptr(), 32u);
  raise(17);
  settle();
  EXPECT_EQ(wptr(), 64u | 1u) << "full once more: overflow is recorded again";
}

TEST_F(InterruptHandlerTest, D27_WithoutOverflowEnableVectorsWait) {
  registers.write(base + 0x80, kRing0Cntl & ~kOverflowEnable);
  for (std::uint32_t n = 0; n < 20; ++n) raise(n);
  settle();
  EXPECT_EQ(wptr(), 15u * 32);
  EXPECT_EQ(ih.queued(), 5u);
  registers.write(base + 0x81, 15 * 32);
  settle();
  EXPECT_EQ(ih.queued(), 0u);
  EXPECT_EQ(wptr(), 20 * 32 % kRingBytes);
  EXPECT_EQ(vector_word(3, 4), 19u);
}

TEST_F(InterruptHandlerTest, D26_GpuVirtualRingGoesThroughVmidZero) {
  registers.write(base + 0x80, 0);
  program(0x83, 0x4000'0000);
  registers.write(base + 0x85, 0);
  registers.write(base + 0x86, 0x4001'0000);
  registers.write(base + 0x80, (kRing0Cntl & ~(7u << 28)) | kGpuVa);
  raise(0x77);
  settle();
  EXPECT_EQ(space.get<std::uint32_t>(0x4000'0010), 0x77u);
  EXPECT_EQ(space.get<std::uint32_t>(0x4001'0000), 32u);
}

TEST_F(InterruptHandlerTest, D26_AddressesUseAllTheirBits) {
  FakeBus high(0x1F0'1234'5678'0000 & ~0xFFull, 0x1000);
  ih.set_host(&high);
  registers.write(base + 0x80, 0);
  program(0x83, 0x1F0'1234'5678'0000);
  registers.write(base + 0x80, kRing0Cntl & ~kWriteBackEnable);
  EXPECT_EQ(registers.read(base + 0x84), 0x1F0'12u);
  raise(9);
  settle();
  EXPECT_EQ(high.word(0x1F0'1234'5678'0010), 9u);
}

TEST_F(InterruptHandlerTest, LostWritesAreCountedAndThePointerGoesOn) {
  program(0x83, 0x1000);
  raise(1);
  settle();
  EXPECT_EQ(ih.counters().lost_writes, 1u);
  EXPECT_EQ(bus.refused, 1u);
  EXPECT_EQ(wptr(), 32u);
}

TEST_F(InterruptHandlerTest, AFaultOfItsOwnAccessRaisesNothing) {
  registers.write(base + 0x80, (kRing0Cntl & ~(7u << 28 | kWriteBackEnable)) | kGpuVa);
  space.on_fault = [this] { ih.raise(Iv{.client = 0x12}); };
  raise(1);
  settle();
  EXPECT_EQ(ih.counters().written, 1u);
  EXPECT_EQ(ih.counters().lost_writes, 2u);
}

TEST_F(InterruptHandlerTest, SwitchedOffNothingIsRaised) {
  registers.write(base + 0x80, kRing0Cntl & ~kEnable);
  EXPECT_FALSE(ih.raise(Iv{.client = 1}));
  ih.raise_retry_fault(0, 5, Iv{.client = 0x1B, .source = 1});
  EXPECT_EQ(ih.counters().off, 2u);
  EXPECT_FALSE(ih.waiting()) << "no CAM entry for a vector that nobody can get";
}

TEST_F(InterruptHandlerTest, SwitchingOffForgetsWhatWasNotWritten) {
  raise(1);
  registers.write(base + 0x80, kRing0Cntl & ~kEnable);
  registers.write(base + 0x80, kRing0Cntl);
  settle();
  EXPECT_EQ(wptr(), 0u);
}

TEST_F(InterruptHandlerTest, D29_DoorbellsNeedTheirEnableBit) {
  raise(1);
  settle();
  registers.write(base + 0x87, 0x340);
  EXPECT_FALSE(ih.doorbell(0x340, 32, false));
  registers.write(base + 0x87, 0x1000'0340);
  EXPECT_TRUE(ih.doorbell(0x340, 32, false));
  EXPECT_EQ(registers.read(base + 0x81), 32u);
  EXPECT_FALSE(ih.doorbell(0x341, 64, false));
}

TEST_F(InterruptHandlerTest, OddReadPointersAreRoundedAndCounted) {
  registers.write(base + 0x81, 0x47);
  EXPECT_EQ(registers.read(base + 0x81), 0x40u);
  EXPECT_EQ(ih.counters().bad_pointers, 1u);
}

TEST_F(InterruptHandlerTest, Ring1GetsRoutedClientsAndRing0TheNews) {
  start_ring1();
  registers.write(base + 0xC1, 0x108);
  registers.write(base + 0x122, 0);
  registers.write(base + 0x123, 0x0A | 0x31 << 8 | 1 << 16);
  raise(1, 0x0A, 0x31);
  raise(2, 0x0A, 0x32);
  settle();
  EXPECT_EQ(vector_word(0, 4, kRing1), 1u);
  EXPECT_EQ(registers.read(base + 0x8E), 32u);
  EXPECT_EQ(wptr(), 64u);
  bool self_seen = false;
  for (unsigned slot = 0; slot < 2; ++slot)
    self_seen |= vector_word(slot, 0) == 0x0001'0000u && vector_word(slot, 4) == 32u;
  EXPECT_TRUE(self_seen);
  EXPECT_EQ(ih.counters().self_interrupts, 1u);
  EXPECT_EQ(bus.msis, 1u) << "ring 1 raises none of its own";
}

TEST_F(InterruptHandlerTest, D27_Ring1WithoutOverflowWaits) {
  start_ring1();
  registers.write(base + 0x123, 0x0A);  // all sources of the client
  for (std::uint32_t n = 0; n < 17; ++n) raise(n);
  settle();
  EXPECT_EQ(registers.read(base + 0x8E), 15u * 32);
  EXPECT_EQ(ih.queued(), 2u);
  EXPECT_NE(registers.read(base + 0xC2) & 1 << 12, 0u);
  EXPECT_EQ(wptr(), 0u) << "no self interrupt without CNTL2 bit 8";
}

TEST_F(InterruptHandlerTest, D15_RetryFaultCarriesItsIndexAndIsRaisedOnce) {
  registers.write(base + 0xAC, 0x1'000F);
  for (int n = 0; n < 5; ++n) ih.raise_retry_fault(0, 0x55, Iv{.client = 0x1B, .source = 1});
  ih.raise_retry_fault(0, 0x56, Iv{.client = 0x1B, .source = 1});
  settle();
  EXPECT_EQ(wptr(), 64u);
  EXPECT_NE(vector_word(0, 7), vector_word(1, 7));
  EXPECT_EQ(ih.cam_counters().filtered, 4u);
}

TEST_F(InterruptHandlerTest, D16_AckByDoorbellAndByRegister) {
  registers.write(base + 0xAC, 0x1'000F);
  registers.write(base + 0x88, 0x1000'0344);
  ih.raise_retry_fault(0, 0x55, Iv{.client = 0x1B, .source = 1});
  ih.raise_retry_fault(0, 0x56, Iv{.client = 0x1B, .source = 1});
  settle();
  EXPECT_TRUE(ih.doorbell(0x344, vector_word(0, 7), false));
  registers.write(base + 0xA4, vector_word(1, 7));
  EXPECT_EQ(ih.cam_counters().acknowledged, 2u);
  EXPECT_NE(registers.read(base + 0xC2) & 1 << 19, 0u);
  EXPECT_FALSE(ih.waiting());
}

TEST_F(InterruptHandlerTest, D16_RaisedAgainAfterASecond) {
  registers.write(base + 0xAC, 0x1'000F);
  ih.raise_retry_fault(0, 0x55, Iv{.client = 0x1B, .source = 1});
  settle();
  EXPECT_TRUE(ih.waiting());
  clock.advance(milliseconds(999));
  settle();
  EXPECT_EQ(wptr(), 32u);
  clock.advance(milliseconds(1));
  settle();
  EXPECT_EQ(wptr(), 64u);
  EXPECT_EQ(vector_word(0, 7), vector_word(1, 7));
}

TEST_F(InterruptHandlerTest, PasidTablesAreApart) {
  EXPECT_NE(ih.pasid(false, 3) | ih.pasid(true, 3) | ih.pasid(false, 4), 0)
      << "reset values are noise";
  registers.write(base + 0x003, 0x1'0042);
  registers.write(base + 0x013, 0x43);
  EXPECT_EQ(ih.pasid(false, 3), 0x42);
  EXPECT_EQ(ih.pasid(true, 3), 0x43);
}

TEST_F(InterruptHandlerTest, D28_OneDieIgnoresTheLutIndex) {
  registers.write(base + 0x28, 1);
  registers.write(base + 0x005, 0x77);
  registers.write(base + 0x28, 0);
  EXPECT_EQ(registers.read(base + 0x005), 0x77u);
  EXPECT_EQ(ih.pasid(false, 5), 0x77);
}

TEST_F(InterruptHandlerTest, D56_ResetStopsItAndForgets) {
  registers.write(base + 0xAC, 0x1'000F);
  ih.raise_retry_fault(0, 0x55, Iv{.client = 0x1B, .source = 1});
  registers.reset();
  ih.reset();
  EXPECT_EQ(ih.queued(), 0u);
  EXPECT_FALSE(ih.waiting());
  EXPECT_EQ(registers.read(base + 0x80), 0u);
  EXPECT_FALSE(ih.raise(Iv{}));
}

TEST_F(InterruptHandlerTest, ScenarioDropsDelaysAndDuplicates) {
  unsigned count = 0;
  ih.set_filter([&](const Iv&) -> InterruptHandler::Verdict {
    switch (count++) {
      case 0:
        return {.drop = true};
      case 1:
        return {.delay = milliseconds(5)};
      case 2:
        return {.duplicates = 1};
      default:
        return {};
    }
  });
  for (std::uint32_t n = 0; n < 3; ++n) raise(n);
  settle();
  EXPECT_EQ(wptr(), 64u);
  EXPECT_EQ(vector_word(0, 4), 2u);
  EXPECT_EQ(vector_word(1, 4), 2u);
  EXPECT_TRUE(ih.waiting());
  clock.advance(milliseconds(5));
  settle();
  EXPECT_EQ(vector_word(2, 4), 1u) << "overtaken by a later one";
}

TEST_F(InterruptHandlerTest, NoClientNoMsiUntilTheNextOne) {
  ih.set_host(nullptr);
  raise(1);
  settle();
  EXPECT_EQ(ih.counters().lost_writes, 2u);
  ih.set_host(&bus);
  settle();
  EXPECT_EQ(bus.msis, 1u);
}

TEST_F(InterruptHandlerTest, VersionIs710) { EXPECT_EQ(registers.read(base + 0xA5), 0x0701u); }

}  // namespace
}  // namespace gpusim
