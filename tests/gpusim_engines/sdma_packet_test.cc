// Each packet, on a privileged ring in VMID 0.

#include <gtest/gtest.h>

#include <cstring>

#include "base/bytes.h"
#include "tests/gpusim_engines/bench.h"

namespace gpusim::test {
namespace {

constexpr std::uint8_t kGfx = 0x0A;

class Packets : public ::testing::Test {
 protected:
  static constexpr std::uint64_t mc(std::uint64_t offset) { return Bench::kFbBase + offset; }
  void pattern(std::uint64_t offset, std::uint64_t bytes) {
    for (std::uint64_t i = 0; i < bytes; ++i)
      bench.vram->cpu_view()[offset + i] = static_cast<std::byte>(i * 7 + (i >> 8));
  }
  bool equal(std::uint64_t a, std::uint64_t b, std::uint64_t bytes) {
    const auto view = bench.vram->cpu_view();
    return std::memcmp(view.data() + a, view.data() + b, bytes) == 0;
  }
  void go() { ring.submit().run(); }
  void stopped_with(std::uint8_t source) {
    EXPECT_EQ(bench.interrupts.of(kGfx, source).size(), 1u);
    EXPECT_EQ(bench.interrupts.ivs.size(), 1u);
    EXPECT_FALSE(ring.empty());
  }
  Bench bench;
  Ring ring{bench};
};

TEST_F(Packets, CopyOfAnySizeAndAlignment) {
  pattern(0, 300'000);
  ring.copy(mc(3), mc(0x20'0001), 299'990);
  go();
  EXPECT_TRUE(ring.empty());
  EXPECT_TRUE(equal(3, 0x20'0001, 299'990));
  EXPECT_EQ(bench.vram->cpu_view()[0x20'0001 + 299'990], std::byte{0});
  EXPECT_EQ(bench.sdma0->counters().bytes_copied, 299'990u);
}

TEST_F(Packets, LargeCopyPastTheCaches) {
  pattern(0, 5 << 20);
  ring.copy(mc(0), mc(8 << 20), 5 << 20);
  go();
  EXPECT_TRUE(equal(0, 8 << 20, 5 << 20));
}

TEST_F(Packets, CopyBetweenVramAndTheBus) {
  constexpr std::size_t kBytes = 1 << 20;
  bench.enable_context(false, 4);
  std::byte* memory = bench.bus.map(0x7000'0000, kBytes);
  for (std::size_t at = 0; at < kBytes; at += 4096)
    bench.set(false, 4, 0x100'0000 + at, Bench::system_page(0x7000'0000 + at));
  for (std::size_t at = 0; at < 4096; at += 4096)
    bench.set(false, 4, 0x10'0000, Bench::vram_page(bench.allocate_page()));
  bench.set(false, 4, 0x200'0000, Bench::vram_page(0), 1);
  pattern(0, kBytes);
  const std::uint64_t ib = bench.entry_at(false, 4, 0x10'0000);
  const std::uint64_t ib_page = (bench.get_word(ib) & 0xF'FFFF'FFFF'F000) - Bench::kPhysical;
  const std::uint32_t words[] = {1, kBytes - 1, 0, 0x200'0000, 0, 0x100'0000, 0, 0};
  for (unsigned i = 0; i < 8; ++i) base::store(bench.vram->cpu_view(), ib_page + i * 4, words[i]);
  ring.indirect(4, 0x10'0000, 8);
  go();
  EXPECT_EQ(std::memcmp(memory, bench.vram->cpu_view().data(), kBytes), 0);
  EXPECT_EQ(bench.gfx->counters().bus_writes, kBytes);
}

TEST_F(Packets, OverlappingCopies) {
  pattern(0, 0x8000);
  std::vector<std::byte> before(bench.vram->cpu_view().begin(),
                                bench.vram->cpu_view().begin() + 0x8000);
  ring.copy(mc(0x1800), mc(0), 0x6000);  // downwards, forwards
  go();
  EXPECT_EQ(std::memcmp(bench.vram->cpu_view().data(), before.data() + 0x1800, 0x6000), 0);
  pattern(0, 0x8000);
  ring.push({1 | 1u << 25, 0x5FFF, 0, lo(mc(0)), hi(mc(0)), lo(mc(0x1800)), hi(mc(0x1800))});
  go();
  EXPECT_EQ(std::memcmp(bench.vram->cpu_view().data() + 0x1800, before.data(), 0x6000), 0);
}

TEST_F(Packets, WriteLinear) {
  ring.push({2, lo(mc(0x5004)), hi(mc(0x5004)), 4, 0xA, 0xB, 0xC, 0xD, 0xE});
  go();
  EXPECT_EQ(bench.get_word(0x5000), 0xAull << 32);
  EXPECT_EQ(bench.get_word(0x5008), 0xCull << 32 | 0xB);
  EXPECT_EQ(bench.get_word(0x5010), 0xEull << 32 | 0xD);
  EXPECT_EQ(bench.get_word(0x5018), 0u);
}

TEST_F(Packets, D34_ConstFillElementSizes) {
  ring.push({11, lo(mc(0x5001)), hi(mc(0x5001)), 0xAB, 4});               // bytes
  ring.push({11 | 1u << 30, lo(mc(0x6000)), hi(mc(0x6000)), 0x1234, 5});  // u16
  ring.push({11 | 2u << 30, lo(mc(0x7000)), hi(mc(0x7000)), 0xCAFE'F00D, 11});
  go();
  EXPECT_EQ(bench.get_word(0x5000), 0x0000'ABAB'ABAB'AB00u);
  EXPECT_EQ(bench.get_word(0x6000), 0x0000'1234'1234'1234u);
  EXPECT_EQ(bench.get_word(0x7000), 0xCAFE'F00D'CAFE'F00Du);
  EXPECT_EQ(bench.get_word(0x7008), 0x0000'0000'CAFE'F00Du);
  EXPECT_TRUE(bench.interrupts.ivs.empty());
}

TEST_F(Packets, D34_FillOfHalfAnElement) {
  ring.push({11 | 2u << 30, lo(mc(0x7000)), hi(mc(0x7000)), 1, 4});
  go();
  stopped_with(0x44);
}

TEST_F(Packets, D34_UnknownPackets) {
  for (const std::uint32_t header : {1u | 1u << 8, 3u, 16u | 4u << 8, 17u, 12u | 2u << 8, 99u}) {
    Bench fresh;
    Ring other(fresh);
    other.push({header, 0, 0, 0, 0, 0, 0, 0}).submit().run();
    EXPECT_EQ(fresh.interrupts.of(kGfx, 0x44).size(), 1u) << header;
    EXPECT_EQ(other.rptr(), 0u) << "the queue stops at the packet";
  }
}

TEST_F(Packets, D34_NopSkipsDwords) {
  ring.push({3u << 16, 99, 99, 99});
  ring.fence(mc(0x5000), 1);
  go();
  EXPECT_TRUE(ring.empty());
  EXPECT_EQ(bench.get_word(0x5000), 1u);
}

TEST_F(Packets, PacketCutShortByTheWritePointer) {
  ring.push({1, 100, 0});
  go();
  stopped_with(0x44);
}

TEST_F(Packets, FenceIsThirtyTwoBits) {
  bench.set_word(0x5000, ~0ull);
  ring.fence(mc(0x5000), 7);
  go();
  EXPECT_EQ(bench.get_word(0x5000), 0xFFFF'FFFF'0000'0007u);
}

TEST_F(Packets, D5_TrapNeedsItsEnable) {
  bench.write(Bench::kGc0 + 0x00D, 0);
  ring.trap(5);
  go();
  EXPECT_TRUE(bench.interrupts.ivs.empty());
  bench.write(Bench::kGc0 + 0x00D, 1);
  ring.trap(0xF123'4567);
  go();
  const auto ivs = bench.interrupts.of(kGfx, 0x31);
  ASSERT_EQ(ivs.size(), 1u);
  EXPECT_EQ(ivs[0].src_data[0], 0x0123'4567u);
  EXPECT_EQ(ivs[0].ring_id, 0x00);
  EXPECT_EQ(ivs[0].node_id, 2);
}

TEST_F(Packets, PollRegmemWaitsForMemory) {
  ring.push({8 | 3u << 28 | 1u << 31, lo(mc(0x5000)), hi(mc(0x5000)), 4, 0xFF, 0x0FFF'0004});
  ring.fence(mc(0x6000), 1);
  go();
  EXPECT_EQ(bench.get_word(0x6000), 0u);
  bench.set_word(0x5000, 0x1204);
  go();
  EXPECT_EQ(bench.get_word(0x6000), 0u) << "polls at its interval";
  bench.clock.advance(10us);
  go();
  EXPECT_EQ(bench.get_word(0x6000), 1u);
}

TEST_F(Packets, PollRegmemFunctions) {
  struct Row {
    unsigned function;
    bool below, equal, above;  // of a reference of 10
  };
  for (const Row& row :
       {Row{0, true, true, true}, Row{1, true, false, false}, Row{2, true, true, false},
        Row{3, false, true, false}, Row{4, true, false, true}, Row{5, false, true, true},
        Row{6, false, false, true}}) {
    for (const auto& [value, passes] :
         {std::pair{9u, row.below}, {10u, row.equal}, {11u, row.above}}) {
      Bench fresh;
      Ring other(fresh);
      fresh.set_word(0x5000, value);
      other.push({8 | row.function << 28 | 1u << 31, lo(mc(0x5000)), hi(mc(0x5000)), 10, ~0u,
                  0x0FFF'0004});
      other.submit().run();
      EXPECT_EQ(other.empty(), passes) << row.function << " with " << value;
    }
  }
}

TEST_F(Packets, PollRegmemGivesUpAfterItsRetries) {
  ring.push({8 | 3u << 28 | 1u << 31, lo(mc(0x5000)), hi(mc(0x5000)), 4, 0xFF, 0x0002'0004});
  ring.submit();
  for (unsigned i = 0; i < 4; ++i) {
    ring.run();
    bench.clock.advance(10us);
  }
  stopped_with(0x39);
}

TEST_F(Packets, PollRegmemOfAHubsAcknowledge) {
  const std::uint32_t req = Bench::row(false, 0x133), ack = Bench::row(false, 0x145);
  ring.push({14, req * 4, 0x08F8'0008});
  ring.push({8 | 3u << 28, ack * 4, 0, 8, 8, 0x0FFF'000A});
  ring.fence(mc(0x6000), 1);
  go();
  EXPECT_EQ(bench.get_word(0x6000), 1u);
  EXPECT_EQ(bench.gfx->counters().light_flushes, 1u);
}

TEST_F(Packets, D31_Atomics) {
  const auto atomic = [&](unsigned op, std::uint64_t operand, std::uint64_t compare) {
    ring.push({10 | op << 25, lo(mc(0x5000)), hi(mc(0x5000)), lo(operand), hi(operand), lo(compare),
               hi(compare), 0});
    go();
    return bench.get_word(0x5000);
  };
  bench.set_word(0x5000, 0xFFFF'FFFF);
  EXPECT_EQ(atomic(47, 1, 0), 0x1'0000'0000u);
  EXPECT_EQ(atomic(111, 2, 0), 0x1'0000'0002u);
  EXPECT_EQ(atomic(15, 0xFFFF'FFFF, 0), 0x1'0000'0001u);
  EXPECT_EQ(atomic(7, 5, 0), 0x1'0000'0005u);
  EXPECT_EQ(atomic(8, 6, 4), 0x1'0000'0005u) << "no match";
  EXPECT_EQ(atomic(8, 6, 5), 0x1'0000'0006u);
  EXPECT_EQ(atomic(39, 9, 0), 9u);
  EXPECT_EQ(atomic(40, 10, 8), 9u);
  EXPECT_EQ(atomic(104, 10, 9), 10u);
  EXPECT_TRUE(bench.interrupts.ivs.empty());
  bench.write(Bench::kGc0 + 0x031, 1u << 31);
  atomic(111, 0, 0);
  EXPECT_TRUE(bench.interrupts.ivs.empty());
  atomic(47, 0, 0);
  EXPECT_EQ(bench.interrupts.of(kGfx, 0x30).size(), 1u);
  atomic(1, 0, 0);
  EXPECT_EQ(bench.interrupts.of(kGfx, 0x44).size(), 1u);
}

TEST_F(Packets, D31_AtomicLoopRunsUntilItMatches) {
  ring.push({10 | 1u << 16 | 40u << 25, lo(mc(0x5000)), hi(mc(0x5000)), 2, 0, 1, 0, 0});
  go();
  EXPECT_FALSE(ring.empty());
  bench.set_word(0x5000, 1);
  bench.clock.advance(10us);
  go();
  EXPECT_TRUE(ring.empty());
  EXPECT_EQ(bench.get_word(0x5000), 2u);
}

TEST_F(Packets, D36_Timestamps) {
  bench.clock.advance(1234us);
  ring.push({13 | 1 << 8, lo(mc(0x5000)), hi(mc(0x5000))});
  ring.push({13 | 2 << 8, lo(mc(0x5008)), hi(mc(0x5008))});
  ring.push({13, 1'000'000, 0});
  ring.push({13 | 1 << 8, lo(mc(0x5010)), hi(mc(0x5010))});
  ring.push({13 | 2 << 8, lo(mc(0x5018)), hi(mc(0x5018))});
  go();
  EXPECT_EQ(bench.get_word(0x5000), 123'400u);
  EXPECT_EQ(bench.get_word(0x5008), 123'400u);
  EXPECT_EQ(bench.get_word(0x5010), 1'000'000u);
  EXPECT_EQ(bench.get_word(0x5018), 123'400u);
}

TEST_F(Packets, CondExe) {
  bench.set_word(0x5000, 1);
  ring.push({9, lo(mc(0x5000)), hi(mc(0x5000)), 1, 4});
  ring.fence(mc(0x6000), 1);
  ring.push({9, lo(mc(0x5000)), hi(mc(0x5000)), 2, 4});
  ring.fence(mc(0x7000), 1);
  ring.fence(mc(0x8000), 1);
  go();
  EXPECT_EQ(bench.get_word(0x6000), 1u);
  EXPECT_EQ(bench.get_word(0x7000), 0u) << "skipped";
  EXPECT_EQ(bench.get_word(0x8000), 1u);
}

TEST_F(Packets, PtePdeGenerate) {
  const std::uint64_t flags = 0x8800'0000'0000'0067;
  const std::uint64_t first = 0x12'3456'7000;
  ring.push({0x0043'000C, lo(mc(0x5008)), hi(mc(0x5008)), lo(flags), hi(flags), lo(first),
             hi(first), 0x1000, 0, 599});
  go();
  EXPECT_EQ(bench.get_word(0x5000), 0u);
  EXPECT_EQ(bench.get_word(0x5008), first | flags);
  EXPECT_EQ(bench.get_word(0x5008 + 599 * 8), (first + 599 * 0x1000) | flags);
  EXPECT_EQ(bench.get_word(0x5008 + 600 * 8), 0u);
}

TEST_F(Packets, D4_IndirectRunsInItsVmid) {
  bench.enable_context(false, 6);
  const std::uint64_t ib = bench.allocate_page();
  bench.set(false, 6, 0x1'0000, Bench::vram_page(ib));
  bench.set(false, 6, 0x2'0000, Bench::vram_page(0x9000));
  const std::uint32_t words[] = {5, 0x2'0000, 0, 33, 6, 44, 0, 0};  // fence, trap
  for (unsigned i = 0; i < 8; ++i) base::store(bench.vram->cpu_view(), ib + i * 4, words[i]);
  ring.indirect(6, 0x1'0000, 8);
  ring.trap(45);
  go();
  EXPECT_TRUE(ring.empty());
  EXPECT_EQ(bench.get_word(0x9000), 33u);
  const auto ivs = bench.interrupts.of(kGfx, 0x31);
  ASSERT_EQ(ivs.size(), 2u);
  EXPECT_EQ(ivs[0].vmid, 6);
  EXPECT_EQ(ivs[0].pasid, 0x106);
  EXPECT_EQ(ivs[1].vmid, 0) << "back in the ring";
}

TEST_F(Packets, D4_UnprivilegedRingKeepsItsVmid) {
  bench.enable_context(false, 6);
  bench.enable_context(false, 7);
  const std::uint64_t ring_va = 0x10'0000;
  Ring other(bench, {.queue = 2, .vmid = 6, .privileged = false, .va = ring_va});
  bench.set(false, 6, ring_va, Bench::vram_page(bench.allocate_page() - 4096));
  const std::uint64_t ib = bench.allocate_page();
  for (const unsigned vmid : {6u, 7u}) {
    bench.set(false, vmid, 0x1'0000, Bench::vram_page(ib));
    bench.set(false, vmid, 0x2'0000, Bench::vram_page(vmid * 0x1000));
  }
  const std::uint32_t words[] = {5, 0x2'0000, 0, 33, 0, 0, 0, 0};
  for (unsigned i = 0; i < 8; ++i) base::store(bench.vram->cpu_view(), ib + i * 4, words[i]);
  other.indirect(7, 0x1'0000, 8).submit().run();
  EXPECT_EQ(bench.get_word(0x6000), 33u);
  EXPECT_EQ(bench.get_word(0x7000), 0u);
}

TEST_F(Packets, IndirectMustEndAtEightDwords) {
  ring.push({4, lo(mc(0x5000)), hi(mc(0x5000)), 8, 0, 0});
  go();
  stopped_with(0x44);
}

TEST_F(Packets, IndirectNeedsIbEnable) {
  bench.write(ring.reg(0x209), 0);
  ring.indirect(0, mc(0x5000), 8);
  go();
  stopped_with(0x44);
}

TEST_F(Packets, RegisterWriteNeedsPrivilege) {
  const std::uint32_t target = Bench::row(true, 0x029);
  ring.push({14, (target * 4 & 0x3'FFFF) | (target * 4 >> 18) << 20, 0x1234'5678});
  go();
  EXPECT_EQ(bench.read(target), 0x1234'5678u);

  Ring plain(bench, {.queue = 3, .privileged = false});
  plain.push({14, (target * 4 & 0x3'FFFF) | (target * 4 >> 18) << 20, 1}).submit().run();
  EXPECT_EQ(bench.read(target), 0x1234'5678u);
  EXPECT_EQ(bench.interrupts.of(kGfx, 0x32).size(), 1u);
}

TEST_F(Packets, RegisterWriteInABufferNeedsIbPriv) {
  const std::uint32_t target = Bench::row(false, 0x029);
  const std::uint64_t ib = bench.allocate_page();
  const std::uint32_t words[] = {14, target * 4, 0x77, 0, 0, 0, 0, 0};
  for (unsigned i = 0; i < 8; ++i) base::store(bench.vram->cpu_view(), ib + i * 4, words[i]);
  bench.write(ring.reg(0x209), 1 | 1u << 31);
  ring.indirect(0, mc(ib), 8);
  go();
  EXPECT_EQ(bench.read(target), 0x77u);
  bench.write(ring.reg(0x209), 1);
  ring.indirect(0, mc(ib), 8);
  go();
  stopped_with(0x32);
}

}  // namespace
}  // namespace gpusim::test
