// Messages, ring entries, metadata and records: fabric/ writes them, the model's firmware serves
// them, and what comes out is read by the daemon and fabric/ again (docs/hardware/nht.md).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "daemon/gpu/bringup/psp_records.h"
#include "daemon/gpu/registers/mp0.h"
#include "daemon/gpu/registers/nht_mailbox.h"
#include "fabric/layout.h"
#include "fabric/message.h"
#include "fabric/packet.h"
#include "fabric/write_back.h"
#include "tests/contract/contract_rig.h"
#include "tools/gpusim/model/nht.h"

namespace contract {
namespace {

using fabric::AccelId;
using fabric::AddressMode;
using fabric::Layout;
using fabric::RingType;
using testing::ElementsAre;

namespace status_values {
using F = fabric::NhtStatus;
using M = gpusim::NhtStatus;
constexpr bool same(F f, M m) { return static_cast<unsigned>(f) == static_cast<unsigned>(m); }
static_assert(same(F::kOk, M::kOk) && same(F::kFifoOverflow, M::kFifoOverflow));
static_assert(same(F::kBadCommand, M::kBadCommand) && same(F::kTimeout, M::kTimeout));
static_assert(same(F::kBadMetadata, M::kBadMetadata) && same(F::kRingOverflow, M::kOverflow));
static_assert(same(F::kBadWritePointer, M::kBadPointer));
static_assert(same(F::kInterruptNotRaised, M::kNoInterrupt));
static_assert(same(F::kBadRingAddress, M::kBadRing));
static_assert(same(F::kBadWriteBackAddress, M::kBadRecord));
}  // namespace status_values

const AccelId kReceiver(5), kSender(9);
constexpr std::uint64_t kRecordPage = 0x900;

// The receiver is the modelled GPU; the sender is this test.
struct Fabric : testing::TestWithParam<AddressMode> {
  Rig rig;
  Layout receiver{GetParam(), kReceiver, kRecordPage};
  Layout sender{GetParam(), kSender, kRecordPage};
  gpusim::Nht nht{rig.gpu->context(), rig.gpu->mmhub(0), {&rig.gpu->mmhub(0)}};
  gpuumd::EngineMemory rings = rig.allocate(receiver.ring_buffer_bytes());
  std::array<std::uint64_t, 2> written{};
  std::array<std::uint32_t, 2> sequence{};

  Fabric() {
    rig.gpu->set_nht(&nht);
    rig.start_interrupts();
  }
  ~Fabric() override { rig.gpu->set_nht(nullptr); }

  // Command 0x59 {15, 1} by the daemon's offsets: incoming accesses are served.
  void open_fabric() {
    namespace psp = gpuumd::psp;
    using namespace gpuumd::mp0;
    const auto ring = rig.allocate(4096), command = rig.allocate(psp::command::kBytes),
               fence = rig.allocate(64);
    const auto& mp0 = rig.topology.mp0;
    mp0.write(base::Value<C2PMSG_69>(lo(ring.at.value())));
    mp0.write(base::Value<C2PMSG_70>(hi(ring.at.value())));
    mp0.write(base::Value<C2PMSG_71>(4096));
    mp0.write(base::Value<C2PMSG_64>().with<C2PMSG_64::COMMAND>(RingCommand::kInitGpcom));
    rig.settle();
    EXPECT_TRUE(mp0.read<C2PMSG_64>().get<C2PMSG_64::RESPONSE>());
    EXPECT_EQ(mp0.read<C2PMSG_64>().get<C2PMSG_64::STATUS>(), 0u);
    const std::span frame(ring.cpu, 64), body(command.cpu, psp::command::kBytes);
    base::store(frame, psp::frame::kCommandLo, lo(command.at.value()));
    base::store(frame, psp::frame::kCommandHi, hi(command.at.value()));
    base::store(frame, psp::frame::kCommandSize, std::uint32_t{psp::command::kBytes});
    base::store(frame, psp::frame::kFenceLo, lo(fence.at.value()));
    base::store(frame, psp::frame::kFenceHi, hi(fence.at.value()));
    base::store(frame, psp::frame::kFenceValue, std::uint32_t{77});
    base::store(body, psp::command::kVersion, psp::command::kVersionValue);
    base::store(body, psp::command::kId, static_cast<std::uint32_t>(psp::CommandId::kSetNpa));
    base::store(body, psp::command::kBody, std::uint32_t{15});
    base::store(body, psp::command::kBody + 4, std::uint32_t{1});
    mp0.write(base::Value<C2PMSG_67>(psp::frame::kBytes / 4));
    rig.settle();
    EXPECT_EQ(fence.word().load(), 77u);
    EXPECT_EQ(base::load<std::uint32_t>(std::span<const std::byte>(body), psp::command::kStatus),
              0u);
    ASSERT_TRUE(rig.gpu->security_processor().npa_enabled());
  }
  void load() {
    fabric::AccelSet members;
    members.set(kReceiver.value()).set(kSender.value());
    const auto table = fabric::metadata_table(receiver, rings.at, members);
    EXPECT_EQ(table.size(), 256u * 40);
    const auto place = rig.allocate(table.size());
    std::memcpy(place.cpu, table.data(), table.size());
    using namespace gpuumd::nht;
    const auto& r = rig.topology.nht;
    r.write(base::Value<ADDR_HI>(hi(place.at.value())));
    r.write(base::Value<ADDR_LO>(lo(place.at.value())));
    r.write(base::Value<DATA>(fabric::kMetadataData));
    r.write(base::Value<CMD>().with<CMD::COMMAND>(Command::kLoad));
    rig.settle();
    ASSERT_EQ(r.read<STATUS>().get<STATUS::STATE>(), Status::kReady);
  }
  // An entry, its pointer and its doorbell, as the sender leaves them.
  void send(RingType ring, const fabric::Packet& packet, std::uint8_t port = 3) {
    auto& wptr = written[static_cast<unsigned>(ring)];
    const auto slot = receiver.ring_offset(kSender, ring) + wptr % fabric::kRingEntries * 64;
    std::memcpy(rings.cpu + slot, packet.data(), 64);
    rings.word(receiver.pointer_offset(kSender, ring)).store(++wptr);
    const auto value = static_cast<std::uint32_t>(wptr);
    gpusim::RemoteAccess access;
    access.kind = gpusim::RemoteAccess::Kind::kWrite;
    access.sender = kSender.value();
    access.npa = Layout::doorbell(kReceiver, ring, port).value();
    access.write_from = base::as_bytes(value);
    EXPECT_EQ(rig.gpu->incoming(access), gpusim::Outcome::kOk);
    rig.settle();
  }
  std::uint32_t next(RingType ring) { return ++sequence[static_cast<unsigned>(ring)]; }
  fabric::WriteBackRecord record(RingType ring) {
    const auto at = sender.record_npa(kReceiver, ring).value();
    EXPECT_EQ(at >> 41, kSender.value());
    return fabric::read_record(rig.port.bytes() + (at & ((1ull << 41) - 1)));
  }
  void introduce(RingType ring) {
    send(ring, fabric::write_back_packet(next(ring), sender.record_npa(kReceiver, ring)));
  }
};

TEST_P(Fabric, EveryMessageArrives) {
  open_fabric();
  load();
  introduce(RingType::kInterrupt);
  EXPECT_EQ(rig.port.last_target, kSender.value());
  EXPECT_EQ(record(RingType::kInterrupt), (fabric::WriteBackRecord{1, 0, 1}));

  const fabric::Handle ours{0xFEDC'BA98'7654'3000 | 5, 0x0123'4567'89AB'CDEF};
  const fabric::Handle theirs{0xFEDC'BA98'7654'3000 | 9, 0x0123'4567'89AB'CDEF};
  struct Example {
    fabric::Message message;
    fabric::Dwords sheet;
  };
  const Example examples[] = {
      {fabric::Hello{kReceiver, kSender, {}}, {1 | 5 << 10 | 9 << 20, 0, 0, 0}},
      {fabric::HelloAck{{}, 0}, {2, 0, 0, 0}},
      {fabric::NpaReq{ours}, {0x7654'3003, 0xFEDC'BA98, 0x89AB'CDEF, 0x0123'4567}},
      {fabric::NpaRsp{theirs.lo, 512, 0x1234'5600}, {0x7654'3004, 0xFEDC'BA98, 512, 0x1234'5600}},
      {fabric::NpaFail{theirs.lo, fabric::FailReason::kUnknownHandle},
       {0x7654'3005, 0xFEDC'BA98, 2, 0}},
      {fabric::NpaRevoke{theirs}, {0x7654'3006, 0xFEDC'BA98, 0x89AB'CDEF, 0x0123'4567}},
      {fabric::NpaRelease{ours}, {0x7654'3007, 0xFEDC'BA98, 0x89AB'CDEF, 0x0123'4567}},
  };
  for (const auto& example : examples) {
    EXPECT_EQ(fabric::encode(example.message), example.sheet);
    const auto number = next(RingType::kInterrupt);
    const auto packet = fabric::interrupt_packet(number, fabric::encode(example.message));
    EXPECT_EQ(packet[0], 0x3000'0002u);
    EXPECT_EQ(packet[1], number);
    send(RingType::kInterrupt, packet);
    const auto vector = rig.vector();
    ASSERT_TRUE(vector);
    EXPECT_EQ(vector->dwords[0], 0x8000'001Cu) << "D49: vmid_src 1, all else 0";
    EXPECT_EQ(vector->client(), gpuumd::IvClient::kNht);
    EXPECT_EQ(vector->source(), gpuumd::iv::kRemote);
    EXPECT_EQ(vector->pasid().value(), kSender.value());
    fabric::Dwords dwords;
    for (unsigned i = 0; i < 4; ++i) dwords[i] = vector->source_data(i);
    EXPECT_EQ(dwords, example.sheet);
    EXPECT_EQ(fabric::decode(dwords, kReceiver, kSender), example.message);
    EXPECT_EQ(record(RingType::kInterrupt), (fabric::WriteBackRecord{number, 0, number}));
  }
  EXPECT_FALSE(rig.vector());
}

TEST_P(Fabric, ShootdownsAreServedInTheirOwnRing) {
  open_fabric();
  load();
  introduce(RingType::kShootdown);
  for (const bool heavy : {false, true}) {
    const auto packet = fabric::shootdown_packet(next(RingType::kShootdown), heavy);
    EXPECT_EQ(packet[0], 0x3000'0001u);
    EXPECT_EQ(packet[8], 0xFFFF'F800u | (heavy ? 2u : 1u));
    EXPECT_EQ(packet[9], 0x000F'FFFFu);
    send(RingType::kShootdown, packet);
  }
  EXPECT_EQ(nht.counters().shootdowns, 2u);
  EXPECT_EQ(record(RingType::kShootdown), (fabric::WriteBackRecord{3, 0, 3}));
  EXPECT_EQ(record(RingType::kInterrupt), fabric::WriteBackRecord{}) << "records are apart";
  // In the wrong ring it is a bad command, for that entry alone.
  introduce(RingType::kInterrupt);
  send(RingType::kInterrupt, fabric::shootdown_packet(next(RingType::kInterrupt), true));
  EXPECT_EQ(
      record(RingType::kInterrupt),
      (fabric::WriteBackRecord{2, static_cast<std::uint32_t>(fabric::NhtStatus::kBadCommand), 2}));
  EXPECT_EQ(nht.counters().shootdowns, 2u);
}

TEST_P(Fabric, RingsWrapWithManyInFlight) {
  open_fabric();
  load();
  introduce(RingType::kInterrupt);
  for (unsigned i = 0; i < 150; ++i) {
    send(RingType::kInterrupt,
         fabric::interrupt_packet(next(RingType::kInterrupt),
                                  fabric::encode(fabric::HelloAck{{}, 0})),
         static_cast<std::uint8_t>(i % 16));
    ASSERT_TRUE(rig.vector()) << i;
  }
  EXPECT_EQ(record(RingType::kInterrupt), (fabric::WriteBackRecord{151, 0, 151}));
}

TEST_P(Fabric, D54_NothingArrivesBeforeTheProcessorOpensIt) {
  load();
  gpusim::RemoteAccess access;
  const std::uint32_t value = 1;
  access.kind = gpusim::RemoteAccess::Kind::kWrite;
  access.sender = kSender.value();
  access.npa = Layout::doorbell(kReceiver, RingType::kInterrupt, 0).value();
  access.write_from = base::as_bytes(value);
  EXPECT_EQ(rig.gpu->incoming(access), gpusim::Outcome::kRefused);
}

// Magic, ring size, then ring and pointer addresses, interrupt before shootdown.
TEST_P(Fabric, MetadataByTheSheet) {
  fabric::AccelSet members;
  members.set(kReceiver.value()).set(kSender.value());
  const base::McAddress base(0x80'0010'0000);
  const auto table = fabric::metadata_table(receiver, base, members);
  const auto entry = std::span<const std::byte>(table).subspan(9 * 40, 40);
  EXPECT_EQ(base::load<std::uint32_t>(entry, 0), 0x4E48'5446u);
  EXPECT_EQ(base::load<std::uint32_t>(entry, 4), 6u);
  const auto word = [&](std::size_t at) { return base::load<std::uint64_t>(entry, at); };
  EXPECT_EQ(word(8), base.value() + receiver.ring_offset(kSender, RingType::kInterrupt));
  EXPECT_EQ(word(16), base.value() + receiver.ring_offset(kSender, RingType::kShootdown));
  EXPECT_EQ(word(24), base.value() + receiver.pointer_offset(kSender, RingType::kInterrupt));
  EXPECT_EQ(word(32), base.value() + receiver.pointer_offset(kSender, RingType::kShootdown));
  for (const unsigned empty : {5u, 0u, 255u})
    EXPECT_THAT(std::span(table).subspan(empty * 40, 40), testing::Each(std::byte{0})) << empty;
}

TEST(Doorbells, D48_AddressByTheSheet) {
  const auto at = Layout::doorbell(AccelId(5), RingType::kShootdown, 11).value();
  EXPECT_EQ(at, 0xF'FF01'4000'0000u | 11u << 8 | 1u << 6);
  EXPECT_EQ(Layout::doorbell(AccelId(255), RingType::kInterrupt, 0).value(),
            0xF'FF00'0000'0000u | std::uint64_t{255} << 30);
}

INSTANTIATE_TEST_SUITE_P(Modes, Fabric, testing::Values(AddressMode::kAlias, AddressMode::kIdent),
                         [](const auto& info) {
                           return std::string(fabric::to_string(info.param));
                         });

}  // namespace
}  // namespace contract
