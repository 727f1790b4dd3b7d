// Entering and leaving the fabric, membership, pause.
#include <gtest/gtest.h>

#include "bench.h"

namespace {

using namespace fabric;
using fabric_test::Bench;
using fabric_test::pod;
using namespace std::chrono_literals;

constexpr AccelId kPeer = Bench::kPeer;
const Handle kRemote{.lo = 0xABCD'0000'0000'0005, .hi = 0x1234};

std::vector<std::string> steps(const Bench& bench) {
  std::vector<std::string> found;
  for (const auto& what : bench.log) {
    if (what != "read" && what != "complete" && !what.starts_with("post")) found.push_back(what);
  }
  return found;
}

// U02: rings are zeroed before the metadata is loaded; U30: mapped before the first HELLO.
TEST(Pod, U02_U30_OrderOfActivation) {
  Bench bench;
  bench.activate();
  EXPECT_EQ(bench.node.state(), AccelState::kActive);
  EXPECT_EQ(steps(bench), (std::vector<std::string>{"access on", "vm on", "clear", "load", "map",
                                                    "map", "peers on"}));
  EXPECT_LT(bench.at("peers on"), bench.at("read"));
  EXPECT_EQ(bench.updates[0].range, (NpaRange{0x200, 512}));
  EXPECT_EQ(bench.updates[0].runs,
            (std::vector<VramRun>{{base::VramOffset(16 * base::kMiB), 512}}));
  EXPECT_EQ(bench.updates[1].range.pages, 2U);
  EXPECT_GE(bench.updates[1].range.page, 0x800U);
  EXPECT_EQ(bench.loads[0].data, 0x1'0000U);
  EXPECT_EQ(bench.loads[0].table.size(), 10'240U);
}

// Errata A19: whichever step fails, those before it are undone in reverse order.
TEST(Pod, A19_FailedActivationIsUndone) {
  const std::vector<std::string> kSteps = {"access on", "vm on", "clear",
                                           "load",      "map",   "peers on"};
  for (const auto& failing : kSteps) {
    Bench bench;
    bench.failing.insert(failing);
    const auto t = bench.token();
    bench.node.apply_config(bench.now, t, pod(3, {3, 5}));
    bench.run();
    EXPECT_EQ(bench.error(t), Errc::kDeviceError) << failing;
    EXPECT_EQ(bench.node.state(), AccelState::kError);
    EXPECT_EQ(steps(bench).back(), "access off") << failing;
    EXPECT_EQ(bench.logged("vm on"), bench.logged("vm off")) << failing;
    EXPECT_EQ(bench.logged("load"), bench.logged("halt")) << failing;
    bench.failing.clear();
    bench.activate();
    EXPECT_EQ(bench.node.state(), AccelState::kActive) << failing;
  }
}

// Errata A18: a state is a name. Deactivation of what never was active does nothing.
TEST(Pod, A18_ErrorIsNotAboveActive) {
  Bench bench;
  auto config = pod(3, {3, 5});
  config.vpod_size = 7;
  const auto t = bench.token();
  bench.node.apply_config(bench.now, t, config);
  bench.run();
  EXPECT_EQ(bench.error(t), Errc::kProtocol);
  EXPECT_EQ(bench.node.state(), AccelState::kError);
  const auto u = bench.token();
  bench.node.deactivate(bench.now, u);
  bench.run();
  EXPECT_TRUE(bench.ok(u));
  EXPECT_TRUE(steps(bench).empty());
  EXPECT_FALSE(bench.node.export_buffer({BufferId(1), 1, std::nullopt}));
}

// Errata A5, A6: everything goes by ownership, and intake stops before anything is freed.
TEST(Pod, A5_A6_LeavingUnmapsByOwnership) {
  Bench bench;
  bench.activate();
  const auto handle = bench.exported(1);
  bench.receive(kPeer, NpaReq{handle});
  bench.imported(kPeer, kRemote);
  const auto pending = bench.token();
  bench.node.import_handle(bench.now, pending, Handle{kRemote.lo + 0x400, 1});
  bench.run();
  ASSERT_TRUE(bench.node.drop_peer(bench.now, kPeer));  // the connection is down
  bench.run();
  bench.receive(kPeer, NpaReq{handle});
  bench.log.clear();
  bench.hold_detaches = true;
  const auto t = bench.token();
  bench.receive(Bench::kOther, NpaReq{handle});
  bench.imported(Bench::kOther, Handle{9, 1});
  bench.log.clear();
  bench.node.deactivate(bench.now, t);
  bench.run();
  // Intake has stopped, and nothing is torn down under the import that is still being detached.
  bench.receive(Bench::kOther, NpaReq{handle});
  EXPECT_EQ(bench.node.counters().messages_not_active, 1U);
  EXPECT_EQ(bench.logged("access off"), 0U);
  bench.done(bench.detaches.back().op);
  EXPECT_EQ(steps(bench), (std::vector<std::string>{"detach", "gone", "unpin", "access off", "halt",
                                                    "gone", "gone", "peers off", "vm off"}));
  EXPECT_TRUE(bench.ok(t));
  EXPECT_NE(bench.result(pending), nullptr);
  EXPECT_EQ(bench.node.state(), AccelState::kPodConfigured);
  EXPECT_EQ(bench.node.exports().size(), 1U);
  // The handle survives: the buffer does.
  bench.hold_detaches = false;
  bench.activate();
  EXPECT_EQ(bench.exported(1), handle);
  bench.receive(kPeer, NpaReq{handle});
  EXPECT_EQ(bench.got<NpaRsp>(kPeer).size(), 2U);
}

TEST(Pod, MembershipChangeReloadsTheMetadata) {
  Bench bench;
  bench.activate();
  bench.log.clear();
  const auto t = bench.token();
  bench.node.apply_config(bench.now, t, pod(3, {3, 5}));
  bench.run();
  EXPECT_TRUE(bench.ok(t));
  EXPECT_LT(bench.at("halt"), bench.at("load"));
  EXPECT_EQ(bench.node.peers().size(), 1U);
  bench.log.clear();
  const auto u = bench.token();
  bench.node.apply_config(bench.now, u, pod(3, {3, 5}));  // nothing new
  bench.run();
  EXPECT_TRUE(bench.ok(u));
  EXPECT_TRUE(steps(bench).empty());
}

TEST(Pod, AnotherAcceleratorIdEndsItsHandles) {
  Bench bench;
  bench.activate();
  const auto handle = bench.exported(1);
  bench.reports.clear();
  bench.node.apply_config(bench.now, bench.token(), pod(4, {4, 5}));
  bench.run();
  EXPECT_FALSE(bench.node.find_export(handle));
  bool told = false;
  for (const auto& r : bench.reports) told |= r.notice == Notice::kExportGone && r.handle == handle;
  EXPECT_TRUE(told);
  EXPECT_EQ(bench.exported(1).exporter(), AccelId(4));
}

TEST(Pod, IdentModeIsRefusedByName) {
  Bench bench;
  auto config = pod(3, {3, 5});
  config.addr_mode = 1;
  const auto t = bench.token();
  bench.node.apply_config(bench.now, t, config);
  bench.run();
  EXPECT_EQ(bench.error(t), Errc::kUnsupported);
  EXPECT_TRUE(steps(bench).empty());
}

TEST(Pod, OneChangeAtATime) {
  Bench bench;
  const auto t = bench.token();
  const auto u = bench.token();
  bench.node.apply_config(bench.now, t, pod(3, {3, 5}));
  bench.node.apply_config(bench.now, u, pod(3, {3, 5, 9}));
  bench.run();
  EXPECT_TRUE(bench.ok(t));
  EXPECT_EQ(bench.error(u), Errc::kBusy);
}

// Errata A26: pause really stops the traffic and is acknowledged when it has stopped.
TEST(Pod, A26_PauseDrainsAndResumeGoesOn) {
  Bench bench;
  bench.activate();
  bench.peers[kPeer].writes_back = false;
  const auto import = bench.token();
  bench.node.import_handle(bench.now, import, kRemote);
  bench.run();
  const auto t = bench.token();
  bench.node.pause(bench.now, t);
  bench.run();
  EXPECT_EQ(bench.result(t), nullptr);
  bench.write_back(bench.posts.back());
  EXPECT_TRUE(bench.ok(t));
  const auto posts = bench.posts.size();
  bench.peers[kPeer].writes_back = true;
  bench.receive(kPeer, NpaRevoke{Handle{0x405, 7}});
  EXPECT_EQ(bench.posts.size(), posts);
  bench.node.resume(bench.now);
  bench.run();
  EXPECT_EQ(bench.got<NpaRelease>(kPeer).size(), 1U);
}

// A caller that never answers a step does not hang the request.
TEST(Pod, EveryStepHasADeadline) {
  Bench bench;
  bench.hold_updates = true;
  const auto t = bench.token();
  bench.node.apply_config(bench.now, t, pod(3, {3, 5}));
  bench.run();
  EXPECT_EQ(bench.result(t), nullptr);
  bench.advance(120s);
  EXPECT_EQ(bench.error(t), Errc::kTimeout);
}

}  // namespace
