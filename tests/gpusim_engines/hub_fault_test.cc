// Faults: status, interrupts, retry, default page, bus errors.

#include <gtest/gtest.h>

#include "tests/gpusim_engines/bench.h"

namespace gpusim::test {
namespace {

constexpr unsigned kVmid = 5;
constexpr std::uint64_t kVa = 0x0123'4567'8000'0000;
constexpr std::uint32_t kRetry = 1 << 8;
constexpr std::uint8_t kGfxClient = 0x1B, kMmClient = 0x12;

struct Status {
  unsigned walker, permissions, cid, vmid;
  bool more, mapping, rw, atomic;
};
Status parse(std::uint32_t word) {
  return {word >> 1 & 0xF, word >> 5 & 0x1F,      word >> 11 & 0x1FF,    word >> 22 & 0xF,
          (word & 1) != 0, (word >> 10 & 1) != 0, (word >> 20 & 1) != 0, (word >> 21 & 1) != 0};
}

TEST(Faults, D17_AbsentPage) {
  Bench bench;
  bench.enable_context(false, kVmid);
  bench.set(false, kVmid, kVa, 0);
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kFault);
  Status status = parse(bench.status(false));
  EXPECT_EQ(status.permissions, 0x3u);
  EXPECT_EQ(status.walker, 0u);
  EXPECT_FALSE(status.mapping || status.rw || status.more);
  EXPECT_EQ(status.vmid, kVmid);
  EXPECT_EQ(status.cid, 0x0Au);
  EXPECT_EQ(bench.read(Bench::row(false, 0x033)), lo(kVa >> 12));
  EXPECT_EQ(bench.read(Bench::row(false, 0x034)), hi(kVa >> 12));

  bench.write(Bench::row(false, 0x02C), 1);
  EXPECT_EQ(bench.store(false, kVmid, kVa, 1), Outcome::kFault);
  status = parse(bench.status(false));
  EXPECT_EQ(status.permissions, 0x5u);
  EXPECT_TRUE(status.rw);
}

TEST(Faults, D17_DirectoryEntriesNameTheirLevel) {
  for (unsigned level = 1; level <= 4; ++level) {
    Bench bench;
    bench.enable_context(false, kVmid);
    bench.set(false, kVmid, kVa, kFinal, level);
    std::uint64_t value = 0;
    EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kFault);
    const Status status = parse(bench.status(false));
    EXPECT_EQ(status.walker, level + 1);
    EXPECT_TRUE(status.mapping);
  }
}

TEST(Faults, D17_RangeAndRights) {
  Bench bench;
  bench.enable_context(false, kVmid);
  bench.write_pair(Bench::row(false, 0x1BB + 2 * kVmid), 0xFFFF);
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, 0x1000'0000, value), Outcome::kFault);
  Status status = parse(bench.status(false));
  EXPECT_EQ(status.walker, 1u);
  EXPECT_TRUE(status.mapping);
  EXPECT_NE(status.permissions & 0x10, 0u);

  bench.write(Bench::row(false, 0x02C), 1);
  bench.set(false, kVmid, 0x1000, Bench::vram_page(0) & ~kW);
  EXPECT_EQ(bench.store(false, kVmid, 0x1000, 1), Outcome::kFault);
  status = parse(bench.status(false));
  EXPECT_EQ(status.permissions, 0x4u);
}

TEST(Faults, D18_FirstWinsUntilCleared) {
  Bench bench;
  bench.enable_context(false, kVmid);
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, 0x1000, value), Outcome::kFault);
  EXPECT_EQ(bench.load(false, kVmid, 0x2000, value), Outcome::kFault);
  EXPECT_EQ(bench.read(Bench::row(false, 0x033)), 1u);
  EXPECT_TRUE(parse(bench.status(false)).more);
  bench.write(Bench::row(false, 0x02C), 1);
  EXPECT_EQ(bench.status(false), 0u);
  EXPECT_EQ(bench.read(Bench::row(false, 0x033)), 0u);
  EXPECT_EQ(bench.read(Bench::row(false, 0x02C)) & 1, 0u) << "reads 0";
}

TEST(Faults, D18_LaterUpdatesAllowed) {
  Bench bench;
  bench.enable_context(false, kVmid);
  bench.write(Bench::row(false, 0x02C), 2);
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, 0x1000, value), Outcome::kFault);
  EXPECT_EQ(bench.load(false, kVmid, 0x2000, value), Outcome::kFault);
  EXPECT_EQ(bench.read(Bench::row(false, 0x033)), 2u);
}

TEST(Faults, D20_InterruptVectorOfAGfxhub) {
  Bench bench;
  bench.enable_context(false, kVmid);
  bench.interrupts.pasids[kVmid] = 0x8001;
  EXPECT_EQ(bench.store(false, kVmid, kVa, 1), Outcome::kFault);
  const auto ivs = bench.interrupts.of(kGfxClient, 0);
  ASSERT_EQ(ivs.size(), 1u);
  const Iv& iv = ivs[0];
  EXPECT_EQ(iv.vmid, kVmid);
  EXPECT_EQ(iv.pasid, 0x8001);
  EXPECT_EQ(iv.node_id, 2);
  EXPECT_EQ(iv.ring_id, 0);
  EXPECT_FALSE(iv.vmid_src_mmhub);
  EXPECT_EQ(iv.src_data[0], lo(kVa >> 12));
  EXPECT_EQ(iv.src_data[1], lo(kVa >> 44) | 1u << 21);
  EXPECT_EQ(iv.src_data[2], 0u);
}

TEST(Faults, D20_MmhubAndAtomics) {
  Bench bench;
  bench.enable_context(true, kVmid);
  std::uint64_t old = 0;
  EXPECT_EQ(bench.mm->atomic(Bench::who(kVmid), kVa, AtomicOp::kAdd64, 1, 0, old), Outcome::kFault);
  const auto ivs = bench.interrupts.of(kMmClient, 0);
  ASSERT_EQ(ivs.size(), 1u);
  EXPECT_TRUE(ivs[0].vmid_src_mmhub);
  EXPECT_EQ(ivs[0].pasid, 0x900 + kVmid) << "from the MM table";
  EXPECT_EQ(ivs[0].node_id, 0);
  EXPECT_EQ(ivs[0].src_data[1] >> 20, 0x6u) << "write and read";
  EXPECT_TRUE(parse(bench.status(true)).atomic);
}

TEST(Faults, NoInterruptWithoutItsEnableBit) {
  Bench bench;
  bench.enable_context(false, kVmid, Bench::kInterruptBits & ~(1u << 16));
  bench.set(false, kVmid, kVa, kFinal);
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kFault);
  EXPECT_TRUE(bench.interrupts.ivs.empty());
  EXPECT_NE(bench.status(false), 0u);
}

// --- retry ---

TEST(Retry, D15_SucceedsAsSoonAsTheEntryIsVisible) {
  Bench bench;
  bench.enable_context(false, kVmid, Bench::kInterruptBits | kRetry);
  bench.set_word(0, 6);
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kRetry);
  EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kRetry);
  ASSERT_EQ(bench.interrupts.retries.size(), 2u);
  EXPECT_EQ(bench.interrupts.retries[0].hub, 0u);
  EXPECT_EQ(bench.interrupts.retries[0].page, kVa >> 12);
  EXPECT_EQ(bench.interrupts.retries[0].iv.source, 1);
  EXPECT_EQ(bench.interrupts.retries[0].iv.src_data[1] >> 20, 4u) << "a read";
  EXPECT_EQ(bench.status(false), 0u) << "retry faults leave the status alone (D18)";
  EXPECT_TRUE(bench.interrupts.ivs.empty());
  bench.set(false, kVmid, kVa, Bench::vram_page(0));
  EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kOk);
  EXPECT_EQ(value, 6u);
}

TEST(Retry, D12_FinalPatternIsFinalAtEveryLevel) {
  for (unsigned level = 0; level <= 4; ++level) {
    Bench bench;
    bench.enable_context(false, kVmid, Bench::kInterruptBits | kRetry);
    bench.set(false, kVmid, kVa, kFinal, level);
    std::uint64_t value = 0;
    EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kFault);
    EXPECT_TRUE(bench.interrupts.retries.empty());
    bench.set(false, kVmid, kVa, 0, level);
    EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kRetry) << level;
  }
}

TEST(Retry, PermissionRetriesToo) {
  Bench bench;
  bench.enable_context(false, kVmid, Bench::kInterruptBits | kRetry);
  bench.set(false, kVmid, kVa, Bench::vram_page(0) & ~kW);
  EXPECT_EQ(bench.store(false, kVmid, kVa, 1), Outcome::kRetry);
  ASSERT_EQ(bench.interrupts.retries.size(), 1u);
  EXPECT_EQ(bench.interrupts.retries[0].iv.src_data[1] >> 20, 2u) << "a write";
}

TEST(Retry, NeverInVmid0) {
  Bench bench;
  bench.write(Bench::row(false, 0x110), Bench::kInterruptBits | kRetry);
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, 0, 0x1000, value), Outcome::kFault);
}

TEST(Retry, InterruptNeedsItsEnable) {
  Bench bench;
  bench.enable_context(true, kVmid, Bench::kInterruptBits | kRetry);
  bench.write(Bench::row(true, 0x02E), 0);
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(true, kVmid, kVa, value), Outcome::kRetry);
  EXPECT_TRUE(bench.interrupts.retries.empty());
}

// --- default page ---

class DefaultPage : public ::testing::Test {
 protected:
  DefaultPage() {
    bench.enable_context(false, kVmid, Bench::kInterruptBits | 1u << 17);
    bench.set(false, kVmid, kVa, kFinal);
    bench.write_pair(Bench::row(false, 0x035), (Bench::kPhysical + 0x4000) >> 12);
    bench.set_word(0x4010, 99);
  }
  Bench bench;
};

TEST_F(DefaultPage, D14_NeedsBothBits) {
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa + 0x10, value), Outcome::kFault);
  bench.write(Bench::row(false, 0x02C), 1 << 10);
  EXPECT_EQ(bench.load(false, kVmid, kVa + 0x10, value), Outcome::kOk);
  EXPECT_EQ(value, 99u);
  EXPECT_EQ(bench.interrupts.of(kGfxClient, 0).size(), 2u) << "the IV comes all the same";
}

TEST_F(DefaultPage, D14_WritesAreDropped) {
  bench.write(Bench::row(false, 0x02C), 1 << 10);
  EXPECT_EQ(bench.store(false, kVmid, kVa + 0x10, 1), Outcome::kOk);
  EXPECT_EQ(bench.get_word(0x4010), 99u);
}

// --- rights of remote and bus entries, bus errors ---

TEST(Rights, D13_NpaEntryWithoutRightFaultsHere) {
  Bench bench;
  bench.enable_context(false, kVmid);
  bench.set(false, kVmid, kVa, (kNpa | kR) & ~kW);
  EXPECT_EQ(bench.store(false, kVmid, kVa, 1), Outcome::kFault);
  EXPECT_EQ(parse(bench.status(false)).permissions, 0x4u);
  bench.set(false, kVmid, kVa + 4096, kNpa | kW);
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa + 4096, value), Outcome::kFault);
  EXPECT_TRUE(bench.fabric.seen.empty()) << "nothing goes out";
}

TEST(Rights, D50_AtomicsOutsideVramNeedB) {
  Bench bench;
  bench.enable_context(false, kVmid);
  bench.bus.map(0x5000, 4096);
  bench.set(false, kVmid, kVa, Bench::system_page(0x5000));
  bench.set(false, kVmid, kVa + 4096, Bench::system_page(0x5000) | kB);
  bench.set(false, kVmid, kVa + 8192, Bench::vram_page(0));
  std::uint64_t old = 0;
  const Requester who = Bench::who(kVmid);
  EXPECT_EQ(bench.gfx->atomic(who, kVa, AtomicOp::kAdd32, 1, 0, old), Outcome::kFault);
  EXPECT_EQ(bench.gfx->atomic(who, kVa + 4096, AtomicOp::kAdd32, 3, 0, old), Outcome::kOk);
  EXPECT_EQ(bench.gfx->atomic(who, kVa + 4096, AtomicOp::kAdd32, 1, 0, old), Outcome::kOk);
  EXPECT_EQ(old, 3u);
  EXPECT_EQ(bench.gfx->atomic(who, kVa + 8192, AtomicOp::kSwap64, 7, 0, old), Outcome::kOk);
  EXPECT_EQ(bench.get_word(0), 7u);
}

TEST(BusError, D21_NoFaultButUce) {
  Bench bench;
  bench.enable_context(false, kVmid);
  bench.set(false, kVmid, kVa, Bench::system_page(0x5000));
  std::uint64_t value = 0x55;
  EXPECT_EQ(bench.load(false, kVmid, kVa + 8, value), Outcome::kBusError);
  EXPECT_EQ(value, 0x55u) << "reads deliver nothing";
  EXPECT_EQ(bench.status(false), 0u);
  EXPECT_EQ(bench.read(Bench::row(false, 0x032)), 2u);
  EXPECT_TRUE(bench.interrupts.ivs.empty());
  EXPECT_EQ(bench.gfx->last_error().iova, 0x5008u);
  EXPECT_EQ(bench.gfx->counters().bus_errors, 1u);
  const auto logged = bench.log.find(0, "test");
  ASSERT_EQ(logged.size(), 1u);
  EXPECT_EQ(logged[0].address, 0x5008u);
  EXPECT_EQ(logged[0].outcome, Outcome::kBusError);
}

TEST(BusError, D21_ReadOnlyMappingRefusesWrites) {
  Bench bench;
  bench.enable_context(false, kVmid);
  bench.bus.map(0x5000, 4096, false);
  bench.set(false, kVmid, kVa, Bench::system_page(0x5000));
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kOk);
  EXPECT_EQ(bench.store(false, kVmid, kVa, 1), Outcome::kBusError);
}

TEST(BusError, MappingWithoutDescriptorGoesThroughTheClient) {
  Bench bench;
  bench.enable_context(false, kVmid);
  bench.bus.map(0x5000, 4096, true, false);
  bench.set(false, kVmid, kVa, Bench::system_page(0x5000));
  EXPECT_EQ(bench.store(false, kVmid, kVa, 12), Outcome::kOk);
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kOk);
  EXPECT_EQ(value, 12u);
  EXPECT_EQ(bench.bus.messages, 2u);
}

TEST(BusError, WrongIovaByScenario) {
  Bench bench;
  bench.enable_context(false, kVmid);
  bench.bus.map(0x5000, 4096);
  bench.set(false, kVmid, kVa, Bench::system_page(0x5000));
  ASSERT_TRUE(bench.hooks.run("gfxhub0.wrong_iova", {{"add", "0x100000"}}));
  std::uint64_t value = 0;
  EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kBusError);
  EXPECT_EQ(bench.gfx->last_error().iova, 0x10'5000u);
  EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kOk);
  ASSERT_TRUE(bench.hooks.run("gfxhub0.wrong_iova", {{"to", "0x200abc"}}));
  EXPECT_EQ(bench.load(false, kVmid, kVa + 8, value), Outcome::kBusError);
  EXPECT_EQ(bench.gfx->last_error().iova, 0x20'0008u);
  EXPECT_EQ(bench.load(false, kVmid, kVa, value), Outcome::kOk);
  for (const auto& bad : {ScenarioValues{}, ScenarioValues{{"to", "there"}}})
    EXPECT_EQ(bench.hooks.run("gfxhub0.wrong_iova", bad).error().code,
              base::Errc::kInvalidArgument);
}

TEST(Remote, OutcomesReachTheRequester) {
  Bench bench;
  bench.enable_context(false, kVmid);
  bench.set(false, kVmid, kVa, kNpa | kRw | 9ull << 41 | 0x3000);
  EXPECT_EQ(bench.store(false, kVmid, kVa + 8, 77), Outcome::kOk);
  ASSERT_EQ(bench.fabric.seen.size(), 1u);
  EXPECT_EQ(bench.fabric.seen[0].npa, 9ull << 41 | 0x3008);
  EXPECT_EQ(bench.gfx->counters().remote_writes, 8u);
  std::uint64_t value = 0;
  for (const Outcome outcome : {Outcome::kRefused, Outcome::kPeerLost, Outcome::kRetry}) {
    bench.fabric.answer = outcome;
    EXPECT_EQ(bench.load(false, kVmid, kVa, value), outcome);
    EXPECT_EQ(bench.gfx->last_error().exporter_retry, outcome == Outcome::kRetry);
  }
  EXPECT_TRUE(bench.interrupts.retries.empty()) << "the exporter's retry is no fault here (D47)";
}

}  // namespace
}  // namespace gpusim::test
