// SDMA packets as the daemon builds them, done by the model's engine (docs/hardware/sdma.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/gpu/engine/lsdma.h"
#include "daemon/gpu/engine/sdma_instance.h"
#include "daemon/gpu/engine/sdma_packets.h"
#include "daemon/gpu/engine/sdma_queue.h"
#include "tests/contract/contract_rig.h"
#include "tests/fake/fake_pci_device.h"
#include "tests/fake/manual_reactor.h"
#include "tools/gpusim/model/sdma_packets.h"

namespace contract {
namespace {

namespace sdma = gpuumd::sdma;
using gpuumd::EngineMemory;

using Packet = std::vector<std::uint32_t>;
Packet packet(auto build) {
  Packet words;
  sdma::PacketWriter out(words);
  build(out);
  return words;
}

TEST(Packets, HeadersByTheSheetAndLengthsByTheModel) {
  const std::uint32_t word = 7;
  struct Example {
    Packet packet;
    std::uint32_t header;
    std::size_t data = 0;  // dwords behind the fixed part
  };
  const Example examples[] = {
      {packet([](auto& o) { sdma::nop(o, 3); }), 0x0003'0000, 3},
      {packet([](auto& o) { sdma::copy_linear(o, 1, 2, 3); }), 1},
      {packet([&](auto& o) { sdma::write_linear(o, 4, {&word, 1}); }), 2, 1},
      {packet([](auto& o) { sdma::const_fill(o, 4, 5, sdma::FillSize::kDword, 8); }), 0x8000'000B},
      {packet([](auto& o) { sdma::fence(o, 4, 5); }), 0x0003'0005},
      {packet([](auto& o) { sdma::trap(o, 5); }), 6},
      {packet([](auto& o) { sdma::atomic(o, 8, sdma::AtomicCode::kAdd64, 1, 0); }), 0x5E00'000A},
      {packet([](auto& o) { sdma::timestamp_global(o, 8); }), 0x0000'020D},
      {packet([](auto& o) { sdma::indirect(o, 2, 9, 0x20, 8); }), 0x0009'0004},
      {packet([](auto& o) { sdma::pte_pde_generate(o, 8, 1, 2, 3, 4); }), 0x0043'000C},
  };
  for (const auto& example : examples) {
    EXPECT_EQ(example.packet[0], example.header);
    using H = gpusim::SDMA_HEADER;
    const base::Value<H> header(example.packet[0]);
    EXPECT_EQ(gpusim::packet_dwords(header.get<H::OP>(), header.get<H::SUB_OP>()) + example.data,
              example.packet.size())
        << std::hex << example.header;
  }
}

TEST(Packets, D31_AtomicCodes) {
  using D = sdma::AtomicCode;
  using M = gpusim::AtomicOp;
  const std::pair<D, M> codes[] = {
      {D::kSwap32, M::kSwap32}, {D::kCompareSwap32, M::kCompareSwap32}, {D::kAdd32, M::kAdd32},
      {D::kSwap64, M::kSwap64}, {D::kCompareSwap64, M::kCompareSwap64}, {D::kAdd64, M::kAdd64}};
  for (const auto& [daemon, model] : codes)
    EXPECT_EQ(gpusim::atomic_op(static_cast<unsigned>(daemon)), model);
}

// A queue of each instance of each XCC, brought up by the daemon.
struct Engines : testing::TestWithParam<unsigned> {
  Rig rig;
  const unsigned xcc = GetParam() / 2, instance = GetParam() % 2;
  static constexpr unsigned kQueue = 3;
  fake::FakeBar doorbells{8192};
  std::optional<gpuumd::SdmaQueue> queue;
  EngineMemory a = rig.allocate(8192), b = rig.allocate(8192);

  Engines() {
    using namespace gpuumd::nbio;
    const auto& nbio = rig.topology.nbio;
    nbio.write(base::Value<RCC_DOORBELL_APER_EN>(1));
    nbio.write(base::Value<DOORBELL_ACCESS_EN_PF>(DOORBELL_ACCESS_EN_PF::kAll));
    nbio.write(doorbell_route(DoorbellConsumer::kSdma, kSdmaDoorbells, 4 * kSdmaDoorbellStep),
               kSdmaEntry);
    nbio.write(base::Value<S2A_DOORBELL_ENTRY_CTRL1>(S2A_DOORBELL_ENTRY_CTRL1::kPortType),
               kSdmaEntry);
    doorbells.state().on_doorbell = [this](std::uint64_t offset, std::uint64_t value) {
      rig.gpu->ring_doorbell(offset, value, 8);
    };
    const auto& registers = rig.topology.xccs[xcc].sdma[instance];
    gpuumd::SdmaInstance(registers, "").start();
    gpuumd::SdmaQueue::Place place;
    place.registers = registers;
    place.queue = kQueue;
    place.doorbells = &doorbells;
    place.doorbell = sdma_doorbell(2 * xcc + instance, kQueue);
    place.ring = rig.allocate(4096);
    place.pointers = rig.allocate(gpuumd::SdmaQueue::kPointerBytes);
    queue.emplace(place);
    queue->program();
  }
  void run(auto build) {
    ASSERT_TRUE(queue->submit(packet(build)));
    rig.settle();
    ASSERT_TRUE(queue->empty()) << "the engine did not take it";
    EXPECT_EQ(rig.gpu->sdma(xcc, instance).counters().errors, 0u);
  }
};

TEST_P(Engines, DataPackets) {
  for (int i = 0; i < 8192; ++i) a.cpu[i] = std::byte(i * 13 + i / 256);
  run([&](auto& o) { sdma::copy_linear(o, a.at.value() + 3, b.at.value() + 1, 5000); });
  EXPECT_EQ(std::memcmp(b.cpu + 1, a.cpu + 3, 5000), 0);
  EXPECT_EQ(b.cpu[0], std::byte{0});
  EXPECT_EQ(b.cpu[5001], std::byte{0});

  const std::uint32_t data[] = {1, 2, 0xDEADBEEF};
  run([&](auto& o) { sdma::write_linear(o, b.at.value() + 8, data); });
  EXPECT_EQ(std::memcmp(b.cpu + 8, data, sizeof data), 0);

  run([&](auto& o) {
    sdma::const_fill(o, b.at.value(), 0x11, sdma::FillSize::kByte, 3);
    sdma::const_fill(o, b.at.value() + 4, 0x2233, sdma::FillSize::kWord, 4);
    sdma::const_fill(o, b.at.value() + 8, 0x44556677, sdma::FillSize::kDword, 8);
  });
  EXPECT_EQ(b.word(0).load() & 0xFF'FFFF, 0x11'1111u);
  EXPECT_EQ(b.word(0).load() >> 32, 0x2233'2233u);
  EXPECT_EQ(b.word(8).load(), 0x4455'6677'4455'6677u);

  run([&](auto& o) { sdma::fence64(o, b.at.value(), 0x0123'4567'89AB'CDEF); });
  EXPECT_EQ(b.word(0).load(), 0x0123'4567'89AB'CDEFu);
}

TEST_P(Engines, AtomicsAndTime) {
  using enum sdma::AtomicCode;
  const auto at = b.at.value();
  const auto done = [&](sdma::AtomicCode code, std::uint64_t before, std::uint64_t operand,
                        std::uint64_t compare) {
    b.word(0).store(before);
    run([&](auto& o) { sdma::atomic(o, at, code, operand, compare); });
    return b.word(0).load();
  };
  EXPECT_EQ(done(kAdd32, 0xFFFF'FFFF, 2, 0), 1u) << "no carry into the other half";
  EXPECT_EQ(done(kAdd64, 0xFFFF'FFFF, 2, 0), 0x1'0000'0001u);
  EXPECT_EQ(done(kSwap32, ~0ull, 5, 0), 0xFFFF'FFFF'0000'0005u);
  EXPECT_EQ(done(kSwap64, ~0ull, 5, 0), 5u);
  EXPECT_EQ(done(kCompareSwap64, 7, 9, 7), 9u);
  EXPECT_EQ(done(kCompareSwap64, 7, 9, 8), 7u);
  EXPECT_EQ(done(kCompareSwap32, 7, 9, 7), 9u);
  rig.clock.advance(std::chrono::microseconds(5));
  run([&](auto& o) { sdma::timestamp_global(o, at); });
  EXPECT_EQ(b.word(0).load(), rig.clock.now().count() / 10u) << "100 MHz";
}

TEST_P(Engines, TableEntries) {
  run([&](auto& o) {
    sdma::pte_pde_generate(o, b.at.value(), 0x71, 0x8000'0000'0000'0000, 0x1000, 512);
  });
  for (unsigned i = 0; i < 512; ++i)
    ASSERT_EQ(b.word(8 * i).load(), 0x8000'0000'0000'0071u + 0x1000u * i);
  EXPECT_EQ(b.word(4096).load(), 0u);
  run([&](auto& o) { sdma::pte_pde_generate(o, b.at.value(), 0, 0x6, 0, 8); });
  EXPECT_EQ(b.word(56).load(), 0x6u);
  EXPECT_EQ(b.word(64).load(), 0x8000'0000'0000'8071u);
}

// INDIRECT in VMID 0: the buffer is read, its packets are done, the ring goes on behind it.
TEST_P(Engines, IndirectBuffers) {
  const auto ib = packet([&](auto& o) {
    sdma::copy_linear(o, a.at.value(), b.at.value(), 64);
    sdma::nop(o);
    sdma::fence64(o, b.at.value() + 64, 77);
    sdma::pad_to(o, 8);
  });
  std::memset(a.cpu, 0x3C, 64);
  std::memcpy(a.cpu + 4096, ib.data(), ib.size() * 4);
  run([&](auto& o) {
    sdma::indirect(o, queue->write_dwords(), 0, a.at.value() + 4096,
                   static_cast<std::uint32_t>(ib.size()));
    sdma::fence64(o, b.at.value() + 128, 88);
  });
  EXPECT_EQ(std::memcmp(a.cpu, b.cpu, 64), 0);
  EXPECT_EQ(b.word(64).load(), 77u);
  EXPECT_EQ(b.word(128).load(), 88u);
}

TEST_P(Engines, QueueResetAndHalt) {
  const auto& registers = rig.topology.xccs[xcc].sdma[instance];
  gpuumd::SdmaInstance engine(registers, "");
  const auto now = std::chrono::steady_clock::time_point();
  engine.request_queue_reset(kQueue, now + std::chrono::seconds(1));
  const auto answer = engine.poll_queue_reset(now);
  ASSERT_TRUE(answer && answer->has_value());
  EXPECT_FALSE(registers.read<sdma::RB_CNTL>(kQueue).get<sdma::RB_CNTL::RB_ENABLE>());
  queue->program();
  run([&](auto& o) { sdma::fence(o, b.at.value(), 5); });
  engine.halt();
  engine.start();
  queue->program();
  run([&](auto& o) { sdma::fence(o, b.at.value(), 6); });
  EXPECT_EQ(b.word(0).load(), 6u);
}

INSTANTIATE_TEST_SUITE_P(All, Engines, testing::Values(0, 1, 2, 3));

TEST(LsdmaContract, ACopyInVmid0) {
  Rig rig;
  fake::ManualReactor reactor;
  gpuumd::Lsdma lsdma(reactor, rig.topology.lsdma);
  ASSERT_TRUE(lsdma.start());
  const auto a = rig.allocate(4096), b = rig.allocate(4096);
  std::memset(a.cpu, 0x77, 4096);
  std::optional<base::Result<void>> result;
  lsdma.copy(a.at, b.at, 100, [&](base::Result<void> r) { result = std::move(r); });
  rig.settle();
  lsdma.poll();
  ASSERT_TRUE(result && result->has_value());
  EXPECT_EQ(std::memcmp(a.cpu, b.cpu, 100), 0);
  EXPECT_EQ(b.cpu[100], std::byte{0});
  // Outside of everything that VMID 0 shows.
  result.reset();
  lsdma.copy(a.at, base::McAddress(0x7000'0000'0000), 4,
             [&](base::Result<void> r) { result = std::move(r); });
  rig.settle();
  lsdma.poll();
  ASSERT_TRUE(result);
  EXPECT_EQ(result->error().code, base::Errc::kRefused);
  EXPECT_TRUE(lsdma.start()) << "the error is cleared";
}

}  // namespace
}  // namespace contract
