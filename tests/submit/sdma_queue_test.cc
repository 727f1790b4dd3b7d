#include "daemon/gpu/engine/sdma_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/gpu/engine/sdma_packets.h"
#include "tests/submit/engine_rig.h"

namespace gpuumd {
namespace {

using base::Errc;
using test::EngineRig;

constexpr std::uint32_t kQueue3 = fake::SdmaEngine::kGc0 + 3 * 0x3C;

struct SdmaQueueTest : testing::Test {
  EngineRig rig;
  std::vector<std::uint32_t> nops(std::size_t dwords) { return std::vector<std::uint32_t>(dwords); }
};

TEST_F(SdmaQueueTest, ProgramsItsRegistersAndEnablesLast) {
  auto queue = rig.make_queue(3, 8192);
  queue.program();
  const auto& r = rig.io.values;
  // Enabled, 2^11 dwords, read pointer written back, privileged; VMID 0.
  EXPECT_EQ(r.at(kQueue3 + 0x200), 1u | 11u << 1 | 1u << 12 | 1u << 23);
  EXPECT_EQ(r.at(kQueue3 + 0x20F), 1u << 28);
  EXPECT_EQ(r.at(kQueue3 + 0x211), (EngineRig::kFirstDoorbell + 6) << 2);
  EXPECT_EQ(r.at(kQueue3 + 0x209) & 1, 1u);
  EXPECT_EQ(r.at(kQueue3 + 0x21B), 0u);
  const auto base = r.at(kQueue3 + 0x201) | std::uint64_t{r.at(kQueue3 + 0x202)} << 32;
  EXPECT_NE(rig.memory.find(0, base << 8, 8192), nullptr);
  const auto back = r.at(kQueue3 + 0x207) | std::uint64_t{r.at(kQueue3 + 0x208)} << 32;
  EXPECT_NE(rig.memory.find(0, back, 16), nullptr);
  // Nothing but the enable of IBs comes after the ring's.
  const auto writes = rig.io.writes();
  ASSERT_GE(writes.size(), 2u);
  EXPECT_EQ(writes[writes.size() - 2].dword, kQueue3 + 0x200);
  EXPECT_EQ(writes.back().dword, kQueue3 + 0x209);
  EXPECT_EQ(writes.front().dword, kQueue3 + 0x200);
  EXPECT_EQ(writes.front().value & 1, 0u) << "disabled while it is changed";
}

TEST_F(SdmaQueueTest, ASubmissionIsPaddedAndRungOnce) {
  auto queue = rig.make_queue(3);
  queue.program();
  ASSERT_TRUE(queue.submit(nops(3)));
  EXPECT_EQ(queue.write_dwords(), 16u);
  ASSERT_EQ(rig.doorbells.state().doorbells.size(), 1u);
  EXPECT_EQ(rig.doorbells.state().doorbells[0].offset, (EngineRig::kFirstDoorbell + 6) * 4u);
  EXPECT_EQ(rig.doorbells.state().doorbells[0].value, 64u);
  EXPECT_FALSE(queue.empty());
  rig.engine.run(3);
  EXPECT_TRUE(queue.empty());
}

// The engine may read at once.
TEST_F(SdmaQueueTest, AllIsInMemoryWhenTheDoorbellRings) {
  auto queue = rig.make_queue(3, 1024);
  queue.program();
  const auto place = [&](std::uint32_t low) {
    return rig.io.values.at(kQueue3 + low) | std::uint64_t{rig.io.values.at(kQueue3 + low + 1)}
                                                 << 32;
  };
  const auto* ring = rig.memory.find(0, place(0x201) << 8, 1024);
  const auto* pointers = rig.memory.find(0, place(0x207), 16);
  unsigned rings = 0;
  rig.doorbells.state().on_doorbell = [&](std::uint64_t, std::uint64_t value) {
    ++rings;
    std::uint64_t told = 0;
    std::uint32_t last = 0;
    std::memcpy(&told, pointers + 8, 8);
    std::memcpy(&last, ring + 15 * 4, 4);
    EXPECT_EQ(told, value);
    EXPECT_EQ(last, 0x1234u);
  };
  std::vector<std::uint32_t> packets(16, 0x1234);
  ASSERT_TRUE(queue.submit(packets));
  EXPECT_EQ(rings, 1u);
}

TEST_F(SdmaQueueTest, PacketsWrapRoundTheRing) {
  auto queue = rig.make_queue(3, 1024);  // 256 dwords
  queue.program();
  auto word = rig.allocate(64);
  for (std::uint32_t i = 1; i <= 100; ++i) {
    std::vector<std::uint32_t> packets;
    sdma::PacketWriter out(packets);
    sdma::nop(out, 20);
    sdma::fence(out, word.at.value(), i);
    ASSERT_TRUE(queue.submit(packets)) << i;
    rig.engine.run(3);
    ASSERT_EQ(word.word().load(), i);
  }
  EXPECT_FALSE(rig.engine.stopped(3));
}

TEST_F(SdmaQueueTest, AFullRingTakesNothing) {
  auto queue = rig.make_queue(3, 1024);
  queue.program();
  const auto room = queue.space();
  EXPECT_EQ(room, 240u);
  ASSERT_TRUE(queue.submit(nops(room)));
  EXPECT_EQ(queue.space(), 0u);
  EXPECT_EQ(queue.submit(nops(1)).error().code, Errc::kAgain);
  EXPECT_EQ(rig.doorbells.state().doorbells.size(), 1u) << "a refusal has no effect";
  rig.engine.run(3);
  EXPECT_TRUE(queue.submit(nops(1)));
}

TEST_F(SdmaQueueTest, ANonsenseReadPointerIsNotBelieved) {
  auto queue = rig.make_queue(3, 1024);
  queue.program();
  const auto at = rig.io.values[kQueue3 + 0x207] | std::uint64_t{rig.io.values[kQueue3 + 0x208]}
                                                       << 32;
  auto* word = rig.memory.find(0, at, 8);
  const auto set = [&](std::uint64_t value) { std::memcpy(word, &value, 8); };
  ASSERT_TRUE(queue.submit(nops(64)));
  set(128);
  EXPECT_EQ(queue.consumed(), 128u);
  set(~0ull);  // ahead of what was submitted
  EXPECT_EQ(queue.consumed(), 128u);
  set(4);  // backwards
  EXPECT_EQ(queue.consumed(), 128u);
  set(256);
  EXPECT_TRUE(queue.empty());
}

// A fence tells more than the pointer that is written back now and then.
TEST_F(SdmaQueueTest, D32_WhatAFencePassedIsConsumed) {
  auto queue = rig.make_queue(3, 1024);
  queue.program();
  ASSERT_TRUE(queue.submit(nops(64)));
  queue.passed(200);
  EXPECT_EQ(queue.consumed(), 200u);
  queue.passed(100);
  queue.passed(1 << 20);
  EXPECT_EQ(queue.consumed(), 200u);
}

TEST_F(SdmaQueueTest, ProgrammingAgainStartsEmpty) {
  auto queue = rig.make_queue(3);
  queue.program();
  ASSERT_TRUE(queue.submit(nops(32)));
  queue.disable();
  EXPECT_FALSE(rig.engine.enabled(3));
  queue.program();
  EXPECT_TRUE(queue.empty());
  EXPECT_EQ(queue.write_dwords(), 0u);
}

TEST(SdmaPackets, IndirectEndsOnEightDwords) {
  for (std::uint64_t start = 0; start < 16; ++start) {
    std::vector<std::uint32_t> packets;
    sdma::PacketWriter out(packets);
    sdma::indirect(out, start, 5, 0x1000, 8);
    EXPECT_EQ((start + packets.size()) % 8, 0u) << start;
    EXPECT_LT(packets.size(), 6u + 8u);
    EXPECT_EQ(packets[packets.size() - 6], 4u | 5u << 16);
  }
}

struct InstanceTest : testing::Test {
  EngineRig rig;
  SdmaInstance instance{rig.registers(), "SDMA 0.0"};
};

TEST_F(InstanceTest, D5_StartAllowsTheInterruptsOfStoppedQueues) {
  rig.io.values[fake::SdmaEngine::kGc1 + 0x588E] = 1;
  instance.start();
  EXPECT_EQ(rig.io.values[fake::SdmaEngine::kGc0 + 0x00D], 1u | 7u << 11);
  EXPECT_EQ(rig.io.values[fake::SdmaEngine::kGc0 + 0x037] & 0x61F, 9u | 3u << 9);
  EXPECT_EQ(rig.io.writes().back().dword, fake::SdmaEngine::kGc1 + 0x588E) << "released last";
  EXPECT_EQ(rig.io.values[fake::SdmaEngine::kGc1 + 0x588E], 0u);
}

TEST_F(InstanceTest, AQueueResetIsAnsweredOrTimesOut) {
  const auto now = rig.reactor.now();
  const auto deadline = now + std::chrono::milliseconds(100);
  EXPECT_FALSE(instance.poll_queue_reset(now)) << "none was asked for";
  instance.request_queue_reset(4, deadline);
  EXPECT_EQ(rig.io.writes().back().value, 1u << 4);
  auto answer = instance.poll_queue_reset(now);
  ASSERT_TRUE(answer);
  EXPECT_TRUE(*answer);
  EXPECT_FALSE(instance.poll_queue_reset(now)) << "answered once";

  rig.engine.deaf[4] = true;
  instance.request_queue_reset(4, deadline);
  EXPECT_FALSE(instance.poll_queue_reset(now));
  answer = instance.poll_queue_reset(deadline);
  ASSERT_TRUE(answer);
  ASSERT_FALSE(*answer);
  EXPECT_EQ(answer->error().code, Errc::kTimeout);
  EXPECT_THAT(answer->error().step, testing::HasSubstr("SDMA 0.0"));
}

TEST_F(InstanceTest, HaltForgetsAPendingReset) {
  rig.engine.deaf[4] = true;
  instance.request_queue_reset(4, rig.reactor.now());
  instance.halt();
  EXPECT_EQ(rig.engine.instance_resets, 1u);
  EXPECT_FALSE(instance.poll_queue_reset(rig.reactor.now()));
}

}  // namespace
}  // namespace gpuumd
