// Accesses from other accelerators, at the exporter.

#include <gtest/gtest.h>

#include "base/bytes.h"
#include "tests/gpusim_engines/bench.h"

namespace gpusim::test {
namespace {

constexpr unsigned kNpaVmid = 15;
constexpr std::uint16_t kSelf = 3, kSender = 6;
constexpr std::uint64_t kOffset = 0x80'0000;  // inside an accelerator's window

class Incoming : public ::testing::Test {
 protected:
  Incoming() {
    bench.enable_context(true, kNpaVmid, Bench::kInterruptBits | 1 << 8);
    bench.set(true, kNpaVmid, kOffset, Bench::vram_page(0x1000) | kB);
    bench.set(true, kNpaVmid, std::uint64_t{kSender} << 41 | kOffset,
              Bench::vram_page(0x2000) | kB);
    bench.set_word(0x1000, 11);
    bench.set_word(0x2000, 22);
  }
  Outcome load(AddressMode mode, std::uint64_t offset = kOffset, bool enabled = true) {
    RemoteAccess access;
    access.kind = RemoteAccess::Kind::kRead;
    access.sender = kSender;
    access.npa = std::uint64_t{kSelf} << 41 | offset;
    access.read_to = base::as_writable_bytes(value);
    return bench.mm->incoming(access, mode, enabled);
  }
  Bench bench;
  std::uint64_t value = 0;
};

TEST_F(Incoming, D38_AliasClearsTheId) {
  EXPECT_EQ(load(AddressMode::kAlias), Outcome::kOk);
  EXPECT_EQ(value, 11u);
}

TEST_F(Incoming, D38_IdentPutsTheSendersId) {
  EXPECT_EQ(load(AddressMode::kIdent), Outcome::kOk);
  EXPECT_EQ(value, 22u);
}

TEST_F(Incoming, D54_ClosedRefusesWithoutAFault) {
  EXPECT_EQ(load(AddressMode::kAlias, kOffset, false), Outcome::kRefused);
  EXPECT_TRUE(bench.interrupts.ivs.empty());
}

TEST_F(Incoming, D46_MissingEntryIsRefusedAndFaultsHere) {
  EXPECT_EQ(load(AddressMode::kAlias, kOffset + 0x1000), Outcome::kRefused);
  EXPECT_TRUE(bench.interrupts.retries.empty()) << "never a retry fault, whatever bit 8 says";
  const auto ivs = bench.interrupts.of(0x12, 0);
  ASSERT_EQ(ivs.size(), 1u);
  EXPECT_EQ(ivs[0].vmid, kNpaVmid);
  EXPECT_EQ(bench.status(true) >> 11 & 0x1FF, 2u) << "MPNHT (D19)";
}

TEST_F(Incoming, D19_WritesReportUtcl2Nht) {
  bench.set(true, kNpaVmid, kOffset, (Bench::vram_page(0x1000) | kB) & ~kW);
  RemoteAccess access;
  access.kind = RemoteAccess::Kind::kWrite;
  access.npa = kOffset;
  access.write_from = base::as_bytes(value);
  EXPECT_EQ(bench.mm->incoming(access, AddressMode::kAlias, true), Outcome::kRefused);
  EXPECT_EQ(bench.status(true) >> 11 & 0x1FF, 10u);
}

TEST_F(Incoming, D47_ExporterXMeansRetry) {
  bench.set(true, kNpaVmid, kOffset, Bench::vram_page(0x1000) | kB | kX);
  EXPECT_EQ(load(AddressMode::kAlias), Outcome::kRetry);
  EXPECT_TRUE(bench.interrupts.ivs.empty());
  bench.set(true, kNpaVmid, kOffset, kFinal);
  EXPECT_EQ(load(AddressMode::kAlias), Outcome::kRetry) << "cached until flushed";
  bench.flush(true, kNpaVmid, 2);
  EXPECT_EQ(load(AddressMode::kAlias), Outcome::kRefused);
}

TEST_F(Incoming, D46_DefaultPageDoesNotServePeers) {
  bench.write(Bench::row(true, 0x110 + kNpaVmid), 1 | 4 << 1 | 0x00FF'FC00);
  bench.write(Bench::row(true, 0x02C), 0x3FFC);
  EXPECT_EQ(load(AddressMode::kAlias, kOffset + 0x1000), Outcome::kRefused);
}

TEST_F(Incoming, NothingIsForwarded) {
  bench.set(true, kNpaVmid, kOffset, kNpa | kRw | 1ull << 41);
  EXPECT_EQ(load(AddressMode::kAlias), Outcome::kRefused);
  EXPECT_TRUE(bench.fabric.seen.empty());
}

TEST_F(Incoming, D50_AtomicsAtTheExportersMemory) {
  RemoteAccess access;
  access.kind = RemoteAccess::Kind::kAtomic;
  access.npa = kOffset;
  access.op = AtomicOp::kAdd64;
  access.operand = 5;
  EXPECT_EQ(bench.mm->incoming(access, AddressMode::kAlias, true), Outcome::kOk);
  EXPECT_EQ(access.result, 11u);
  EXPECT_EQ(bench.get_word(0x1000), 16u);
}

}  // namespace
}  // namespace gpusim::test
