// Copies and fills over many translations: where accesses are joined, where not, and what a failure
// in the middle leaves.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "tests/gpusim_engines/bench.h"
#include "tools/gpusim/model/data_mover.h"

namespace gpusim::test {
namespace {

constexpr unsigned kVmid = 4;
constexpr std::uint8_t kGfxClient = 0x1B;
constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kFrom = 0x1000'0000, kTo = 0x2000'0000;  // addresses
// 16 pieces of 64 KiB, each 16 pages.
constexpr std::uint64_t kBytes = 1 << 20;
constexpr std::uint64_t kPages = kBytes / kPage;
// In VRAM, below where the bench puts page tables.
constexpr std::uint64_t kSource = 4 << 20, kTarget = 8 << 20;

using State = DataMover::State;

class Mover : public ::testing::Test {
 protected:
  Mover() {
    bench.enable_context(false, kVmid);
    for (std::uint64_t i = 0; i < kBytes; ++i)
      memory()[kSource + i] = static_cast<std::byte>(i * 7 + (i >> 12));
  }
  std::byte* memory() { return bench.vram->cpu_view().data(); }
  void page(std::uint64_t va, std::uint64_t entry) { bench.set(false, kVmid, va, entry); }
  // An entry for each page: `first` leads to the first one.
  void pages(std::uint64_t va, std::uint64_t first, std::uint64_t count = kPages) {
    for (std::uint64_t i = 0; i < count; ++i) page(va + i * kPage, first + i * kPage);
  }
  void vram_to_vram() {
    pages(kFrom, Bench::vram_page(kSource));
    pages(kTo, Bench::vram_page(kTarget));
  }
  static MoveJob copy_job() {
    MoveJob job;
    job.source = kFrom;
    job.target = kTo;
    job.bytes = kBytes;
    return job;
  }
  DataMover::Result go_on() {
    for (int i = 0; i < 10'000; ++i) {
      std::size_t budget = 128 * 1024;
      const auto result = mover.run(Bench::who(kVmid), budget);
      if (result.state != State::kMore) return result;
    }
    ADD_FAILURE() << "no end";
    return {};
  }
  DataMover::Result run(const MoveJob& job) {
    mover.start(job);
    return go_on();
  }
  bool copied(std::uint64_t first, std::uint64_t count) {
    return std::memcmp(memory() + kTarget + first * kPage, memory() + kSource + first * kPage,
                       count * kPage) == 0;
  }
  bool untouched(std::uint64_t first, std::uint64_t count) {
    return std::all_of(memory() + kTarget + first * kPage,
                       memory() + kTarget + (first + count) * kPage,
                       [](std::byte byte) { return byte == std::byte{0}; });
  }
  std::size_t faults() { return bench.interrupts.of(kGfxClient, 0).size(); }

  Bench bench;
  DataMover mover{*bench.gfx, bench.clock, 1, 64};
};

// --- what is joined ---

TEST_F(Mover, ContiguousPagesMakeOneAccess) {
  pages(kFrom, kNpa | kRw | 5ull << 41);
  pages(kTo, Bench::vram_page(kTarget));
  ASSERT_EQ(run(copy_job()).state, State::kDone);
  EXPECT_EQ(bench.fabric.seen.size(), 16u);
  for (const auto& access : bench.fabric.seen) EXPECT_EQ(access.bytes, 64u * 1024);
}

TEST_F(Mover, PagesOutOfPlaceAreNotJoined) {
  vram_to_vram();
  // Neighbours change places on both sides, in pairs that differ.
  for (std::uint64_t i = 0; i + 1 < kPages; i += 3) {
    page(kFrom + i * kPage, Bench::vram_page(kSource + (i + 1) * kPage));
    page(kFrom + (i + 1) * kPage, Bench::vram_page(kSource + i * kPage));
  }
  for (std::uint64_t i = 0; i + 1 < kPages; i += 2) {
    page(kTo + i * kPage, Bench::vram_page(kTarget + (i + 1) * kPage));
    page(kTo + (i + 1) * kPage, Bench::vram_page(kTarget + i * kPage));
  }
  ASSERT_EQ(run(copy_job()).state, State::kDone);
  for (std::uint64_t i = 0; i < kPages; ++i) {
    const std::uint64_t from = i % 3 == 0 && i + 1 < kPages ? i + 1 : i % 3 == 1 ? i - 1 : i;
    const std::uint64_t to = i % 2 == 0 ? i + 1 : i - 1;
    ASSERT_EQ(
        std::memcmp(memory() + kTarget + to * kPage, memory() + kSource + from * kPage, kPage), 0)
        << i;
  }
}

// The numbers go on, the memory does not: VRAM, then the bus at the IOVA that follows.
TEST_F(Mover, KindsAreNotJoined) {
  vram_to_vram();
  std::byte* host = bench.bus.map(kSource + 100 * kPage, 56 * kPage);
  std::memset(host, 0x5A, 56 * kPage);
  for (std::uint64_t i = 100; i < 156; ++i)
    page(kFrom + i * kPage, Bench::system_page(kSource + i * kPage));
  ASSERT_EQ(run(copy_job()).state, State::kDone);
  EXPECT_TRUE(copied(0, 100));
  EXPECT_EQ(std::memcmp(memory() + kTarget + 100 * kPage, host, 56 * kPage), 0);
  EXPECT_TRUE(copied(156, 100));
}

// The last page of one accelerator's window is followed by the first page of the next one's.
TEST_F(Mover, AcceleratorsAreNotJoined) {
  const std::uint64_t boundary = 6ull << 41;
  pages(kFrom, kNpa | kRw | (boundary - 8 * kPage));
  pages(kTo, Bench::vram_page(kTarget));
  bench.fabric.answer = Outcome::kRefused;
  DataMover single(*bench.gfx, bench.clock, 1, 16);  // one access of 64 KiB at a time
  single.start(copy_job());
  std::size_t budget = kBytes;
  EXPECT_EQ(single.run(Bench::who(kVmid), budget).outcome, Outcome::kRefused);
  ASSERT_FALSE(bench.fabric.seen.empty());
  for (const auto& access : bench.fabric.seen)
    EXPECT_EQ(access.npa >> 41, (access.npa + access.bytes - 1) >> 41);
}

TEST_F(Mover, TheEndOfVramEndsAnAccess) {
  bench.enable_vmid0();
  MoveJob job;
  job.fill = true;
  job.value = 0x1111'1111;
  job.target = Bench::kFbBase + Bench::kVram - 5 * kPage;
  job.bytes = kBytes;
  mover.start(job);
  std::size_t budget = 2 * kBytes;
  const auto result = mover.run(Bench::who(0), budget);
  EXPECT_EQ(result.state, State::kFailed);
  EXPECT_EQ(result.address, Bench::kFbBase + Bench::kVram);
  EXPECT_EQ(bench.get_word(Bench::kVram - 8), 0x1111'1111'1111'1111u);
}

TEST_F(Mover, PoisonIsFoundInTheMiddleOfJoinedPages) {
  vram_to_vram();
  // Page 5 belonged to another VM, which unmapped it.
  constexpr unsigned kOther = 5;
  bench.enable_context(false, kOther);
  bench.set(false, kOther, kFrom, Bench::vram_page(kSource + 5 * kPage));
  std::uint64_t value = 0;
  ASSERT_EQ(bench.load(false, kOther, kFrom, value), Outcome::kOk);
  bench.set(false, kOther, kFrom, kFinal);
  bench.flush(false, kOther);
  ASSERT_EQ(run(copy_job()).state, State::kDone);
  EXPECT_EQ(bench.vram->counters().poison_reads, 1u);
  EXPECT_EQ(bench.vram->counters().last_poison_read, kSource + 5 * kPage);
}

// --- a failure in the middle ---

TEST_F(Mover, FaultInTheMiddleIsThatPagesAlone) {
  for (const bool write : {false, true}) {
    vram_to_vram();
    std::memset(memory() + kTarget, 0, kBytes);
    bench.flush(false, kVmid);
    bench.interrupts.ivs.clear();
    const std::uint64_t absent = (write ? kTo : kFrom) + 37 * kPage;
    page(absent, kFinal);
    const auto result = run(copy_job());
    EXPECT_EQ(result.state, State::kFailed);
    EXPECT_EQ(result.outcome, Outcome::kFault);
    EXPECT_EQ(result.address, absent);
    EXPECT_EQ(result.write, write);
    EXPECT_EQ(faults(), 1u) << "one fault, one vector";
    EXPECT_TRUE(copied(0, 37));
    EXPECT_TRUE(untouched(37, kPages - 37));
  }
}

TEST_F(Mover, RightsEndAnAccess) {
  vram_to_vram();
  page(kTo + 21 * kPage, Bench::vram_page(kTarget + 21 * kPage) & ~kW);
  const auto result = run(copy_job());
  EXPECT_EQ(result.outcome, Outcome::kFault);
  EXPECT_EQ(result.address, kTo + 21 * kPage);
  EXPECT_TRUE(copied(0, 21));
  EXPECT_TRUE(untouched(21, kPages - 21));
}

TEST_F(Mover, D14_EachPageSentToTheDefaultPageIsOneFault) {
  bench.enable_context(false, kVmid, Bench::kInterruptBits | 1u << 17);
  bench.write(Bench::row(false, 0x02C), 1 << 10);
  bench.write_pair(Bench::row(false, 0x035), (Bench::kPhysical + 0x4000) >> 12);
  vram_to_vram();
  for (const std::uint64_t absent : {37, 38, 60}) page(kFrom + absent * kPage, kFinal);
  page(kTo + 90 * kPage, kFinal);
  ASSERT_EQ(run(copy_job()).state, State::kDone);
  EXPECT_EQ(faults(), 4u);
  EXPECT_TRUE(copied(0, 37));
  EXPECT_TRUE(untouched(37, 2)) << "the default page's bytes";
  EXPECT_TRUE(copied(39, 21));
  EXPECT_TRUE(copied(61, 29));
  EXPECT_TRUE(untouched(90, 1));
  EXPECT_TRUE(copied(91, kPages - 91));
}

TEST_F(Mover, D15_RetryableFaultInTheMiddleGoesOnWhenThePageIsThere) {
  constexpr std::uint32_t kRetry = 1u << 8;
  bench.enable_context(false, kVmid, Bench::kInterruptBits | kRetry);
  bench.write(Bench::row(false, 0x02E), 1 << 19);
  vram_to_vram();
  page(kFrom + 37 * kPage, 0);
  const auto result = run(copy_job());
  EXPECT_EQ(result.outcome, Outcome::kRetry);
  EXPECT_EQ(result.address, kFrom + 37 * kPage);
  EXPECT_EQ(bench.interrupts.retries.size(), 1u);
  EXPECT_EQ(go_on().outcome, Outcome::kRetry);
  EXPECT_TRUE(untouched(37, kPages - 37));
  page(kFrom + 37 * kPage, Bench::vram_page(kSource + 37 * kPage));
  EXPECT_EQ(go_on().state, State::kDone);
  EXPECT_TRUE(copied(0, kPages));
  EXPECT_EQ(faults(), 0u);
}

// The exporter answers "retry" at its sixth page: what was done is not done again.
TEST_F(Mover, D47_RetryOfTheExporterInTheMiddle) {
  pages(kFrom, Bench::vram_page(kSource));
  pages(kTo, kNpa | kRw | 5ull << 41);
  bench.fabric.bulk = 5 * kPage;
  bench.fabric.retries_first = 1;
  DataMover single(*bench.gfx, bench.clock, 1, 16);  // one access of 64 KiB at a time
  single.start(copy_job());
  std::size_t budget = 64 * kPage;
  const auto result = single.run(Bench::who(kVmid), budget);
  EXPECT_EQ(result.outcome, Outcome::kRetry);
  EXPECT_EQ(result.address, kTo + 5 * kPage);
  EXPECT_TRUE(result.write);
  // The first part of the target is the next reader's by now.
  std::memset(bench.fabric.memory.data(), 0xEE, 5 * kPage);
  budget = 2 * kBytes;
  ASSERT_EQ(single.run(Bench::who(kVmid), budget).state, State::kDone);
  unsigned of_the_piece = 0;
  for (const auto& access : bench.fabric.seen) {
    const std::uint64_t offset = access.npa - (5ull << 41);
    if (offset >= 16 * kPage) continue;
    ++of_the_piece;
    EXPECT_EQ(offset, 5 * kPage);
    EXPECT_EQ(access.bytes, 11 * kPage);
  }
  EXPECT_EQ(of_the_piece, 2u);
  EXPECT_EQ(bench.fabric.memory[0], std::byte{0xEE});
  EXPECT_EQ(std::memcmp(bench.fabric.memory.data() + 5 * kPage, memory() + kSource + 5 * kPage,
                        kBytes - 5 * kPage),
            0);
}

TEST_F(Mover, D21_BusErrorNamesThePage) {
  constexpr std::uint64_t kIova = 0x7000'0000;
  for (const bool write : {false, true}) {
    std::byte* below = bench.bus.map(kIova, 37 * kPage);
    bench.bus.map(kIova + 38 * kPage, (kPages - 38) * kPage);
    std::memcpy(below, memory() + kSource, 37 * kPage);
    pages(kFrom, write ? Bench::vram_page(kSource) : Bench::system_page(kIova));
    pages(kTo, write ? Bench::system_page(kIova) : Bench::vram_page(kTarget));
    std::memset(memory() + kTarget, 0, kBytes);
    bench.flush(false, kVmid);
    const auto result = run(copy_job());
    EXPECT_EQ(result.outcome, Outcome::kBusError);
    EXPECT_EQ(result.write, write);
    EXPECT_EQ(result.error.iova, kIova + 37 * kPage);
    const auto& logged = bench.log.recent().back();
    EXPECT_EQ(logged.outcome, Outcome::kBusError);
    EXPECT_EQ(logged.address, kIova + 37 * kPage);
    EXPECT_EQ(logged.bytes, kPage);
    if (!write) {
      EXPECT_TRUE(untouched(37, 1)) << "reads deliver nothing";
    }
  }
}

// --- fills ---

TEST_F(Mover, FillKeepsItsPatternAcrossPieces) {
  pages(kTo, Bench::vram_page(kTarget));
  MoveJob job;
  job.fill = true;
  job.value = 0x4433'2211;
  job.target = kTo + 1;
  job.bytes = kBytes - 4;
  ASSERT_EQ(run(job).state, State::kDone);
  for (std::uint64_t i = 0; i < job.bytes; ++i)
    ASSERT_EQ(memory()[kTarget + 1 + i], static_cast<std::byte>(0x11 * (i % 4 + 1))) << i;
}

}  // namespace
}  // namespace gpusim::test
