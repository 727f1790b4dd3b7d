#include "tools/gpusim/model/security_processor.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "tests/gpusim_blocks/fakes.h"

namespace gpusim {
namespace {

using std::chrono::milliseconds;

constexpr std::uint32_t kMailbox = 0x16080, kWptr = 0x16083, kRingLo = 0x16085;
constexpr std::uint32_t kBoot = 0x16061, kSwInt = 0x16141, kSwIntCtrl = 0x16142;
constexpr std::uint64_t kRing = 0x80'0010'0000, kCommand = 0x80'0011'0000, kFence = 0x80'0012'0000,
                        kRecord = 0x80'0013'0000;
constexpr std::uint32_t kRingBytes = 256;  // four frames

struct FakeSink : InterruptSink {
  std::vector<Iv> raised;
  bool on = true;
  bool raise(const Iv& iv) override {
    if (on) raised.push_back(iv);
    return on;
  }
  void raise_retry_fault(unsigned, std::uint64_t, const Iv&) override {}
  std::uint16_t pasid(bool, std::uint8_t) const override { return 0; }
};

GpuOptions member() {
  GpuOptions options;
  PodConfig& config = options.pod.config;
  config.accel_id = 5;
  config.ppod_id = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  config.ppod_size = 8;
  config.bandwidth = 800;
  config.latency = 900;
  config.vpod_id = 0x77;
  config.vpod_size = 2;
  config.active[0] = 1 << 5 | 1 << 6;
  config.addr_mode = 1;
  config.config_state = 5;
  return options;
}

class SecurityProcessorTest : public ::testing::Test {
 protected:
  explicit SecurityProcessorTest(GpuOptions with = {}) : options(with) {
    psp.set_address_space(space);
  }
  void settle() {
    while (psp.step()) {
    }
  }
  void open_ring() {
    registers.write(kRingLo, static_cast<std::uint32_t>(kRing));
    registers.write(kRingLo + 1, static_cast<std::uint32_t>(kRing >> 32));
    registers.write(kRingLo + 2, kRingBytes);
    registers.write(kMailbox, 2 << 16);
    settle();
    ASSERT_EQ(registers.read(kMailbox) & 0x8000'FFFF, 0x8000'0000u);
  }
  void put_body(std::size_t at, std::uint32_t word) { space.put(kCommand + 28 + at, word); }
  // Sends one command whose body stands in memory; the status of its response.
  std::uint32_t command(std::uint32_t id) {
    space.put(kCommand, std::uint32_t{1024});
    space.put(kCommand + 4, std::uint32_t{1});
    space.put(kCommand + 8, id);
    space.put(kCommand + 864, std::uint32_t{0x5555});
    const std::uint64_t frame = kRing + 4 * wptr;
    space.put(frame, kCommand);
    space.put(frame + 8, std::uint32_t{1024});
    space.put(frame + 12, kFence);
    space.put(frame + 20, ++fence);
    wptr = (wptr + 16) % (kRingBytes / 4);
    registers.write(kWptr, wptr);
    settle();
    EXPECT_EQ(space.get<std::uint32_t>(kFence), fence);
    return space.get<std::uint32_t>(kCommand + 864);
  }
  std::uint32_t answer() const { return space.get<std::uint32_t>(kCommand + 864 + 64); }
  void clear_body() {
    for (std::size_t at = 0; at < 400; at += 4) put_body(at, 0);
  }

  GpuOptions options;
  Bases bases{options};
  RegisterFile registers;
  FakeClock clock;
  FakeSink sink;
  FakeSpace space{0x80'0010'0000, 0x40000};
  SecurityProcessor psp{registers, bases, options, clock, sink};
  std::uint32_t wptr = 0;
  std::uint32_t fence = 0;
};

class Member : public SecurityProcessorTest {
 protected:
  Member() : SecurityProcessorTest(member()) {}
};

TEST_F(SecurityProcessorTest, D53_MailboxIsReadyAtReset) {
  EXPECT_EQ(registers.read(kMailbox), 0x8000'0000u);
  EXPECT_EQ(registers.read(kBoot), 0x8000'0000u);
}

TEST_F(SecurityProcessorTest, LateBootAndLateAnswers) {
  psp.set_boot_delay(milliseconds(50));
  psp.set_answer_delay(milliseconds(20));
  EXPECT_EQ(registers.read(kBoot), 0u);
  EXPECT_TRUE(psp.waiting());
  clock.advance(milliseconds(50));
  EXPECT_NE(registers.read(kBoot), 0u);
  registers.write(kMailbox, 3 << 16);
  EXPECT_EQ(registers.read(kMailbox) >> 31, 0u);
  settle();
  EXPECT_EQ(registers.read(kMailbox) >> 31, 0u);
  EXPECT_TRUE(psp.waiting());
  clock.advance(milliseconds(20));
  settle();
  EXPECT_EQ(registers.read(kMailbox), 0x8003'0000u);
}

TEST_F(SecurityProcessorTest, SignOfLifeRises) {
  const auto before = registers.read(0x16091);
  EXPECT_NE(before, 0u);
  clock.advance(milliseconds(300));
  EXPECT_EQ(registers.read(0x16091), before + 3);
}

TEST_F(SecurityProcessorTest, BadRingIsRefused) {
  registers.write(kRingLo, 0x10'0000);
  registers.write(kRingLo + 1, 0x80);
  registers.write(kRingLo + 2, 100);
  registers.write(kMailbox, 2 << 16);
  settle();
  EXPECT_NE(registers.read(kMailbox) & 0xFFFF, 0u);
  EXPECT_NE(registers.read(kMailbox) & 0x8000'0000, 0u);
}

TEST_F(SecurityProcessorTest, D53_PointerCountsDwordsAndWraps) {
  open_ring();
  EXPECT_EQ(registers.read(kWptr), 0u);
  for (int n = 0; n < 9; ++n) EXPECT_EQ(command(0x53), 0u);
  EXPECT_EQ(answer(), 0x0001'0000u);
  EXPECT_EQ(psp.counters().commands, 9u);
}

TEST_F(SecurityProcessorTest, D53_BadPointerIsCountedAndIgnored) {
  open_ring();
  registers.write(kWptr, 8);
  registers.write(kWptr, 64);
  settle();
  EXPECT_EQ(psp.counters().bad_pointers, 2u);
  EXPECT_EQ(psp.counters().commands, 0u);
}

TEST_F(SecurityProcessorTest, D53_UnknownCommand) {
  open_ring();
  EXPECT_EQ(command(0x5B), 0xFFFF'0006u);
  EXPECT_EQ(command(0x20), 0xFFFF'0006u);
}

TEST_F(SecurityProcessorTest, D52_WithoutAPodFile) {
  open_ring();
  clear_body();
  put_body(0, static_cast<std::uint32_t>(kRecord >> 32));
  put_body(4, static_cast<std::uint32_t>(kRecord));
  put_body(8, 180);
  EXPECT_EQ(command(0x54), 0u);
  EXPECT_EQ(answer(), 180u);
  EXPECT_EQ(space.get<std::uint32_t>(kRecord + 4), 0xFFFF'FFFFu);
  EXPECT_EQ(space.get<std::uint32_t>(kRecord + 36), 0u);
  EXPECT_EQ(space.get<std::uint32_t>(kRecord + 176), 0u);
}

TEST_F(Member, D53_ConfigRecord) {
  open_ring();
  clear_body();
  put_body(0, static_cast<std::uint32_t>(kRecord >> 32));
  put_body(4, static_cast<std::uint32_t>(kRecord));
  put_body(8, 4096);
  space.put(kRecord + 180, std::uint32_t{0xA5A5});
  ASSERT_EQ(command(0x54), 0u);
  const auto word = [&](std::size_t at) { return space.get<std::uint32_t>(kRecord + at); };
  EXPECT_EQ(word(0), 1u);
  EXPECT_EQ(word(4), 5u);
  EXPECT_EQ(word(8), 0x0403'0201u);
  EXPECT_EQ(word(24), 8u);
  EXPECT_EQ(word(28), 800u);
  EXPECT_EQ(word(32), 900u);
  EXPECT_EQ(word(36), 0x77u);
  EXPECT_EQ(word(40), 2u);
  EXPECT_EQ(word(44), 0x60u);
  EXPECT_EQ(word(172), 1u);
  EXPECT_EQ(word(176), 5u);
  EXPECT_EQ(word(180), 0xA5A5u) << "180 bytes, not more";
}

TEST_F(Member, D53_SmallBufferOrOddTypeIsRefused) {
  open_ring();
  clear_body();
  put_body(0, static_cast<std::uint32_t>(kRecord >> 32));
  put_body(4, static_cast<std::uint32_t>(kRecord));
  put_body(8, 179);
  EXPECT_EQ(command(0x54), 1u);
  put_body(8, 180);
  put_body(12, 2);
  EXPECT_EQ(command(0x54), 1u);
  put_body(12, 3);
  EXPECT_EQ(command(0x54), 0u);
}

TEST_F(SecurityProcessorTest, D52_StatesOfAConfiguration) {
  open_ring();
  clear_body();
  put_body(0, 3);
  put_body(20, 4);
  EXPECT_EQ(command(0x55), 0u);
  EXPECT_EQ(psp.config().config_state, 1u);
  EXPECT_EQ(psp.config().accel_id, 3u);
  clear_body();
  put_body(0, 1);
  EXPECT_EQ(command(0x57), 0u);
  EXPECT_EQ(psp.config().config_state, 4u);
  clear_body();
  put_body(0, 9);
  put_body(4, 2);
  put_body(8, 0b1001);
  EXPECT_EQ(command(0x56), 0u);
  EXPECT_EQ(psp.config().config_state, 5u) << "the controller completes at once";
  EXPECT_EQ(psp.config().active[0], 0b1001u);
  EXPECT_EQ(command(0x56), 1u) << "closed in state 5 with a virtual pod";
  EXPECT_EQ(command(0x57), 1u);
  EXPECT_EQ(command(0x55), 1u);
}

TEST_F(Member, D52_OpenAgainOnceTheVirtualPodIsGone) {
  open_ring();
  PodConfig left = psp.config();
  left.vpod_id = 0;
  psp.update_config(left);
  clear_body();
  put_body(0, 0x78);
  put_body(4, 2);
  EXPECT_EQ(command(0x56), 0u);
  EXPECT_EQ(psp.config().vpod_id, 0x78u);
}

TEST_F(SecurityProcessorTest, PhysicalPodIsChecked) {
  open_ring();
  clear_body();
  put_body(0, 4);
  put_body(20, 4);
  EXPECT_EQ(command(0x55), 1u) << "id not below the size";
  put_body(20, 257);
  EXPECT_EQ(command(0x55), 1u);
  put_body(0, 9);
  EXPECT_EQ(command(0x56), 1u) << "no physical pod yet";
}

TEST_F(Member, StationConfigReadsBack) {
  options.pod.config.vpod_id = 0;
  open_ring();
  PodConfig left = psp.config();
  left.vpod_id = 0;
  psp.update_config(left);
  clear_body();
  put_body(0, 0x0000'0204);
  put_body(4, 0xDDCC'BBAA);
  EXPECT_EQ(command(0x57), 0u);
  EXPECT_EQ(command(0x58), 0u);
  EXPECT_EQ(answer(), 0x0204u);
  EXPECT_EQ(space.get<std::uint32_t>(kCommand + 864 + 64 + 4), 0xDDCC'BBAAu);
}

TEST_F(Member, D54_NpaSwitch) {
  open_ring();
  clear_body();
  put_body(0, 14);
  put_body(4, 1);
  EXPECT_EQ(command(0x59), 1u);
  EXPECT_FALSE(psp.npa_enabled());
  put_body(0, 15);
  EXPECT_EQ(command(0x59), 0u);
  EXPECT_TRUE(psp.npa_enabled());
  put_body(4, 0);
  EXPECT_EQ(command(0x59), 0u);
  EXPECT_FALSE(psp.npa_enabled());
}

TEST_F(Member, NoticesAreMaskedAcknowledgedAndCompletedInTurn) {
  open_ring();
  psp.update_config(psp.config());
  psp.notify(SecurityProcessor::Notice::kPause);
  settle();
  EXPECT_TRUE(sink.raised.empty()) << "masked at reset";
  registers.write(kSwInt, 0xFF);
  registers.write(kSwIntCtrl, 0);
  settle();
  ASSERT_EQ(sink.raised.size(), 1u);
  EXPECT_EQ(sink.raised[0].client, 0x1E);
  EXPECT_EQ(sink.raised[0].source, 0xFF);
  EXPECT_EQ(sink.raised[0].src_data[0], 0x0100'0001u);
  EXPECT_EQ(registers.read(kSwInt), 0x1FFu);
  registers.write(kSwIntCtrl, 1 << 8);
  EXPECT_EQ(registers.read(kSwInt), 0xFFu);
  settle();
  EXPECT_EQ(sink.raised.size(), 1u) << "not completed yet";
  clear_body();
  put_body(0, 2);
  EXPECT_EQ(command(0x5A), 1u) << "another command than the one outstanding";
  put_body(0, 1);
  put_body(4, 1);
  EXPECT_EQ(command(0x5A), 0u);
  EXPECT_EQ(psp.last_completion()->status, 1u);
  ASSERT_EQ(sink.raised.size(), 2u);
  EXPECT_EQ(sink.raised[1].src_data[0], 0x0100'0002u);
}

TEST_F(SecurityProcessorTest, CommandsOutsideVmidZeroMemoryAreLost) {
  open_ring();
  space.put(kRing, std::uint64_t{0x1000});
  registers.write(kWptr, 16);
  settle();
  EXPECT_EQ(psp.counters().lost_accesses, 1u);
  EXPECT_EQ(psp.counters().commands, 0u);
}

TEST_F(SecurityProcessorTest, MalformedCommandIsAnsweredWithAStatus) {
  open_ring();
  space.put(kCommand + 4, std::uint32_t{2});  // version
  space.put(kCommand + 8, std::uint32_t{0x53});
  space.put(kRing, kCommand);
  space.put(kRing + 8, std::uint32_t{1024});
  space.put(kRing + 12, kFence);
  space.put(kRing + 20, std::uint32_t{7});
  registers.write(kWptr, 16);
  settle();
  EXPECT_EQ(space.get<std::uint32_t>(kCommand + 864), 1u);
  EXPECT_EQ(space.get<std::uint32_t>(kFence), 7u);
}

TEST_F(Member, D56_ResetClosesRingAndNpa) {
  open_ring();
  clear_body();
  put_body(0, 15);
  put_body(4, 1);
  ASSERT_EQ(command(0x59), 0u);
  registers.reset();
  psp.reset();
  EXPECT_FALSE(psp.npa_enabled());
  EXPECT_EQ(registers.read(kMailbox), 0x8000'0000u);
  registers.write(kWptr, 16);
  settle();
  EXPECT_EQ(psp.counters().commands, 1u) << "no ring";
  EXPECT_EQ(psp.config().config_state, 5u) << "the controller's configuration stays";
}

TEST_F(SecurityProcessorTest, ModeOneResetIsPassedOn) {
  unsigned resets = 0;
  psp.set_reset_request([&] { ++resets; });
  registers.write(kMailbox, 7 << 16);
  settle();
  EXPECT_EQ(resets, 1u);
}

}  // namespace
}  // namespace gpusim
