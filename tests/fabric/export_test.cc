// Exports: grants, revoke and its order, silent importers, quarantine, reference peers.
#include <gtest/gtest.h>

#include "bench.h"

namespace {

using namespace fabric;
using fabric_test::Bench;
using namespace std::chrono_literals;

constexpr AccelId kPeer = Bench::kPeer;
constexpr AccelId kOther = Bench::kOther;

struct Exports : ::testing::Test {
  Bench bench;
  Handle handle;

  void activate(bool extended = true) {
    if (!extended) bench.peers[kPeer].extension.reset();
    bench.activate();
    handle = bench.exported(1);
  }
  void granted(AccelId peer) {
    const auto before = bench.got<NpaRsp>(peer).size();
    bench.receive(peer, NpaReq{handle});
    ASSERT_EQ(bench.got<NpaRsp>(peer).size(), before + 1);
  }
  Token revoke() {
    const auto t = bench.token();
    bench.log.clear();
    bench.node.revoke(bench.now, t, handle);
    bench.run();
    return t;
  }
  std::vector<std::string> order(std::initializer_list<const char*> of) {
    std::vector<std::string> found;
    for (const auto& what : bench.log) {
      if (std::find(of.begin(), of.end(), what) != of.end()) found.push_back(what);
    }
    return found;
  }
};

TEST_F(Exports, UAL_1_NothingIsPinnedBeforeARequest) {
  activate();
  EXPECT_EQ(bench.logged("pin"), 0U);
  granted(kPeer);
  EXPECT_EQ(bench.logged("pin"), 1U);
  const auto& map = bench.updates.back();
  EXPECT_EQ(map.entry, NpaEntry::kMapped);
  EXPECT_EQ(map.range.pages, 4U);
  const auto rsp = bench.got<NpaRsp>(kPeer).at(0);
  EXPECT_EQ(rsp, (NpaRsp{handle.lo, 4, static_cast<std::uint32_t>(map.range.page)}));
  // A second importer shares the mapping (alias).
  granted(kOther);
  EXPECT_EQ(bench.got<NpaRsp>(kOther).at(0), rsp);
  EXPECT_EQ(bench.logged("pin"), 1U);
}

TEST_F(Exports, UAL_4_U47_SameBufferSameHandleUntilRevoked) {
  activate();
  EXPECT_EQ(bench.exported(1), handle);
  EXPECT_NE(bench.exported(2), handle);
  const auto t = revoke();
  EXPECT_TRUE(bench.ok(t));
  EXPECT_NE(bench.exported(1), handle);
  bench.receive(kPeer, NpaReq{handle});
  EXPECT_EQ(bench.got<NpaFail>(kPeer).back().reason, FailReason::kUnknownHandle);
}

// Errata A2 at the exporter, and the list of those who may.
TEST_F(Exports, A2_WrongHalfAndStrangersGetNothing) {
  activate();
  bench.receive(kPeer, NpaReq{{handle.lo, handle.hi ^ 1}});
  EXPECT_EQ(bench.got<NpaFail>(kPeer).size(), 1U);
  AccelSet only;
  only.set(kOther.value());
  const auto listed = *bench.node.export_buffer({BufferId(9), 4, only});
  bench.receive(kPeer, NpaReq{listed});
  EXPECT_EQ(bench.got<NpaFail>(kPeer).size(), 2U);
  bench.receive(kOther, NpaReq{listed});
  EXPECT_EQ(bench.got<NpaRsp>(kOther).size(), 1U);
}

// U13, errata A9: asked again, the answer is the same and nothing is pinned or mapped twice.
TEST_F(Exports, A9_U13_RepeatedRequestSameAnswer) {
  activate();
  granted(kPeer);
  granted(kPeer);
  EXPECT_EQ(bench.got<NpaRsp>(kPeer)[0], bench.got<NpaRsp>(kPeer)[1]);
  EXPECT_EQ(bench.logged("pin"), 1U);
  EXPECT_EQ(bench.node.find_export(handle)->importers.size(), 1U);
}

// Errata A10: what one importer's connection does is nothing to another one's grant.
TEST_F(Exports, A10_GrantsBelongToOneImporter) {
  activate();
  granted(kPeer);
  granted(kOther);
  bench.hello_from(kPeer, std::nullopt);
  EXPECT_EQ(bench.node.find_export(handle)->importers, std::vector{kOther});
  EXPECT_EQ(bench.logged("gone"), 0U);
  bench.hello_from(kOther, std::nullopt);
  EXPECT_EQ(bench.logged("gone"), 1U);
  EXPECT_EQ(bench.logged("unpin"), 1U);
}

// Errata A13, U09: the last voluntary RELEASE unpins.
TEST_F(Exports, A13_U09_VoluntaryRelease) {
  activate();
  granted(kPeer);
  granted(kOther);
  bench.receive(kPeer, NpaRelease{{handle.lo, handle.hi ^ 1}});  // another handle
  bench.receive(kPeer, NpaRelease{handle});
  EXPECT_EQ(bench.logged("unpin"), 0U);
  bench.receive(kOther, NpaRelease{handle});
  EXPECT_EQ(bench.logged("unpin"), 1U);
  EXPECT_EQ(bench.updates.back().entry, NpaEntry::kGone);
  EXPECT_EQ(bench.updates.back().flush, NpaFlush::kHeavy);
  EXPECT_EQ(bench.node.counters().quarantined_ranges, 0U);
  granted(kPeer);  // and again
}

TEST_F(Exports, RequestWhileUnmappingIsServedAfterwards) {
  activate();
  granted(kPeer);
  bench.hold_updates = true;
  bench.receive(kPeer, NpaRelease{handle});
  bench.receive(kPeer, NpaReq{handle});
  EXPECT_EQ(bench.got<NpaRsp>(kPeer).size(), 1U);
  bench.hold_updates = false;
  bench.done(bench.updates.back().op);
  EXPECT_EQ(bench.got<NpaRsp>(kPeer).size(), 2U);
  EXPECT_EQ(bench.logged("pin"), 2U);
}

// Errata A1, A27: retry, shootdown, no entries, memory back; only then the messages.
TEST_F(Exports, A1_A27_OrderOfARevoke) {
  activate();
  granted(kPeer);
  granted(kOther);
  const auto t = revoke();
  EXPECT_EQ(order({"retry", "post 1", "gone", "unpin"}),
            (std::vector<std::string>{"retry", "post 1", "post 1", "gone", "unpin"}));
  EXPECT_EQ(bench.updates.back().flush, NpaFlush::kHeavy);
  EXPECT_LT(bench.at("unpin"), bench.log.size());
  EXPECT_EQ(bench.got<NpaRevoke>(kPeer).size(), 1U);
  EXPECT_EQ(bench.result(t), nullptr);
  bench.receive(kPeer, NpaRelease{handle});
  EXPECT_EQ(bench.result(t), nullptr);
  bench.receive(kOther, NpaRelease{handle});
  EXPECT_TRUE(bench.ok(t));
  EXPECT_EQ(bench.node.counters().quarantined_ranges, 0U);
}

// Errata A1: the memory stays pinned until the peer's write-back of opcode 1.
TEST_F(Exports, A1_ShootdownIsAwaited) {
  activate();
  granted(kPeer);
  bench.peers[kPeer].answers_shootdown = false;
  bench.peers[kPeer].writes_back = true;
  revoke();
  EXPECT_EQ(order({"retry", "post 1", "gone", "unpin"}),
            (std::vector<std::string>{"retry", "post 1"}));
  bench.write_back(bench.posts.back());
  EXPECT_EQ(order({"gone", "unpin"}), (std::vector<std::string>{"gone", "unpin"}));
}

// Errata A1: no shootdown from one of ours: its connection goes before the memory does.
TEST_F(Exports, A1_SilentPeerIsResetAndItsRangeQuarantined) {
  activate();
  granted(kPeer);
  bench.peers[kPeer].answers_shootdown = false;
  const auto t = revoke();
  bench.advance(2s);
  EXPECT_EQ(bench.connection(kPeer), ConnectionState::kNotReady);
  EXPECT_TRUE(bench.ok(t));
  EXPECT_EQ(bench.node.counters().quarantined_ranges, 1U);
  EXPECT_LT(bench.at("gone"), bench.at("unpin"));
  bench.hello_from(kPeer, std::nullopt);
  EXPECT_EQ(bench.node.counters().quarantined_ranges, 0U);
}

// U48: a reference peer whose firmware does not answer opcode 1 is revoked by messages, and the
// memory waits for its RELEASE.
TEST_F(Exports, U48_NoShootdownMeansWaitingForRelease) {
  activate(false);
  granted(kPeer);
  bench.advance(2s);
  bench.peers[kPeer].answers_shootdown = false;
  const auto t = revoke();
  bench.advance(2s);
  EXPECT_EQ(bench.connection(kPeer), ConnectionState::kEstablished);
  EXPECT_FALSE(bench.info(kPeer).shootdown);
  EXPECT_EQ(bench.got<NpaRevoke>(kPeer).size(), 1U);
  EXPECT_EQ(bench.logged("gone"), 1U);
  EXPECT_EQ(bench.logged("unpin"), 0U);
  bench.receive(kPeer, NpaRelease{handle});
  EXPECT_EQ(bench.logged("unpin"), 1U);
  EXPECT_TRUE(bench.ok(t));
  // Known for this generation: the next revoke does not wait for it.
  handle = bench.exported(2);
  granted(kPeer);
  bench.advance(1s);
  revoke();
  EXPECT_EQ(bench.logged("post 1"), 0U);
  EXPECT_EQ(bench.got<NpaRevoke>(kPeer).size(), 2U);
}

// U21: at least 1 s between the RSP's write-back and the REVOKE; the memory does not wait.
TEST_F(Exports, U21_RevokeMessageWaitsForAReferencePeer) {
  activate(false);
  granted(kPeer);
  const auto t = revoke();
  EXPECT_EQ(bench.logged("unpin"), 1U);
  EXPECT_TRUE(bench.got<NpaRevoke>(kPeer).empty());
  bench.advance(900ms);
  EXPECT_TRUE(bench.got<NpaRevoke>(kPeer).empty());
  bench.advance(200ms);
  EXPECT_EQ(bench.got<NpaRevoke>(kPeer).size(), 1U);
  bench.advance(4s);
  EXPECT_EQ(bench.result(t), nullptr);
  bench.receive(kPeer, NpaRelease{handle});
  EXPECT_TRUE(bench.ok(t));
  EXPECT_EQ(bench.got<NpaRevoke>(kPeer).size(), 1U);
}

// U36: one time for all RELEASEs; who stays silent loses its connection, the others do not.
TEST_F(Exports, U36_SilentOnRevoke) {
  activate();
  granted(kPeer);
  granted(kOther);
  const auto t = revoke();
  bench.receive(kOther, NpaRelease{handle});
  bench.advance(4900ms);
  EXPECT_EQ(bench.result(t), nullptr);
  bench.advance(200ms);
  EXPECT_TRUE(bench.ok(t));
  EXPECT_EQ(bench.connection(kPeer), ConnectionState::kNotReady);
  EXPECT_EQ(bench.connection(kOther), ConnectionState::kEstablished);
  EXPECT_EQ(bench.node.counters().quarantined_ranges, 1U);
}

// Errata A7: a revoke under way is still found by a connection reset.
TEST_F(Exports, A7_ResetDuringARevokeFinishesIt) {
  activate();
  granted(kPeer);
  const auto t = revoke();
  EXPECT_TRUE(bench.node.find_export(handle)->revoking);
  bench.hello_from(kPeer, std::nullopt);
  EXPECT_TRUE(bench.ok(t));
  EXPECT_FALSE(bench.node.find_export(handle));
}

TEST_F(Exports, UAL_6_PeerLossDuringShootdownEndsTheWait) {
  activate();
  granted(kPeer);
  bench.peers[kPeer].answers_shootdown = false;
  const auto t = revoke();
  EXPECT_EQ(bench.result(t), nullptr);
  bench.node.handle(bench.now, LinkChanged{kPeer, false});
  bench.run();
  EXPECT_TRUE(bench.ok(t));
  EXPECT_EQ(bench.node.counters().quarantined_ranges, 1U);
}

TEST_F(Exports, U44_LostAnswerUndoesTheGrant) {
  activate();
  bench.peers[kPeer].writes_back = false;
  bench.receive(kPeer, NpaReq{handle});
  bench.advance(2s);
  EXPECT_TRUE(bench.node.find_export(handle)->importers.empty());
  EXPECT_TRUE(bench.got<NpaFail>(kPeer).empty());
  EXPECT_EQ(bench.logged("unpin"), 1U);
  // The peer may have taken it all the same.
  EXPECT_EQ(bench.node.counters().quarantined_ranges, 1U);
}

TEST_F(Exports, U44_LostRevokeResetsThatPeer) {
  activate();
  granted(kPeer);
  granted(kOther);
  bench.hold_updates = true;
  const auto t = revoke();
  bench.done(bench.updates.back().op);  // retry set
  bench.peers[kPeer].reachable = false;
  bench.hold_updates = false;
  bench.done(bench.updates.back().op);  // cleared
  EXPECT_EQ(bench.connection(kPeer), ConnectionState::kNotReady);
  EXPECT_EQ(bench.connection(kOther), ConnectionState::kEstablished);
  bench.receive(kOther, NpaRelease{handle});
  EXPECT_TRUE(bench.ok(t));
}

TEST_F(Exports, FailedPinIsAnsweredWithNoSpace) {
  activate();
  bench.failing.insert("pin");
  bench.receive(kPeer, NpaReq{handle});
  EXPECT_EQ(bench.got<NpaFail>(kPeer).at(0).reason, FailReason::kNoSpace);
  bench.failing.clear();
  granted(kPeer);
}

TEST_F(Exports, A23_FailedMappingIsUndone) {
  activate();
  const auto free = bench.node.counters().free_npa_pages;
  bench.failing.insert("map");
  bench.receive(kPeer, NpaReq{handle});
  EXPECT_EQ(bench.got<NpaFail>(kPeer).at(0).reason, FailReason::kOther);
  EXPECT_EQ(bench.logged("gone"), 1U);
  EXPECT_EQ(bench.logged("unpin"), 1U);
  EXPECT_EQ(bench.node.counters().free_npa_pages, free);
}

TEST_F(Exports, RevokeWhilePinningRefusesTheAsker) {
  activate();
  bench.hold_pins = true;
  bench.receive(kPeer, NpaReq{handle});
  const auto t = revoke();
  EXPECT_EQ(bench.result(t), nullptr);
  bench.feed(BufferPinned{bench.held_pins.at(0), std::vector<VramRun>{{base::VramOffset(0), 4}}});
  EXPECT_TRUE(bench.ok(t));
  EXPECT_EQ(bench.got<NpaFail>(kPeer).size(), 1U);
  EXPECT_EQ(bench.logged("unpin"), 1U);
  EXPECT_EQ(bench.logged("map"), 0U);
}

// Entries that cannot be cleared: the memory is not given back, and the caller is told.
TEST_F(Exports, UnclearableEntriesKeepTheMemory) {
  activate();
  granted(kPeer);
  bench.failing.insert("gone");
  const auto t = revoke();
  EXPECT_EQ(bench.error(t), Errc::kDeviceError);
  EXPECT_EQ(bench.logged("unpin"), 0U);
  bench.failing.clear();
  bench.node.deactivate(bench.now, bench.token());
  bench.run();
  EXPECT_LT(bench.at("vm off"), bench.at("unpin"));
}

TEST_F(Exports, ReleaseThatNobodyWaitsForChangesNothing) {
  activate();
  bench.receive(kPeer, NpaRelease{handle});
  granted(kPeer);
  bench.receive(kOther, NpaRelease{handle});
  EXPECT_EQ(bench.node.find_export(handle)->importers, std::vector{kPeer});
}

}  // namespace
