// The client of the security processor against a scripted one.

#include "daemon/gpu/bringup/psp.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/fake/fake_register_io.h"
#include "tests/fake/manual_reactor.h"

namespace {

using base::Errc;
using gpuumd::BringUp;
using gpuumd::InterruptVector;
using gpuumd::IvClient;
using gpuumd::Psp;
using gpuumd::PspMemory;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr std::uint32_t kMp0 = 0x16000;
constexpr std::uint32_t k64 = kMp0 + 0x80, k67 = kMp0 + 0x83, k69 = kMp0 + 0x85, k70 = kMp0 + 0x86,
                        k71 = kMp0 + 0x87, kSwInt = kMp0 + 0x141, kSwIntCtrl = kMp0 + 0x142;
constexpr std::uint64_t kAt = 0x1'2345'6000;  // of the memory, for the processor

class PspTest : public testing::Test {
 protected:
  struct Seen {
    std::uint32_t id = 0;
    std::vector<std::uint32_t> body;  // the first dwords
  };

  PspTest() : memory_(PspMemory::kBytes) {
    io_.values[k64] = 0x80000000;
    io_.values[kSwIntCtrl] = 1;
    io_.on_write[k64] = [this](std::uint32_t) { io_.values[k64] = ring_answer_; };
    io_.on_write[k67] = [this](std::uint32_t wptr) { serve(wptr); };
    psp_.emplace(reactor_, gpuumd::RegisterBlock(io_, {0, kMp0, 0, 0, 0, 0, 0, 0}),
                 PspMemory{memory_.data(), base::McAddress(kAt)});
  }

  base::Result<void> up() {
    std::vector<gpuumd::Step> steps;
    steps.push_back(psp_->step());
    bring_up_.emplace(reactor_, [this] { return io_.lost(); }, std::move(steps));
    std::optional<base::Result<void>> result;
    bring_up_->start([&](base::Result<void> r) { result = std::move(r); });
    reactor_.advance(seconds(20));
    EXPECT_TRUE(result);
    return result ? *result : base::fail(Errc::kTimeout, "the test");
  }
  void down() {
    bool done = false;
    bring_up_->shut_down([&](base::Result<void>) { done = true; });
    reactor_.advance(seconds(20));
    EXPECT_TRUE(done);
  }

  std::uint32_t load(std::uint64_t at) {
    std::uint32_t value;
    std::memcpy(&value, memory_.data() + (at - kAt), 4);
    return value;
  }
  std::uint64_t load64(std::uint64_t at) { return std::uint64_t{load(at + 4)} << 32 | load(at); }
  void store(std::uint64_t at, std::uint32_t value) {
    std::memcpy(memory_.data() + (at - kAt), &value, 4);
  }

  // Takes the frame before `wptr` (in dwords).
  void serve(std::uint32_t wptr) {
    wptrs_.push_back(wptr);
    const std::uint32_t ring_dwords = io_.values[k71] / 4;
    const std::uint64_t ring = std::uint64_t{io_.values[k70]} << 32 | io_.values[k69];
    const std::uint64_t frame = ring + (wptr + ring_dwords - 16) % ring_dwords * 4;
    command_ = load64(frame);
    EXPECT_EQ(load(frame + 8), 1024u);
    fence_at_ = load64(frame + 12);
    fence_ = load(frame + 20);
    EXPECT_EQ(load(command_), 1024u);
    EXPECT_EQ(load(command_ + 4), 1u);
    Seen seen{load(command_ + 8), {}};
    for (unsigned i = 0; i < 35; ++i) seen.body.push_back(load(command_ + 28 + 4 * i));
    seen_.push_back(seen);
    if (silent_) return;
    store(command_ + 864, status_);
    store(command_ + 928, response_);
    if (seen.id == 0x54) write_config(seen);
    store(fence_at_, fence_);
  }
  void write_config(const Seen& seen) {
    const std::uint64_t at = std::uint64_t{seen.body[0]} << 32 | seen.body[1];
    EXPECT_EQ(seen.body[2], 180u);
    EXPECT_EQ(seen.body[3], 0u);
    for (std::size_t i = 0; i < config_.size(); ++i) store(at + 4 * i, config_[i]);
  }
  // A record of a complete pod of 4 with this one as number 2.
  static std::array<std::uint32_t, 45> pod() {
    std::array<std::uint32_t, 45> record{};
    record[0] = 1;
    record[1] = 2;
    record[2] = 0x03020100;
    record[6] = 4;
    record[7] = 800;
    record[8] = 5;
    record[9] = 77;
    record[10] = 4;
    record[11] = 0b1111;
    record[43] = 1;
    record[44] = 5;
    return record;
  }
  base::Result<gpuumd::psp::Config> parse(const std::array<std::uint32_t, 45>& record) {
    return gpuumd::psp::parse_config(std::as_bytes(std::span(record)));
  }

  fake::ManualReactor reactor_;
  fake::FakeRegisterIo io_;
  std::vector<std::byte> memory_;
  std::uint32_t ring_answer_ = 0x80000000;
  bool silent_ = false;
  std::uint32_t status_ = 0, response_ = 0;
  std::array<std::uint32_t, 45> config_ = pod();
  std::vector<std::uint32_t> wptrs_;
  std::vector<Seen> seen_;
  std::uint64_t command_ = 0, fence_at_ = 0;
  std::uint32_t fence_ = 0;
  std::optional<Psp> psp_;
  std::optional<BringUp> bring_up_;
};

TEST_F(PspTest, RingIsCreated) {
  ASSERT_TRUE(up());
  const auto writes = io_.writes();
  EXPECT_LT(io_.written_at(k69), io_.written_at(k64));
  EXPECT_LT(io_.written_at(k71), io_.written_at(k64));
  EXPECT_EQ(writes[*io_.written_at(k64)].value, 0x00020000u);
  EXPECT_EQ(io_.values[k69], 0x23456000u);
  EXPECT_EQ(io_.values[k70], 1u);
  EXPECT_EQ(io_.values[k71], 4096u);
  EXPECT_EQ(io_.values[kSwInt], 0xFFu);
  EXPECT_EQ(io_.values[kSwIntCtrl], 0u);
}

TEST_F(PspTest, RingIsNotAskedForBeforeTheProcessorIsReady) {
  io_.values[k64] = 0;
  const auto result = up();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Errc::kTimeout);
  EXPECT_NE(result.error().step.find("Psp: C2PMSG_64 reads 0x00000000"), std::string::npos)
      << result.error().message();
  EXPECT_FALSE(io_.written_at(k64));
}

TEST_F(PspTest, ResponseIsNotLookedAtForTwentyMilliseconds) {
  ring_answer_ = 0;
  std::vector<gpuumd::Step> steps;
  steps.push_back(psp_->step());
  bring_up_.emplace(reactor_, [] { return false; }, std::move(steps));
  bool done = false;
  bring_up_->start([&](base::Result<void> r) { done = r.has_value(); });
  reactor_.advance(milliseconds(2));
  io_.values[k64] = 0x80000000;
  reactor_.advance(milliseconds(15));
  EXPECT_FALSE(done);
  reactor_.advance(milliseconds(10));
  EXPECT_TRUE(done);
}

TEST_F(PspTest, RefusedRing) {
  ring_answer_ = 0x80000007;
  const auto result = up();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Errc::kDeviceError);
  EXPECT_NE(result.error().step.find("C2PMSG_64 reads 0x80000007"), std::string::npos);
}

TEST_F(PspTest, LostWhileMakingTheRing) {
  for (unsigned n = 1; n <= 8; ++n) {
    fake::FakeRegisterIo io;
    io.values[k64] = 0x80000000;
    io.lose_at(n);
    Psp psp(reactor_, gpuumd::RegisterBlock(io, {0, kMp0, 0, 0, 0, 0, 0, 0}),
            PspMemory{memory_.data(), base::McAddress(kAt)});
    std::vector<gpuumd::Step> steps;
    steps.push_back(psp.step());
    BringUp bring_up(reactor_, [&] { return io.lost(); }, std::move(steps));
    std::optional<base::Result<void>> result;
    bring_up.start([&](base::Result<void> r) { result = std::move(r); });
    reactor_.advance(seconds(20));
    ASSERT_TRUE(result) << n;
    ASSERT_FALSE(*result) << n;
    EXPECT_EQ(result->error().code, Errc::kDeviceLost) << n;
  }
}

TEST_F(PspTest, InterfaceVersion) {
  ASSERT_TRUE(up());
  std::optional<base::Result<gpuumd::psp::InterfaceVersion>> got;
  const auto ask = [&] {
    got.reset();
    psp_->get_interface_version([&](auto r) { got = std::move(r); });
    EXPECT_FALSE(got) << "from a later turn";
    reactor_.advance(milliseconds(5));
  };
  response_ = 0x00010003;
  ask();
  ASSERT_TRUE(got && *got);
  EXPECT_EQ((*got)->major, 1);
  EXPECT_EQ((*got)->minor, 3);
  response_ = 0x00020000;
  ask();
  ASSERT_TRUE(got);
  ASSERT_FALSE(*got);
  EXPECT_EQ(got->error().code, Errc::kUnsupported);
}

TEST_F(PspTest, D53_PointerCountsDwordsAndWraps) {
  ASSERT_TRUE(up());
  int done = 0;
  for (int i = 0; i < 70; ++i) {
    psp_->set_npa(base::Vmid(15), true, [&](base::Result<void> r) { done += r.has_value(); });
    reactor_.advance(milliseconds(5));
  }
  EXPECT_EQ(done, 70);
  ASSERT_EQ(wptrs_.size(), 70u);
  EXPECT_EQ(wptrs_[0], 16u);
  EXPECT_EQ(wptrs_[62], 1008u);
  EXPECT_EQ(wptrs_[63], 0u);
  EXPECT_EQ(wptrs_[64], 16u);
  EXPECT_EQ(seen_[0].id, 0x59u);
  EXPECT_EQ(seen_[0].body[0], 15u);
  EXPECT_EQ(seen_[0].body[1], 1u);
}

TEST_F(PspTest, CommandsAreServedOneAfterTheOther) {
  ASSERT_TRUE(up());
  std::vector<int> order;
  for (int i = 0; i < 3; ++i)
    psp_->set_npa(base::Vmid(15), true, [&order, i](base::Result<void>) { order.push_back(i); });
  EXPECT_EQ(seen_.size(), 1u);
  reactor_.advance(milliseconds(20));
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

TEST_F(PspTest, TooManyCommandsAreRefused) {
  ASSERT_TRUE(up());
  silent_ = true;
  std::vector<Errc> errors;
  for (std::size_t i = 0; i < Psp::kMaxQueued + 1; ++i)
    psp_->set_npa(base::Vmid(15), true, [&](base::Result<void> r) {
      if (!r) errors.push_back(r.error().code);
    });
  reactor_.settle();
  EXPECT_EQ(errors, std::vector{Errc::kBusy});
}

TEST_F(PspTest, StatusIsAnError) {
  ASSERT_TRUE(up());
  status_ = 0xFFFF0006;
  std::optional<base::Result<void>> got;
  psp_->set_npa(base::Vmid(15), true, [&](base::Result<void> r) { got = std::move(r); });
  reactor_.advance(milliseconds(5));
  ASSERT_TRUE(got);
  ASSERT_FALSE(*got);
  EXPECT_EQ(got->error().code, Errc::kDeviceError);
  EXPECT_NE(got->error().step.find("0x59: status 0xffff0006"), std::string::npos)
      << got->error().message();
}

TEST_F(PspTest, SilentProcessorBreaksTheRingUntilItIsMadeAnew) {
  ASSERT_TRUE(up());
  silent_ = true;
  std::vector<Errc> errors;
  const auto note = [&](base::Result<void> r) {
    if (!r) errors.push_back(r.error().code);
  };
  psp_->set_npa(base::Vmid(15), true, note);
  psp_->set_npa(base::Vmid(15), false, note);
  reactor_.advance(Psp::kCommandDeadline - milliseconds(10));
  EXPECT_TRUE(errors.empty());
  reactor_.advance(milliseconds(20));
  EXPECT_EQ(errors, (std::vector{Errc::kTimeout, Errc::kTimeout}));
  // A fence that comes late ends nothing.
  store(fence_at_, fence_);
  psp_->set_npa(base::Vmid(15), true, note);
  reactor_.advance(milliseconds(10));
  EXPECT_EQ(errors.size(), 3u);
  EXPECT_EQ(errors.back(), Errc::kBusy);
  EXPECT_EQ(psp_->counters().timeouts, 1u);

  silent_ = false;
  down();
  ASSERT_TRUE(up());
  bool good = false;
  psp_->set_npa(base::Vmid(15), true, [&](base::Result<void> r) { good = r.has_value(); });
  reactor_.advance(milliseconds(10));
  EXPECT_TRUE(good);
}

TEST_F(PspTest, LostDeviceEndsACommand) {
  ASSERT_TRUE(up());
  silent_ = true;
  std::optional<base::Result<void>> got;
  psp_->set_npa(base::Vmid(15), true, [&](base::Result<void> r) { got = std::move(r); });
  io_.lose();
  reactor_.advance(milliseconds(5));
  ASSERT_TRUE(got);
  EXPECT_EQ(got->error().code, Errc::kDeviceLost);
}

TEST_F(PspTest, RingIsDestroyedAndTheInterruptTurnedOff) {
  ASSERT_TRUE(up());
  silent_ = true;
  Errc error{};
  psp_->set_npa(base::Vmid(15), true, [&](base::Result<void> r) { error = r.error().code; });
  io_.log.clear();
  down();
  EXPECT_EQ(error, Errc::kDisconnected) << "what was in flight is told";
  EXPECT_EQ(io_.writes()[*io_.written_at(k64)].value, 0x00030000u);
  EXPECT_EQ(io_.values[kSwIntCtrl] & 1, 1u);
  EXPECT_TRUE(bring_up_->shutdown_errors().empty());
}

TEST_F(PspTest, ConfigIsReadFromItsRecord) {
  ASSERT_TRUE(up());
  response_ = 180;
  std::optional<base::Result<gpuumd::psp::Config>> got;
  psp_->get_config([&](auto r) { got = std::move(r); });
  reactor_.advance(milliseconds(5));
  ASSERT_TRUE(got);
  ASSERT_TRUE(*got) << got->error().message();
  const auto& config = **got;
  EXPECT_EQ(config.link_type, gpuumd::psp::LinkType::kUalink);
  EXPECT_EQ(config.accel_id->value(), 2);
  EXPECT_EQ(config.ppod.id[3], std::byte{3});
  EXPECT_EQ(config.ppod.size, 4u);
  EXPECT_EQ(config.ppod.bandwidth, 800u);
  ASSERT_TRUE(config.vpod);
  EXPECT_EQ(config.vpod->id, 77u);
  EXPECT_TRUE(config.vpod->member(base::AccelId(3)));
  EXPECT_FALSE(config.vpod->member(base::AccelId(4)));
  EXPECT_FALSE(config.vpod->member(base::AccelId(65535)));
  EXPECT_EQ(config.state, gpuumd::psp::ConfigState::kComplete);
  EXPECT_EQ(config.address_mode, 1u);
}

TEST_F(PspTest, ConfigOfAnotherSize) {
  ASSERT_TRUE(up());
  response_ = 200;
  std::optional<base::Result<gpuumd::psp::Config>> got;
  psp_->get_config([&](auto r) { got = std::move(r); });
  reactor_.advance(milliseconds(5));
  ASSERT_TRUE(got);
  ASSERT_FALSE(*got);
  EXPECT_EQ(got->error().code, Errc::kProtocol);
}

TEST_F(PspTest, C11_NoVirtualPodByEitherSentinel) {
  for (const auto& [id, size] :
       {std::pair{0u, 4u}, std::pair{0xFFFFFFFFu, 4u}, std::pair{77u, 0u}}) {
    auto record = pod();
    record[9] = id;
    record[10] = size;
    const auto config = parse(record);
    ASSERT_TRUE(config);
    EXPECT_FALSE(config->vpod) << id << " " << size;
  }
}

TEST_F(PspTest, UnconfiguredAccelerator) {
  auto record = pod();
  record[1] = 0xFFFFFFFF;
  const auto config = parse(record);
  ASSERT_TRUE(config);
  EXPECT_FALSE(config->accel_id);
}

TEST_F(PspTest, ConfigThatMakesNoSense) {
  const std::pair<std::size_t, std::uint32_t> bad[] = {{0, 2}, {1, 1024}, {10, 1025}, {44, 6}};
  for (const auto& [at, value] : bad) {
    auto record = pod();
    record[at] = value;
    const auto config = parse(record);
    ASSERT_FALSE(config) << at;
    EXPECT_EQ(config.error().code, Errc::kProtocol);
  }
  auto record = pod();
  EXPECT_FALSE(gpuumd::psp::parse_config(std::as_bytes(std::span(record)).first(179)));
  record[44] = 0xFF;
  EXPECT_TRUE(parse(record)) << "invalid is a state";
}

TEST_F(PspTest, CompletionAndPodBodies) {
  ASSERT_TRUE(up());
  const auto ignore = [](base::Result<void> r) { EXPECT_TRUE(r); };
  psp_->send_completion(gpuumd::psp::Request::Kind::kPause, 1, ignore);
  gpuumd::psp::PhysicalPod ppod;
  ppod.id[0] = std::byte{0xAA};
  ppod.size = 8;
  const base::AccelId local[] = {base::AccelId(5), base::AccelId(6)};
  psp_->set_physical_pod(base::AccelId(5), ppod, local, ignore);
  gpuumd::psp::VirtualPod vpod{9, 2, {}, 1};
  vpod.active[31] = 0x80000000;
  psp_->set_virtual_pod(vpod, ignore);
  reactor_.advance(milliseconds(20));
  ASSERT_EQ(seen_.size(), 3u);
  EXPECT_EQ(seen_[0].id, 0x5Au);
  EXPECT_EQ(seen_[0].body[0], 2u);
  EXPECT_EQ(seen_[0].body[1], 1u);
  EXPECT_EQ(seen_[1].id, 0x55u);
  EXPECT_EQ(seen_[1].body[0], 5u);
  EXPECT_EQ(seen_[1].body[1], 0xAAu);
  EXPECT_EQ(seen_[1].body[5], 8u);
  EXPECT_EQ(seen_[1].body[9], 6u);
  EXPECT_EQ(seen_[1].body[10], 0xFFFFFFFFu);
  EXPECT_EQ(seen_[1].body[23], 0xFFFFFFFFu) << "16 local accelerators, C10";
  EXPECT_EQ(seen_[2].id, 0x56u);
  EXPECT_EQ(seen_[2].body[0], 9u);
  EXPECT_EQ(seen_[2].body[33], 0x80000000u);
  EXPECT_EQ(seen_[2].body[34], 1u);
}

TEST_F(PspTest, RequestsAreDecodedAndAcknowledged) {
  ASSERT_TRUE(up());
  const auto ask = [&](std::uint32_t word) {
    io_.values[kSwIntCtrl] = 0;
    const InterruptVector iv{{0xFF1E, 0, 0, 0, word, 0, 0, 0}};
    const auto request = psp_->on_interrupt(iv);
    EXPECT_EQ(io_.values[kSwIntCtrl], 0x100u) << "every vector is acknowledged";
    return request;
  };
  const auto request = ask(0x01000003);
  ASSERT_TRUE(request);
  EXPECT_EQ(request->category, gpuumd::psp::Request::Category::kCommand);
  EXPECT_EQ(request->kind, gpuumd::psp::Request::Kind::kResume);
  EXPECT_EQ(ask(0x02000001)->category, gpuumd::psp::Request::Category::kNotification);
  for (const std::uint32_t bad : {0x00000001u, 0x03000001u, 0x01000000u, 0x01000004u})
    EXPECT_FALSE(ask(bad));
  EXPECT_EQ(psp_->counters().bad_requests, 4u);
}

}  // namespace
