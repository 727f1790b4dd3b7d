// HELLO, ACK, generations, resynchronisation, and what hostile or broken peers may do.
#include <gtest/gtest.h>

#include "bench.h"

namespace {

using namespace fabric;
using fabric_test::Bench;
using namespace std::chrono_literals;
using State = ConnectionState;

constexpr AccelId kPeer = Bench::kPeer;
constexpr AccelId kOther = Bench::kOther;
const Handle kRemote{.lo = 0xABCD'0000'0000'0005, .hi = 0x1234};

TEST(Connection, U18_HelloToEveryMemberAtActivation) {
  Bench bench;
  bench.activate();
  EXPECT_EQ(bench.got<Hello>(kPeer).size(), 1U);
  EXPECT_EQ(bench.got<Hello>(kOther).size(), 1U);
  EXPECT_EQ(bench.connection(kPeer), State::kEstablished);
  EXPECT_EQ(bench.info(kPeer).generation, 1U);
  EXPECT_TRUE(bench.info(kPeer).extension);
}

// A reference peer's ACK has no ids and no extension.
TEST(Connection, U01_BareAckConnects) {
  Bench bench;
  bench.peers[kPeer].extension.reset();
  bench.activate();
  EXPECT_EQ(bench.connection(kPeer), State::kEstablished);
  EXPECT_FALSE(bench.info(kPeer).extension);
}

TEST(Connection, U06_AckWithAnotherEchoIsIgnored) {
  Bench bench;
  bench.peers[kPeer].answers_hello = false;
  bench.activate();
  bench.receive(kPeer, HelloAck{Extension{3, 9}, 12345});
  EXPECT_EQ(bench.connection(kPeer), State::kInProgress);
  const auto nonce = bench.got<Hello>(kPeer).at(0).extension->nonce;
  bench.receive(kPeer, HelloAck{Extension{3, 9}, nonce});
  EXPECT_EQ(bench.connection(kPeer), State::kEstablished);
}

TEST(Connection, U06_CopyOfAHelloIsAnsweredWithoutReset) {
  Bench bench;
  bench.activate();
  bench.hello_from(kPeer, Extension{3, 500});
  EXPECT_EQ(bench.info(kPeer).generation, 2U);
  const auto import = bench.imported(kPeer, kRemote);
  bench.receive(kPeer, Hello{Bench::kSelf, kPeer, Extension{3, 500}});
  EXPECT_EQ(bench.info(kPeer).generation, 2U);
  EXPECT_EQ(bench.got<HelloAck>(kPeer).size(), 2U);
  EXPECT_EQ(bench.got<HelloAck>(kPeer).back().echo, 500U);
  EXPECT_TRUE(bench.detaches.empty());
  bench.receive(kPeer, Hello{Bench::kSelf, kPeer, Extension{3, 501}});
  EXPECT_EQ(bench.info(kPeer).generation, 3U);
  ASSERT_EQ(bench.detaches.size(), 1U);
  EXPECT_EQ(bench.detaches[0].import, import.import);
}

// Errata A4: one check at the door, for every type.
TEST(Connection, A4_SenderIsCheckedOnce) {
  Bench bench;
  bench.activate();
  const auto export_handle = bench.exported(1);
  for (std::uint32_t sender : {3U, 4U, 16U, 255U, 1023U, 1024U, 70'000U, 0xFFFF'FFFFU}) {
    for (const Message& m :
         {Message(Hello{Bench::kSelf, AccelId(4), std::nullopt}), Message(HelloAck{}),
          Message(NpaReq{export_handle}), Message(NpaRsp{1, 2, 3}), Message(NpaFail{}),
          Message(NpaRevoke{export_handle}), Message(NpaRelease{export_handle})}) {
      bench.node.handle(bench.now, MessageReceived{sender, encode(m)});
      bench.run();
    }
  }
  EXPECT_EQ(bench.node.counters().messages_bad_sender, 8U * 7);
  EXPECT_EQ(bench.logged("pin"), 0U);
  // A HELLO that names others than the two ends.
  bench.receive(kPeer, Hello{Bench::kSelf, kOther, std::nullopt});
  bench.receive(kPeer, Hello{kOther, kPeer, std::nullopt});
  EXPECT_EQ(bench.node.counters().messages_bad_sender, 8U * 7 + 2);
  EXPECT_EQ(bench.info(kPeer).generation, 1U);
}

TEST(Connection, U20_CrossedHello) {
  Bench bench;
  bench.peers[kPeer].answers_hello = false;
  bench.activate();
  EXPECT_EQ(bench.connection(kPeer), State::kInProgress);
  bench.receive(kPeer, Hello{Bench::kSelf, kPeer, Extension{3, 8}});
  EXPECT_EQ(bench.connection(kPeer), State::kEstablished);
  EXPECT_EQ(bench.info(kPeer).generation, 1U);
  // The late ACK to ours finds ESTABLISHED.
  bench.receive(kPeer, HelloAck{});
  EXPECT_EQ(bench.info(kPeer).generation, 1U);
  EXPECT_EQ(bench.got<HelloAck>(kPeer).size(), 1U);
}

// A HELLO that is still in the queue when the peer's arrives is not sent any more.
TEST(Connection, U20_UnsentHelloIsWithdrawn) {
  Bench bench;
  bench.peers[kPeer].writes_back = false;  // opcode 3 stays in flight, HELLO behind it
  bench.activate();
  bench.peers[kPeer].writes_back = true;
  bench.node.handle(bench.now,
                    MessageReceived{kPeer.value(), encode(Hello{Bench::kSelf, kPeer, {}})});
  for (const auto& post : std::vector(bench.posts)) {
    if (post.peer == kPeer) bench.write_back(post);
  }
  bench.run();
  EXPECT_EQ(bench.got<Hello>(kPeer).size(), 0U);
  EXPECT_EQ(bench.got<HelloAck>(kPeer).size(), 1U);
  EXPECT_EQ(bench.connection(kPeer), State::kEstablished);
}

// U12: ESTABLISHED as soon as the ACK is in the ring; a failed write-back resets.
TEST(Connection, U12_AckInTheRingIsEnough) {
  Bench bench;
  bench.activate();
  const auto handle = bench.exported(1);
  bench.peers[kPeer].writes_back = false;
  bench.receive(kPeer, Hello{Bench::kSelf, kPeer, Extension{3, 8}});
  EXPECT_EQ(bench.connection(kPeer), State::kEstablished);
  bench.receive(kPeer, NpaReq{handle});
  EXPECT_EQ(bench.logged("map"), 3U);  // rings, records, the export
  bench.advance(3s);
  EXPECT_EQ(bench.connection(kPeer), State::kNotReady);
  EXPECT_EQ(bench.logged("gone"), 1U);
}

// A request between the peer's HELLO and our ACK waits for the ACK instead of being lost.
TEST(Connection, RequestWhilePendingIsKept) {
  Bench bench;
  bench.activate();
  const auto handle = bench.exported(1);
  bench.imported(kPeer, kRemote);
  bench.hold_detaches = true;
  bench.hello_from(kPeer, Extension{3, 8});
  EXPECT_EQ(bench.connection(kPeer), State::kPending);
  bench.receive(kPeer, NpaReq{handle});
  EXPECT_TRUE(bench.got<NpaRsp>(kPeer).empty());
  bench.done(bench.detaches.at(0).op);
  EXPECT_EQ(bench.connection(kPeer), State::kEstablished);
  EXPECT_EQ(bench.got<NpaRsp>(kPeer).size(), 1U);
}

TEST(Connection, U14_UnconnectedRequestsStartHello) {
  Bench bench;
  bench.peers[kPeer].answers_hello = false;
  bench.activate();
  const auto handle = bench.exported(1);
  bench.advance(6s);
  EXPECT_EQ(bench.connection(kPeer), State::kNotReady);
  bench.receive(kPeer, NpaReq{handle});
  EXPECT_EQ(bench.connection(kPeer), State::kInProgress);
  EXPECT_EQ(bench.got<Hello>(kPeer).size(), 2U);
  EXPECT_TRUE(bench.got<NpaFail>(kPeer).empty());
  // IN_PROGRESS: nothing more.
  bench.receive(kPeer, NpaRsp{kRemote.lo, 1, 1});
  EXPECT_EQ(bench.got<Hello>(kPeer).size(), 2U);
}

TEST(Connection, U14_RequestIsRepeatedAfterThePeersHello) {
  Bench bench;
  bench.activate();
  const auto t = bench.token();
  bench.node.import_handle(bench.now, t, kRemote);
  bench.run();
  EXPECT_EQ(bench.got<NpaReq>(kPeer).size(), 1U);
  bench.hello_from(kPeer, std::nullopt);
  EXPECT_EQ(bench.got<NpaReq>(kPeer).size(), 2U);
  EXPECT_EQ(bench.result(t), nullptr);
  bench.receive(kPeer, NpaRsp{kRemote.lo, 4, 9});
  EXPECT_TRUE(bench.ok(t));
}

// U19: (b) pointers are read on every HELLO before the ACK; a read that fails means no ACK.
TEST(Connection, U19_ResyncBeforeTheAck) {
  Bench bench;
  bench.activate();
  const auto reads = bench.logged("read");
  bench.peers[kPeer].wptr[1] = 0;  // restarted: the words are zero
  bench.peers[kPeer].wptr[0] = 0;
  bench.posts.clear();
  bench.receive(kPeer, Hello{Bench::kSelf, kPeer, Extension{3, 8}});
  EXPECT_EQ(bench.logged("read"), reads + 1);
  ASSERT_GE(bench.posts.size(), 2U);
  EXPECT_EQ(bench.posts[0].opcode, 3U);  // a pointer differed: not ready
  EXPECT_EQ(bench.posts[0].wptr, 1U);
  EXPECT_GT(bench.posts[0].sequence, 1U);  // sequences go on (U35)
  const auto acks = bench.got<HelloAck>(kPeer).size();
  bench.peers[kPeer].reachable = false;
  bench.receive(kPeer, Hello{Bench::kSelf, kPeer, Extension{3, 9}});
  EXPECT_EQ(bench.connection(kPeer), State::kNotReady);
  EXPECT_EQ(bench.got<HelloAck>(kPeer).size(), acks);
}

// U19 (c): an idle connection is proved before an import.
TEST(Connection, U19_IdleConnectionIsProved) {
  Bench bench;
  bench.activate();
  auto t = bench.token();
  const auto reads = bench.logged("read");
  bench.node.import_handle(bench.now, t, kRemote);
  bench.run();
  EXPECT_EQ(bench.logged("read"), reads + 1);
  EXPECT_EQ(bench.got<Hello>(kPeer).size(), 1U);  // equal: no HELLO
  bench.receive(kPeer, NpaFail{kRemote.lo, FailReason::kUnknownHandle});
  EXPECT_EQ(bench.error(t), Errc::kNotFound);
  bench.peers[kPeer].wptr[0] = bench.peers[kPeer].wptr[1] = 0;
  t = bench.token();
  bench.node.import_handle(bench.now, t, kRemote);
  bench.run();
  EXPECT_EQ(bench.got<Hello>(kPeer).size(), 2U);
  EXPECT_EQ(bench.got<NpaReq>(kPeer).size(), 2U);
}

// Errata A14, U19 (d): after a time-out nothing is sent before the pointers were read.
TEST(Connection, A14_U19_ResyncAfterATimeOut) {
  Bench bench;
  bench.activate();
  const auto t = bench.token();
  bench.peers[kPeer].writes_back = false;
  bench.node.import_handle(bench.now, t, kRemote);
  bench.run();
  bench.advance(2s);
  EXPECT_EQ(bench.error(t), Errc::kTimeout);
  EXPECT_EQ(bench.connection(kPeer), State::kNotReady);
  bench.peers[kPeer].writes_back = true;
  const auto reads = bench.logged("read");
  const auto u = bench.token();
  bench.node.import_handle(bench.now, u, kRemote);
  bench.run();
  EXPECT_GT(bench.logged("read"), reads);
  EXPECT_EQ(bench.connection(kPeer), State::kEstablished);
  bench.receive(kPeer, NpaRsp{kRemote.lo, 4, 9});
  EXPECT_TRUE(bench.ok(u));
}

// Errata A11: an answer that comes after its time-out satisfies nobody.
TEST(Connection, A11_LateAckIsNotTakenForTheNext) {
  Bench bench;
  bench.peers[kPeer].answers_hello = false;
  bench.activate();
  const auto first = bench.got<Hello>(kPeer).at(0).extension->nonce;
  bench.advance(6s);
  const auto t = bench.token();
  bench.node.import_handle(bench.now, t, kRemote);
  bench.run();
  ASSERT_EQ(bench.got<Hello>(kPeer).size(), 2U);
  bench.receive(kPeer, HelloAck{Extension{3, 9}, first});
  EXPECT_EQ(bench.connection(kPeer), State::kInProgress);
  bench.advance(6s);
  EXPECT_EQ(bench.error(t), Errc::kTimeout);
}

// Errata A12: nothing blocks. While one peer is silent another one is served, and an ACK that comes
// during our own HELLO is taken by the same thread.
TEST(Connection, A12_SilentPeerDelaysNobody) {
  Bench bench;
  bench.peers[kPeer].writes_back = false;
  bench.activate();
  const auto handle = bench.exported(1);
  bench.receive(kOther, NpaReq{handle});
  EXPECT_EQ(bench.got<NpaRsp>(kOther).size(), 1U);
  EXPECT_EQ(bench.connection(kPeer), State::kInProgress);
}

// Errata A22: 64 bits, and an activation does not start again at 1.
TEST(Connection, A22_GenerationsOutliveActivation) {
  Bench bench;
  static_assert(sizeof(Generation) == 8);
  bench.activate();
  bench.node.deactivate(bench.now, bench.token());
  bench.run();
  bench.activate();
  EXPECT_EQ(bench.info(kPeer).generation, 2U);
}

TEST(Connection, U45_HelloDropsBothDirectionsWithoutMessages) {
  Bench bench;
  bench.activate();
  const auto handle = bench.exported(1);
  bench.imported(kPeer, kRemote);
  bench.receive(kPeer, NpaReq{handle});
  bench.hello_from(kPeer, std::nullopt);
  EXPECT_EQ(bench.info(kPeer).generation, 2U);
  EXPECT_EQ(bench.detaches.size(), 1U);
  EXPECT_EQ(bench.logged("gone"), 1U);
  EXPECT_EQ(bench.logged("unpin"), 1U);
  EXPECT_TRUE(bench.got<NpaRevoke>(kPeer).empty());
  EXPECT_TRUE(bench.got<NpaRelease>(kPeer).empty());
}

// What was queued for the old connection is not sent on the new one.
TEST(Connection, U17_NothingOldOnTheNewConnection) {
  Bench bench;
  bench.peers[kPeer].extension.reset();  // one entry in flight
  bench.activate();
  const auto handle = bench.exported(1);
  bench.imported(kPeer, kRemote);
  bench.peers[kPeer].writes_back = false;
  bench.node.import_handle(bench.now, bench.token(), Handle{kRemote.lo + 0x400, 1});
  bench.run();
  const auto in_flight = bench.posts.back();
  bench.receive(kPeer, NpaReq{handle});  // its RSP waits behind
  bench.receive(kPeer, Hello{Bench::kSelf, kPeer, std::nullopt});
  bench.peers[kPeer].writes_back = true;
  bench.write_back(in_flight);
  EXPECT_EQ(bench.got<HelloAck>(kPeer).size(), 1U);
  EXPECT_TRUE(bench.got<NpaRsp>(kPeer).empty());
}

// The ACK says that nothing of the old connection is mapped, so it waits for the teardown.
TEST(Connection, AckWaitsForTheTeardownOfImports) {
  Bench bench;
  bench.activate();
  bench.imported(kPeer, kRemote);
  bench.hold_detaches = true;
  const auto acks = bench.got<HelloAck>(kPeer).size();
  bench.hello_from(kPeer, Extension{3, 8});
  EXPECT_EQ(bench.got<HelloAck>(kPeer).size(), acks);
  bench.done(bench.detaches.at(0).op);
  EXPECT_EQ(bench.got<HelloAck>(kPeer).size(), acks + 1);
}

TEST(Connection, LinkLossEndsEverythingAtOnce) {
  Bench bench;
  bench.activate();
  const auto handle = bench.exported(1);
  bench.receive(kPeer, NpaReq{handle});
  bench.imported(kPeer, kRemote);
  const auto t = bench.token();
  bench.node.import_handle(bench.now, t, Handle{kRemote.lo + 0x400, 1});
  bench.run();
  bench.node.handle(bench.now, LinkChanged{kPeer, false});
  bench.run();
  EXPECT_EQ(bench.error(t), Errc::kPeerLost);
  ASSERT_EQ(bench.detaches.size(), 1U);
  EXPECT_EQ(bench.detaches[0].reason, Errc::kPeerLost);
  EXPECT_EQ(bench.logged("unpin"), 1U);
  EXPECT_EQ(bench.node.counters().quarantined_ranges, 1U);
  const auto u = bench.token();
  bench.node.import_handle(bench.now, u, kRemote);
  bench.run();
  EXPECT_EQ(bench.error(u), Errc::kPeerLost);
  bench.node.handle(bench.now, LinkChanged{kPeer, true});
  bench.run();
  EXPECT_EQ(bench.connection(kPeer), State::kEstablished);
  EXPECT_EQ(bench.node.counters().quarantined_ranges, 0U);
}

TEST(Connection, FirmwareStatusEndsTheRequestTyped) {
  Bench bench;
  bench.activate();
  bench.peers[kPeer].status = 7;
  const auto t = bench.token();
  bench.node.import_handle(bench.now, t, kRemote);
  bench.run();
  EXPECT_EQ(bench.error(t), Errc::kRefused);
}

// Towards a reference peer one entry is in flight, towards ours several.
TEST(Connection, U28_DepthFollowsTheExtension) {
  for (bool extended : {false, true}) {
    Bench bench;
    if (!extended) bench.peers[kPeer].extension.reset();
    bench.activate();
    bench.imported(kPeer, kRemote);
    bench.peers[kPeer].writes_back = false;
    bench.posts.clear();
    for (std::uint64_t i = 1; i <= 5; ++i) {
      bench.node.import_handle(bench.now, bench.token(), Handle{kRemote.lo + 0x400 * i, 1});
    }
    bench.run();
    EXPECT_EQ(bench.posts.size(), extended ? 5U : 1U);
  }
}

TEST(Connection, U49_PortIsCountedBeforeUse) {
  Bench bench;
  bench.activate();
  std::uint64_t port = 0;
  for (const auto& post : bench.posts) {
    if (post.peer != kPeer) continue;
    port = (port + 1) % 16;
    EXPECT_EQ(post.raw.stores.at(2).at.value() >> 8 & 0xF, port);
    EXPECT_EQ(post.raw.stores.at(2).size, 4);
  }
}

TEST(Connection, MessagesOfNoKnownTypeAreCounted) {
  Bench bench;
  bench.activate();
  for (std::uint32_t type : {0U, 8U, 1023U}) {
    bench.node.handle(bench.now, MessageReceived{kPeer.value(), {type, 1, 2, 3}});
  }
  EXPECT_EQ(bench.node.counters().messages_unknown_type, 3U);
}

// A peer that neither takes answers nor stops asking costs a bounded queue.
TEST(Connection, AnswersToAFloodAreBounded) {
  Bench bench;
  bench.activate();
  bench.peers[kPeer].writes_back = false;
  for (std::uint64_t i = 0; i < 2000; ++i) bench.receive(kPeer, NpaRevoke{{0x400 * i + 5, i}});
  EXPECT_GT(bench.node.counters().sends_dropped, 1000U);
}

}  // namespace
