// Bytes on the wire, against examples worked out by hand from docs/hardware/nht.md and ualink.md.
#include <gtest/gtest.h>

#include "bench.h"
#include "fabric/layout.h"
#include "fabric/message.h"
#include "fabric/packet.h"
#include "fabric/write_back.h"

namespace {

using namespace fabric;
using fabric_test::SeededRandom;

constexpr AccelId kSelf(3);
constexpr AccelId kPeer(5);
const Handle kHandle{.lo = 0x1122334455667403, .hi = 0x99AABBCCDDEEFF00};

// The form that gpuumd_handle_format() writes and gpuumd_handle_parse() takes.
TEST(Handles, U34_TextAndBytes) {
  EXPECT_EQ(to_string(kHandle), "99aabbccddeeff001122334455667403");
  EXPECT_EQ(to_string(Handle{.lo = 0x403, .hi = 1}), "00000000000000010000000000000403");
  const auto back = parse_handle("99AABBCCDDEEFF001122334455667403");
  ASSERT_TRUE(back);
  EXPECT_EQ(*back, kHandle);
  for (const char* bad : {"", "99aabbccddeeff00", "99aabbccddeeff00112233445566740",
                          "99aabbccddeeff0011223344556674033", "99aabbccddeeff00:1122334455667403",
                          "99aabbccddeeff0g1122334455667403", "+9aabbccddeeff001122334455667403"}) {
    EXPECT_FALSE(parse_handle(bad)) << bad;
  }
}

// Errata A8: a low half that comes out as zero, or is taken, is drawn again and tested anew.
TEST(Handles, A8_ZeroAndTakenAreDrawnAgain) {
  struct Scripted : RandomSource {
    std::vector<std::uint64_t> values{0x3FF, 1, 0x400, 2, 0x800, 3};
    std::size_t at = 0;
    std::uint64_t next() override { return values.at(at++ % values.size()); }
  } random;
  const auto handle = make_handle(AccelId(0), random, [](std::uint64_t lo) { return lo == 0x400; });
  ASSERT_TRUE(handle);
  EXPECT_EQ(*handle, (Handle{.lo = 0x800, .hi = 3}));
  const auto none = make_handle(AccelId(0), random, [](std::uint64_t) { return true; });
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Errc::kNoSpace);
}

TEST(Messages, WorkedExamples) {
  EXPECT_EQ(encode(Hello{kPeer, kSelf, std::nullopt}), (Dwords{0x0030'1401, 0, 0, 0}));
  EXPECT_EQ(encode(HelloAck{}), (Dwords{2, 0, 0, 0}));
  EXPECT_EQ(encode(NpaReq{kHandle}), (Dwords{0x55667403, 0x11223344, 0xDDEEFF00, 0x99AABBCC}));
  EXPECT_EQ(encode(NpaRsp{kHandle.lo, 0x200, 0x1234}),
            (Dwords{0x55667404, 0x11223344, 0x200, 0x1234}));
  EXPECT_EQ(encode(NpaFail{kHandle.lo, FailReason::kUnknownHandle}),
            (Dwords{0x55667405, 0x11223344, 2, 0}));
  EXPECT_EQ(encode(NpaRevoke{kHandle}), (Dwords{0x55667406, 0x11223344, 0xDDEEFF00, 0x99AABBCC}));
  EXPECT_EQ(encode(NpaRelease{kHandle}), (Dwords{0x55667407, 0x11223344, 0xDDEEFF00, 0x99AABBCC}));
}

TEST(Messages, U06_ExtensionRidesOnFreeFields) {
  const Extension extension{.capabilities = 3, .nonce = 0xABCD1234};
  EXPECT_EQ(encode(Hello{kPeer, kSelf, extension}),
            (Dwords{0x0030'1401, 0x5547'0100, 3, 0xABCD1234}));
  EXPECT_EQ(encode(HelloAck{extension, 0xFFCD1234}),
            (Dwords{(0x0D1234U << 10) | 2, 0x5547'0100, 3, 0xABCD1234}));
  const auto hello = decode({0x0030'1401, 0x5547'01FF, 9, 7}, kPeer, kSelf);
  EXPECT_EQ(std::get<Hello>(*hello).extension, (Extension{9, 7}));
  // Another magic, or no nonce: no extension.
  for (const Dwords& plain :
       {Dwords{0x0030'1401, 0x5546'0100, 3, 7}, Dwords{0x0030'1401, 0x5547'0100, 3, 0}}) {
    EXPECT_FALSE(std::get<Hello>(*decode(plain, kPeer, kSelf)).extension);
  }
}

// The type covers handle_lo bits 9:0; the receiver puts the exporter's id back.
TEST(Messages, U33_DecodeRestoresIdsAndMasks) {
  const Dwords req = encode(NpaReq{kHandle});
  EXPECT_EQ(std::get<NpaReq>(*decode(req, kSelf, kPeer)).handle, kHandle);
  const Dwords revoke = encode(NpaRevoke{kHandle});
  EXPECT_EQ(std::get<NpaRevoke>(*decode(revoke, kPeer, kSelf)).handle, kHandle);
  const auto rsp = std::get<NpaRsp>(*decode(encode(NpaRsp{kHandle.lo, 1, 2}), kPeer, kSelf));
  EXPECT_EQ(rsp, (NpaRsp{kHandle.lo, 1, 2}));
  // HELLO bits 31:30 mean nothing.
  const auto hello = std::get<Hello>(*decode({0xC030'1401, 0, 0, 0}, kPeer, kSelf));
  EXPECT_EQ(hello, (Hello{kPeer, kSelf, std::nullopt}));
  for (std::uint32_t reason : {0U, 5U, 255U, 0x105U}) {
    const auto fail = std::get<NpaFail>(*decode({0x55667405, 0, reason, 0}, kPeer, kSelf));
    EXPECT_EQ(fail.reason, FailReason::kOther) << reason;
  }
  EXPECT_FALSE(decode({0, 0, 0, 0}, kPeer, kSelf));
  EXPECT_FALSE(decode({8, 0, 0, 0}, kPeer, kSelf));
}

TEST(Packets, U40_WorkedExamples) {
  EXPECT_EQ(interrupt_packet(7, {0xA, 0xB, 0xC, 0xD}),
            (Packet{0x3000'0002, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xA, 0xB, 0xC, 0xD}));
  EXPECT_EQ(shootdown_packet(8, true),
            (Packet{0x3000'0001, 8, 0, 0, 0, 0, 0, 0, 0xFFFF'F802, 0x000F'FFFF, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(shootdown_packet(8, false)[8], 0xFFFF'F801);
  EXPECT_EQ(write_back_packet(1, Npa(0x0000'0600'0080'00A3)),
            (Packet{0x3000'0003, 1, 0x0080'00A0, 0x0000'0600, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
}

TEST(Records, U03_A16_OneAccessorKnowsTheOrder) {
  alignas(16) std::byte memory[kRecordBytes];
  base::store(std::span(memory), 0, std::uint32_t{0x11});
  base::store(std::span(memory), 4, std::uint32_t{5});
  base::store(std::span(memory), 8, std::uint64_t{0x2'0000'0003});
  EXPECT_EQ(read_record(memory), (WriteBackRecord{0x11, 5, 0x2'0000'0003}));
}

// Errata A17, U46: ring, pointer and record places agree between the owner's view, the sender's
// view and the metadata, in both modes.
TEST(Layouts, A17_U46_BothEndsAgree) {
  for (AddressMode mode : {AddressMode::kAlias, AddressMode::kIdent}) {
    const Layout receiver(mode, kPeer, 0x800);
    const Layout sender(mode, kSelf, 0x900);
    const auto own_offset = [&](Npa remote) -> std::optional<std::uint64_t> {
      // What the fabric does with bits 50:41 (D38), then the receiver's NPA table.
      EXPECT_EQ(remote.value() >> 41, kPeer.value());
      const std::uint64_t page =
          (remote.page() & (kWindowPages - 1)) |
          (mode == AddressMode::kIdent ? static_cast<std::uint64_t>(kSelf.value()) << kWindowShift
                                       : 0);
      for (const auto& mapping : receiver.mappings(kSelf)) {
        if (mapping.records || page < mapping.range.page || page >= mapping.range.end()) continue;
        return mapping.offset_bytes + ((page - mapping.range.page) << 12) +
               remote.value() % base::kPageSize;
      }
      return std::nullopt;
    };
    for (RingType ring : {RingType::kInterrupt, RingType::kShootdown}) {
      EXPECT_EQ(own_offset(sender.remote_slot(kPeer, ring, 66)),
                receiver.ring_offset(kSelf, ring) + 2 * 64);
      EXPECT_EQ(own_offset(sender.remote_pointer(kPeer, ring)),
                receiver.pointer_offset(kSelf, ring));
    }
  }
}

TEST(Layouts, AliasAddresses) {
  const Layout layout(AddressMode::kAlias, kSelf, 0x812);
  EXPECT_EQ(layout.remote_slot(kPeer, RingType::kInterrupt, 1),
            Npa(5ULL << 41 | 0x20'0000 | 3 << 13 | 0x1000 | 64));
  EXPECT_EQ(layout.remote_slot(kPeer, RingType::kShootdown, 0),
            Npa(5ULL << 41 | 0x20'0000 | 3 << 13));
  EXPECT_EQ(layout.remote_pointer(kPeer, RingType::kShootdown),
            Npa(5ULL << 41 | 0x20'0000 | 5 << 13 | 16 * 3 | 8));
  EXPECT_EQ(layout.record_npa(kPeer, RingType::kShootdown),
            Npa(3ULL << 41 | 0x81'2000 | 32 * 5 | 16));
  EXPECT_EQ(layout.record_offset(kPeer, RingType::kInterrupt), 32U * 5);
  EXPECT_EQ(layout.ring_buffer_bytes(), 2 * base::kMiB);
  EXPECT_EQ(layout.record_buffer_bytes(), 8 * base::kKiB);
}

TEST(Layouts, U05_U23_IdentPointerPage) {
  const Layout layout(AddressMode::kIdent, kSelf);
  EXPECT_EQ(layout.remote_slot(kPeer, RingType::kShootdown, 0), Npa(5ULL << 41));
  EXPECT_EQ(layout.remote_slot(kPeer, RingType::kInterrupt, 0), Npa(5ULL << 41 | 0x1000));
  EXPECT_EQ(layout.remote_pointer(kPeer, RingType::kInterrupt), Npa(5ULL << 41 | 0x2000));
  EXPECT_EQ(layout.remote_pointer(kPeer, RingType::kShootdown), Npa(5ULL << 41 | 0x2008));
  EXPECT_EQ(layout.record_npa(kPeer, RingType::kInterrupt).value() & 0xFFFF, 0x2010U);
  EXPECT_EQ(layout.record_offset(kPeer, RingType::kShootdown), 2 * base::kMiB + 5 * 4096 + 32);
  EXPECT_EQ(layout.ring_buffer_bytes(), 3 * base::kMiB);
}

// The index is the opposite of the ring's type.
TEST(Layouts, U39_Doorbell) {
  EXPECT_EQ(Layout::doorbell(kPeer, RingType::kInterrupt, 2),
            Npa(0xFFFULL << 40 | 5ULL << 30 | 0x200));
  EXPECT_EQ(Layout::doorbell(kPeer, RingType::kShootdown, 15),
            Npa(0xFFFULL << 40 | 5ULL << 30 | 0xF40));
}

TEST(Metadata, U42_LocalAddressesOfMembersOnly) {
  const Layout layout(AddressMode::kAlias, kSelf, 0x800);
  AccelSet members;
  members.set(3);
  members.set(5);
  const auto table = metadata_table(layout, base::McAddress(0x80'0100'0000), members);
  ASSERT_EQ(table.size(), 10'240U);
  const std::span entry(table.data() + 5 * 40, 40);
  EXPECT_EQ(base::load<std::uint32_t>(entry, 0), 0x4E48'5446U);
  EXPECT_EQ(base::load<std::uint32_t>(entry, 4), 6U);
  EXPECT_EQ(base::load<std::uint64_t>(entry, 8), 0x80'0100'B000U);
  EXPECT_EQ(base::load<std::uint64_t>(entry, 16), 0x80'0100'A000U);
  EXPECT_EQ(base::load<std::uint64_t>(entry, 24), 0x80'0100'6050U);
  EXPECT_EQ(base::load<std::uint64_t>(entry, 32), 0x80'0100'6058U);
  for (std::size_t id = 0; id < 256; ++id) {
    EXPECT_TRUE(id == 5 || base::load<std::uint64_t>(table, id * 40) == 0) << id;
  }
}

TEST(Pod, ChecksEveryField) {
  auto good = fabric_test::pod(3, {3, 5});
  EXPECT_EQ(state_of(good), AccelState::kReady);
  auto bad = good;
  bad.accel_id = 16;
  EXPECT_FALSE(check_physical_pod(bad));
  bad = good;
  bad.vpod_size = 3;
  EXPECT_EQ(state_of(bad), AccelState::kError);
  bad = good;
  bad.members.reset(3).set(6);
  EXPECT_EQ(state_of(bad), AccelState::kError);
  bad = good;
  bad.members.reset(5).set(16);
  EXPECT_EQ(state_of(bad), AccelState::kError);
  bad = good;
  bad.addr_mode = 2;
  EXPECT_EQ(state_of(bad), AccelState::kError);
  auto none = good;
  none.vpod_id = 0xFFFF'FFFF;
  EXPECT_EQ(state_of(none), AccelState::kPodConfigured);
  auto neighbour = fabric_test::pod(5, {3, 5});
  EXPECT_TRUE(check_same_host(good, neighbour));
  neighbour.vpod_id = 8;
  EXPECT_FALSE(check_same_host(good, neighbour));
}

}  // namespace
