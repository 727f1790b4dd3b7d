// Imports: capability, sharing, revoke, release, and everything a wrong answer may do.
#include <gtest/gtest.h>

#include "bench.h"

namespace {

using namespace fabric;
using fabric_test::Bench;
using namespace std::chrono_literals;

constexpr AccelId kPeer = Bench::kPeer;
const Handle kRemote{.lo = 0xABCD'0000'0000'0005, .hi = 0x1234};
const Handle kHalf{.lo = kRemote.lo, .hi = 0x9999};

struct Imports : ::testing::Test {
  Bench bench;
  void activate(bool extended = true) {
    if (!extended) bench.peers[kPeer].extension.reset();
    bench.activate();
  }
  Token open(const Handle& handle) {
    const auto t = bench.token();
    bench.node.import_handle(bench.now, t, handle);
    bench.run();
    return t;
  }
};

TEST_F(Imports, UAL_4_SameHandleSameObject) {
  activate();
  const auto a = bench.imported(kPeer, kRemote, 0x1234);
  EXPECT_EQ(a.at, Npa(5ULL << 41 | 0x1234ULL << 12));
  EXPECT_EQ(a.pages, 4U);
  const auto t = open(kRemote);
  ASSERT_TRUE(bench.ok(t));
  EXPECT_EQ((**bench.result(t)).import, a.import);
  EXPECT_EQ(bench.got<NpaReq>(kPeer).size(), 1U);
  EXPECT_TRUE(bench.node.close_import(bench.now, a.import));
  bench.run();
  EXPECT_TRUE(bench.got<NpaRelease>(kPeer).empty());
  EXPECT_TRUE(bench.node.close_import(bench.now, a.import));
  bench.run();
  EXPECT_EQ(bench.got<NpaRelease>(kPeer).size(), 1U);
  EXPECT_FALSE(bench.node.close_import(bench.now, a.import));
}

// Errata A2: half of the handle is nothing, also when the other half is imported already.
TEST_F(Imports, A2_AllBitsCount) {
  activate();
  bench.imported(kPeer, kRemote);
  const auto t = open(kHalf);
  EXPECT_EQ(bench.result(t), nullptr);
  EXPECT_EQ(bench.got<NpaReq>(kPeer).back().handle, kHalf);
  bench.receive(kPeer, NpaFail{kHalf.lo, FailReason::kUnknownHandle});
  EXPECT_EQ(bench.error(t), Errc::kNotFound);
  EXPECT_EQ(bench.node.imports().size(), 1U);
}

TEST_F(Imports, U15_OneRequestPerLowHalf) {
  activate();
  const auto t = open(kRemote);
  const auto u = open(kHalf);
  EXPECT_EQ(bench.error(u), Errc::kAgain);
  bench.receive(kPeer, NpaRsp{kRemote.lo, 4, 9});
  EXPECT_TRUE(bench.ok(t));
  // A repeated answer changes nothing.
  bench.receive(kPeer, NpaRsp{kRemote.lo, 8, 77});
  bench.receive(kPeer, NpaFail{kRemote.lo, FailReason::kOther});
  const auto v = open(kRemote);
  EXPECT_EQ((**bench.result(v)).at, Npa(5ULL << 41 | 9 << 12));
}

// Errata A13: the last close gives the memory back.
TEST_F(Imports, A13_LastCloseReleases) {
  activate();
  const auto a = bench.imported(kPeer, kRemote);
  EXPECT_TRUE(bench.node.close_import(bench.now, a.import));
  bench.run();
  ASSERT_EQ(bench.got<NpaRelease>(kPeer).size(), 1U);
  EXPECT_EQ(bench.got<NpaRelease>(kPeer)[0].handle, kRemote);  // all 128 bits (errata A24)
  EXPECT_TRUE(bench.node.imports().empty());
  EXPECT_TRUE(bench.detaches.empty());
}

// U09, U22: a reference exporter is not sent what it ignores, nor asked twice.
TEST_F(Imports, U09_U22_RecordIsKeptTowardsAReferencePeer) {
  activate(false);
  const auto a = bench.imported(kPeer, kRemote);
  EXPECT_TRUE(bench.node.close_import(bench.now, a.import));
  bench.run();
  EXPECT_TRUE(bench.got<NpaRelease>(kPeer).empty());
  const auto t = open(kRemote);
  ASSERT_TRUE(bench.ok(t));
  EXPECT_EQ((**bench.result(t)).import, a.import);
  EXPECT_EQ(bench.got<NpaReq>(kPeer).size(), 1U);
  EXPECT_TRUE(bench.node.close_import(bench.now, a.import));
  bench.receive(kPeer, NpaRevoke{kRemote});
  EXPECT_EQ(bench.got<NpaRelease>(kPeer).size(), 1U);
  EXPECT_TRUE(bench.detaches.empty());  // nobody had it mapped
}

TEST_F(Imports, U22_ResetBeforeAskingAgainAfterATimeOut) {
  activate(false);
  const auto t = open(kRemote);
  bench.advance(5s);
  EXPECT_EQ(bench.error(t), Errc::kTimeout);
  EXPECT_EQ(bench.connection(kPeer), ConnectionState::kNotReady);
  open(kRemote);
  EXPECT_EQ(bench.got<Hello>(kPeer).size(), 2U);
  EXPECT_EQ(bench.got<NpaReq>(kPeer).size(), 2U);
}

TEST_F(Imports, U37_TimeOutResetsOurEndSilently) {
  activate();
  const auto a = bench.imported(kPeer, kRemote);
  open(Handle{kRemote.lo + 0x400, 1});
  bench.advance(5s);
  EXPECT_EQ(bench.connection(kPeer), ConnectionState::kNotReady);
  ASSERT_EQ(bench.detaches.size(), 1U);
  EXPECT_EQ(bench.detaches[0].import, a.import);
  EXPECT_TRUE(bench.got<NpaRelease>(kPeer).empty());
  // The peer does not know: its REVOKE is answered all the same.
  bench.receive(kPeer, NpaRevoke{kRemote});
  EXPECT_EQ(bench.got<NpaRelease>(kPeer).size(), 1U);
}

// U16, errata A3: REVOKE is answered whatever is known of the handle, and twice if it comes twice.
TEST_F(Imports, A3_U16_RevokeIsAlwaysAnswered) {
  activate();
  bench.receive(kPeer, NpaRevoke{kRemote});  // unknown
  EXPECT_EQ(bench.got<NpaRelease>(kPeer).size(), 1U);
  const auto waiting = open(kRemote);
  bench.receive(kPeer, NpaRevoke{kRemote});  // waiting for RSP
  EXPECT_EQ(bench.got<NpaRelease>(kPeer).size(), 2U);
  EXPECT_EQ(bench.error(waiting), Errc::kRevoked);
  bench.receive(kPeer, NpaRsp{kRemote.lo, 4, 9});
  EXPECT_TRUE(bench.node.imports().empty());
  bench.imported(kPeer, kRemote);
  bench.receive(kPeer, NpaRevoke{kHalf});  // other upper half: answered, nothing changed
  EXPECT_EQ(bench.got<NpaRelease>(kPeer).back().handle, kHalf);
  EXPECT_TRUE(bench.detaches.empty());
  bench.hold_detaches = true;
  bench.receive(kPeer, NpaRevoke{kRemote});  // ready
  bench.receive(kPeer, NpaRevoke{kRemote});  // being torn down
  EXPECT_EQ(bench.detaches.size(), 1U);
  EXPECT_EQ(bench.got<NpaRelease>(kPeer).size(), 3U);
  bench.done(bench.detaches[0].op);
  EXPECT_EQ(bench.got<NpaRelease>(kPeer).size(), 5U);
}

TEST_F(Imports, UAL_5_RevokedObjectIsGoneForItsHolder) {
  activate();
  const auto a = bench.imported(kPeer, kRemote);
  bench.receive(kPeer, NpaRevoke{kRemote});
  EXPECT_EQ(bench.detaches.at(0).reason, Errc::kRevoked);
  EXPECT_EQ(bench.node.close_import(bench.now, a.import).error().code, Errc::kNotFound);
}

TEST_F(Imports, OpenDuringTeardownAsksAfresh) {
  activate();
  const auto a = bench.imported(kPeer, kRemote);
  bench.hold_detaches = true;
  bench.receive(kPeer, NpaRevoke{kRemote});
  const auto t = open(kRemote);
  EXPECT_EQ(bench.result(t), nullptr);
  bench.done(bench.detaches.at(0).op);
  EXPECT_EQ(bench.got<NpaReq>(kPeer).size(), 2U);
  bench.receive(kPeer, NpaRsp{kRemote.lo, 4, 10});
  ASSERT_TRUE(bench.ok(t));
  EXPECT_NE((**bench.result(t)).import, a.import);
}

// A teardown that fails leaves memory mapped: no RELEASE and no new connection may say otherwise.
TEST_F(Imports, FailedTeardownIsNotHidden) {
  activate();
  bench.imported(kPeer, kRemote);
  bench.failing.insert("detach");
  bench.receive(kPeer, NpaRevoke{kRemote});
  EXPECT_TRUE(bench.got<NpaRelease>(kPeer).empty());
  EXPECT_EQ(bench.error(open(kRemote)), Errc::kDeviceError);
  const auto acks = bench.got<HelloAck>(kPeer).size();
  bench.hello_from(kPeer, Extension{3, 8});
  bench.advance(6s);
  EXPECT_EQ(bench.got<HelloAck>(kPeer).size(), acks);
}

TEST_F(Imports, U31_SenselessAnswers) {
  activate();
  for (const auto& [pages, page] :
       std::vector<std::pair<std::uint32_t, std::uint32_t>>{{0, 9},
                                                            {4, 0},
                                                            {4, 1U << 29},
                                                            {4, 0xFFFF'FFFF},
                                                            {2, (1U << 29) - 1},
                                                            {0xFFFF'FFFF, 9}}) {
    const auto t = open(kRemote);
    bench.receive(kPeer, NpaRsp{kRemote.lo, pages, page});
    EXPECT_EQ(bench.error(t), Errc::kProtocol) << pages << " at " << page;
    EXPECT_EQ(bench.connection(kPeer), ConnectionState::kEstablished);
  }
  EXPECT_EQ(bench.got<NpaRelease>(kPeer).size(), 6U);
  const auto t = open(kRemote);
  bench.receive(kPeer, NpaRsp{kRemote.lo, 1, (1U << 29) - 1});
  EXPECT_TRUE(bench.ok(t));
}

TEST_F(Imports, FailReasonsAreTyped) {
  activate();
  const std::pair<FailReason, Errc> kCases[] = {{FailReason::kNoSpace, Errc::kNoSpace},
                                                {FailReason::kUnknownHandle, Errc::kNotFound},
                                                {FailReason::kDuplicate, Errc::kExists},
                                                {FailReason::kOther, Errc::kRefused}};
  for (const auto& [reason, errc] : kCases) {
    const auto t = open(kRemote);
    bench.receive(kPeer, NpaFail{kRemote.lo, reason});
    EXPECT_EQ(bench.error(t), errc);
  }
}

// U32: a reference peer has at most 16 unanswered questions; the others wait, and all end in time.
TEST_F(Imports, U32_QuestionsToAReferencePeerAreLimited) {
  activate(false);
  bench.imported(kPeer, kRemote);
  std::vector<Token> tokens;
  for (std::uint64_t i = 1; i <= 20; ++i) tokens.push_back(open({kRemote.lo + 0x400 * i, 1}));
  EXPECT_EQ(bench.got<NpaReq>(kPeer).size(), 17U);
  bench.receive(kPeer, NpaRsp{kRemote.lo + 0x400, 4, 9});
  EXPECT_EQ(bench.got<NpaReq>(kPeer).size(), 18U);
  bench.advance(20s);
  for (Token t : tokens) EXPECT_NE(bench.result(t), nullptr);
}

TEST_F(Imports, RefusesWhatCannotBe) {
  EXPECT_EQ(bench.error(open(kRemote)), Errc::kUnsupported);  // not active
  activate();
  EXPECT_EQ(bench.error(open(bench.exported(1))), Errc::kInvalidArgument);
  EXPECT_EQ(bench.error(open({.lo = 4, .hi = 1})), Errc::kInvalidArgument);  // no member
}

TEST_F(Imports, U36_ColdImportOfASilentPeerEndsInTime) {
  bench.peers[kPeer].answers_hello = false;
  activate();
  bench.advance(10s);
  const auto t = open(kRemote);
  bench.advance(4900ms);
  EXPECT_EQ(bench.result(t), nullptr);
  bench.advance(200ms);
  EXPECT_EQ(bench.error(t), Errc::kTimeout);
}

}  // namespace
