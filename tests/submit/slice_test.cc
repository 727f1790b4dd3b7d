#include "daemon/submit/slice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "daemon/gpu/engine/sdma_packets.h"
#include "daemon/submit/fence.h"

namespace gpuumd {
namespace {

using base::Errc;
using base::GpuVa;

// Opcodes of an IB without its NOPs, by lengths of this test's own.
std::vector<std::uint32_t> opcodes(std::span<const std::uint32_t> ib) {
  static const std::map<std::uint32_t, std::size_t> dwords = {{1, 7},  {5, 4},  {6, 2},
                                                              {10, 8}, {11, 5}, {0x20D, 3}};
  std::vector<std::uint32_t> found;
  for (std::size_t at = 0; at < ib.size();) {
    const auto op = ib[at] & 0xFFFF;
    if (op != 0) found.push_back(op);
    if (op == 0)
      at += 1 + (ib[at] >> 16 & 0x3FFF);
    else if (op == 2)
      at += 5 + ib[at + 3];
    else
      at += dwords.at(op);
  }
  return found;
}

struct SliceTest : testing::Test {
  std::deque<Command> commands;
  std::map<std::uint64_t, std::shared_ptr<Fence>> fences;
  std::map<std::uint64_t, wire::FenceSlot> slots;
  FindFence find = [this](ObjectId id) -> FencePlace {
    const auto it = fences.find(id.value());
    if (it == fences.end()) return {};
    return {it->second, GpuVa(0x10'0000 + 64 * id.value())};
  };
  Slice slice;

  Fence& add_fence(std::uint64_t id) {
    return *(fences[id] = std::make_shared<Fence>(ObjectId(id), slots[id], 0));
  }
  base::Result<BuildStop> build() {
    slice.clear();
    auto stop = build_slice(commands, find, slice);
    EXPECT_TRUE(check_ib(slice.ib)) << "what is built must pass the check";
    EXPECT_EQ(slice.ib.size() % 8, 0u);
    EXPECT_LE(slice.ib.size(), kIbDwords);
    EXPECT_LE(slice.bytes, kSliceBytes);
    return stop;
  }
  void copy(std::uint64_t bytes, std::uint64_t from = 0x100'0000, std::uint64_t to = 0x900'0000) {
    commands.push_back(command::Copy{GpuVa(to), GpuVa(from), bytes});
  }
  void write(std::uint32_t bytes) {
    command::Write write;
    write.to = GpuVa(0x4000);
    write.bytes = bytes;
    commands.push_back(write);
  }
};

TEST_F(SliceTest, ACopyOfFourMiBIsOneSlice) {
  copy(kSliceBytes);
  const auto stop = build();
  ASSERT_TRUE(stop);
  EXPECT_EQ(*stop, BuildStop::kEmptyQueue);
  EXPECT_EQ(slice.bytes, kSliceBytes);
  EXPECT_EQ(opcodes(slice.ib), std::vector<std::uint32_t>{1});
}

TEST_F(SliceTest, ALargeCopyIsCutAndTheRestStaysInFront) {
  copy(kSliceBytes + 5, 0x100'0000, 0x900'0000);
  ASSERT_EQ(build().value(), BuildStop::kFull);
  EXPECT_EQ(slice.ib[1], kSliceBytes - 1);
  ASSERT_EQ(commands.size(), 1u);
  const auto& rest = std::get<command::Copy>(commands.front());
  EXPECT_EQ(rest.bytes, 5u);
  EXPECT_EQ(rest.from, GpuVa(0x100'0000 + kSliceBytes));
  EXPECT_EQ(rest.to, GpuVa(0x900'0000 + kSliceBytes));
  ASSERT_EQ(build().value(), BuildStop::kEmptyQueue);
  EXPECT_EQ(slice.bytes, 5u);
  EXPECT_EQ(slice.ib[1], 4u);
}

TEST_F(SliceTest, ALargeFillIsCutInWholeDwordsAfterAnOddCopy) {
  copy(3);
  commands.push_back(command::Fill{GpuVa(0x8000), 2 * kSliceBytes, 0xABCD});
  std::uint64_t filled = 0;
  for (int i = 0; i < 4 && !commands.empty(); ++i) {
    ASSERT_TRUE(build());
    filled += slice.bytes;
    EXPECT_EQ((slice.bytes - (i == 0 ? 3 : 0)) % 4, 0u);
  }
  EXPECT_TRUE(commands.empty());
  EXPECT_EQ(filled, 2 * kSliceBytes + 3);
}

TEST_F(SliceTest, NoCommandCarriesASliceOverItsLimit) {
  copy(kSliceBytes - 4);
  write(64);
  write(64);
  ASSERT_EQ(build().value(), BuildStop::kFull);
  EXPECT_EQ(commands.size(), 2u);
  ASSERT_EQ(build().value(), BuildStop::kEmptyQueue);
  EXPECT_EQ(slice.bytes, 128u);
}

TEST_F(SliceTest, ManySmallCommandsFillAnIbAndNoMore) {
  for (int i = 0; i < 200; ++i) write(64);
  std::size_t slices = 0, writes = 0;
  while (!commands.empty()) {
    const auto stop = build();
    ASSERT_TRUE(stop);
    EXPECT_EQ(*stop, commands.empty() ? BuildStop::kEmptyQueue : BuildStop::kFull);
    writes += opcodes(slice.ib).size();
    ++slices;
  }
  EXPECT_EQ(writes, 200u);
  EXPECT_GT(slices, 3u);
}

TEST_F(SliceTest, PacketsAreKeptInOrderByNops) {
  copy(16);
  copy(16);
  ASSERT_TRUE(build());
  EXPECT_EQ(slice.ib[7] & 0xFFFF, 0u) << "two COPYs without a NOP may overlap";
  EXPECT_EQ(slice.ib[8] & 0xFFFF, 1u);
}

TEST_F(SliceTest, EveryCommandBecomesItsPacket) {
  add_fence(1);
  copy(8);
  commands.push_back(command::Fill{GpuVa(0x8000), 64, 7});
  write(12);
  commands.push_back(
      command::Atomic{GpuVa(0x8000), command::AtomicOperation::kCompareSwap, 8, 5, 6});
  commands.push_back(command::Timestamp{GpuVa(0x8008)});
  commands.push_back(command::Signal{ObjectId(1), 0x1'0000'0002});
  ASSERT_EQ(build().value(), BuildStop::kEmptyQueue);
  EXPECT_EQ(opcodes(slice.ib), (std::vector<std::uint32_t>{1, 11, 2, 10, 0x20D, 5, 5}));
  EXPECT_EQ(slice.bytes, 8u + 64 + 12 + 8);
  ASSERT_EQ(slice.signals.size(), 1u);
  EXPECT_EQ(slice.signals[0].point, 0x1'0000'0002u);
}

// Low half first: what is seen in between is never above the new value.
TEST_F(SliceTest, VMB_23_ASignalWritesTheLowHalfFirst) {
  add_fence(2);
  commands.push_back(command::Signal{ObjectId(2), 0x5'0000'0009});
  ASSERT_TRUE(build());
  EXPECT_THAT(std::span(slice.ib).first(8), testing::ElementsAre(0x0003'0005u, 0x10'0080u, 0u, 9u,
                                                                 0x0003'0005u, 0x10'0084u, 0u, 5u));
}

TEST_F(SliceTest, AWaitStopsUntilItsPointIsReached) {
  auto& fence = add_fence(1);
  ASSERT_TRUE(fence.promise(4));
  copy(8);
  commands.push_back(command::Wait{ObjectId(1), 4});
  copy(16);
  ASSERT_EQ(build().value(), BuildStop::kWait);
  EXPECT_EQ(slice.bytes, 8u);
  EXPECT_EQ(commands.size(), 2u);
  ASSERT_EQ(build().value(), BuildStop::kWait);
  EXPECT_TRUE(slice.empty());
  fence.reach(4);
  ASSERT_EQ(build().value(), BuildStop::kEmptyQueue);
  EXPECT_EQ(slice.bytes, 16u);
}

TEST_F(SliceTest, AFailedWaitEndsTheBuildAndKeepsWhatCameBefore) {
  auto& fence = add_fence(1);
  ASSERT_TRUE(fence.promise(4));
  fence.fail(4, Errc::kPeerLost);
  copy(8);
  commands.push_back(command::Wait{ObjectId(1), 4});
  copy(16);
  EXPECT_EQ(build().error().code, Errc::kPeerLost);
  EXPECT_EQ(slice.bytes, 8u);
  EXPECT_EQ(commands.size(), 2u);
}

TEST_F(SliceTest, UnknownFencesAndPointsThatDoNotRise) {
  commands.push_back(command::Signal{ObjectId(9), 1});
  EXPECT_EQ(build().error().code, Errc::kNotFound);
  commands.clear();
  commands.push_back(command::Wait{ObjectId(9), 1});
  EXPECT_EQ(build().error().code, Errc::kNotFound);
  commands.clear();
  add_fence(1);
  commands.push_back(command::Signal{ObjectId(1), 2});
  commands.push_back(command::Signal{ObjectId(1), 2});
  EXPECT_EQ(build().error().code, Errc::kInvalidArgument);
  EXPECT_EQ(slice.signals.size(), 1u);
}

TEST_F(SliceTest, D31_AtomicsThatTheEngineLacksAreRefused) {
  using enum command::AtomicOperation;
  for (const auto operation : {kAnd, kOr, kXor}) {
    commands = {command::Atomic{GpuVa(0x8000), operation, 4, 1, 0}};
    EXPECT_EQ(build().error().code, Errc::kUnsupported);
    EXPECT_TRUE(slice.empty());
  }
  const std::map<command::AtomicOperation, std::pair<unsigned, unsigned>> codes = {
      {kSwap, {7, 39}}, {kCompareSwap, {8, 40}}, {kAdd, {15, 47}}};
  for (const auto& [operation, code] : codes)
    for (const std::uint8_t width : {4, 8}) {
      commands = {command::Atomic{GpuVa(0x8000), operation, width, 1, 2}};
      ASSERT_TRUE(build());
      EXPECT_EQ(slice.ib[0] >> 25, width == 8 ? code.second : code.first);
    }
}

// ---- the check ----

using Ib = std::vector<std::uint32_t>;

Ib padded(Ib ib) {
  while (ib.size() % 8 != 0) ib.push_back(0);
  return ib;
}
Ib with(auto build) {
  Ib ib;
  sdma::PacketWriter out(ib);
  build(out);
  return padded(ib);
}

TEST(CheckIb, EveryAllowedPacketPasses) {
  EXPECT_TRUE(check_ib({}));
  EXPECT_TRUE(check_ib(with([](auto& out) { sdma::nop(out, 6); })));
  EXPECT_TRUE(check_ib(with([](auto& out) { sdma::copy_linear(out, 0x1000, 0x2000, 5); })));
  const std::uint32_t data[16] = {0xFFFF'FFFF, 4, 14};
  EXPECT_TRUE(check_ib(with([&](auto& out) { sdma::write_linear(out, 0x1000, data); })));
  for (const auto size : {sdma::FillSize::kByte, sdma::FillSize::kWord, sdma::FillSize::kDword})
    EXPECT_TRUE(check_ib(with([&](auto& out) { sdma::const_fill(out, 0, 1, size, 4); })));
  EXPECT_TRUE(check_ib(with([](auto& out) { sdma::fence64(out, 0x1000, ~0ull); })));
  using enum sdma::AtomicCode;
  for (const auto code : {kSwap32, kCompareSwap32, kAdd32, kSwap64, kCompareSwap64, kAdd64})
    EXPECT_TRUE(check_ib(with([&](auto& out) { sdma::atomic(out, 0x1000, code, 1, 2); })));
  EXPECT_TRUE(check_ib(with([](auto& out) { sdma::timestamp_global(out, 0x1000); })));
}

TEST(CheckIb, EveryOtherOpcodeIsRefused) {
  const std::set<std::uint32_t> allowed = {0x000, 0x001, 0x002, 0x005, 0x00A, 0x00B, 0x20D};
  for (std::uint32_t op = 0; op < 0x100; ++op)
    for (std::uint32_t sub_op = 0; sub_op < 0x100; ++sub_op) {
      Ib ib(16);
      ib[0] = op | sub_op << 8;
      const bool good = check_ib(ib).has_value();
      ASSERT_EQ(good, allowed.contains(op | sub_op << 8)) << op << "." << sub_op;
    }
}

TEST(CheckIb, WhatTheDaemonAloneMaySendIsRefused) {
  EXPECT_FALSE(check_ib(with([](auto& out) { sdma::indirect(out, 0, 5, 0x1000, 8); })));
  EXPECT_FALSE(check_ib(with([](auto& out) { sdma::trap(out, 0); })));
  EXPECT_FALSE(
      check_ib(with([](auto& out) { sdma::pte_pde_generate(out, 0x1000, 1, 0x2000, 4096, 4); })));
  EXPECT_FALSE(check_ib(padded({14, 0x1234, 1}))) << "register write";
  EXPECT_FALSE(check_ib(padded({8 | 1u << 31 | 3u << 28, 0x1000, 0, 1, ~0u, 0}))) << "poll";
  EXPECT_FALSE(check_ib(padded({16 | 4u << 8, 0x08F8'0008, 0, 0}))) << "VM invalidation";
  EXPECT_FALSE(check_ib(padded({9, 0x1000, 0, 1, 2}))) << "COND_EXE";
  EXPECT_FALSE(check_ib(padded({17, 0, 0, 0, 0}))) << "GCR_REQ";
}

// Behind a good packet as well as in front, and not hidden in one.
TEST(CheckIb, APacketBehindAnotherIsFound) {
  auto ib = with([](auto& out) {
    sdma::copy_linear(out, 0, 0x1000, 4);
    out.dword(14);
    out.dword(0);
    out.dword(0);
  });
  EXPECT_FALSE(check_ib(ib));
  ib = with([](auto& out) {
    const std::uint32_t data[] = {14, 0, 0};
    sdma::write_linear(out, 0x1000, data);
  });
  EXPECT_TRUE(check_ib(ib)) << "data of a WRITE is no packet";
}

TEST(CheckIb, TruncatedPacketsAreRefused) {
  for (const std::uint32_t op : {1u, 5u, 10u, 11u, 0x20Du}) {
    Ib ib(8);
    ib[7] = op;
    EXPECT_FALSE(check_ib(ib)) << op;
  }
  EXPECT_FALSE(check_ib(Ib{8u << 16, 0, 0, 0, 0, 0, 0, 0})) << "a NOP over the end";
  EXPECT_FALSE(check_ib(Ib{2, 0, 0, 4, 0, 0, 0, 0})) << "a WRITE over the end";
  EXPECT_FALSE(check_ib(Ib{2, 0, 0, ~0u, 0, 0, 0, 0}));
  EXPECT_FALSE(check_ib(Ib{0, 0, 0, 0, 0, 2, 0, 0})) << "a WRITE without its count";
  EXPECT_FALSE(check_ib(Ib(7))) << "not a multiple of 8 dwords";
  EXPECT_FALSE(check_ib(Ib(kIbDwords + 8)));
}

// A fence or copy that leaves the VM would be a way round its page tables.
TEST(CheckIb, HeaderBitsThatLeaveTheVmAreRefused) {
  for (const unsigned bit : {19u, 20u, 22u, 23u, 24u, 28u})
    EXPECT_FALSE(check_ib(padded({5 | 3u << 16 | 1u << bit, 0x1000, 0, 1}))) << bit;
  for (unsigned bit = 16; bit < 32; ++bit) {
    EXPECT_FALSE(check_ib(padded({1 | 1u << bit, 3, 0, 0, 0, 0, 0}))) << bit;
    EXPECT_FALSE(check_ib(padded({2 | 1u << bit, 0, 0, 0, 0}))) << bit;
  }
  EXPECT_FALSE(check_ib(padded({10 | 1u << 16 | 47u << 25, 0, 0, 0, 0, 0, 0, 0}))) << "loop";
}

}  // namespace
}  // namespace gpuumd
