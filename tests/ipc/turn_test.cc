// What one turn of the reactor does for a session, turn by turn.
#include <sys/mman.h>

#include <functional>
#include <thread>

#include "base/shared_memory.h"
#include "daemon/ipc/channel.h"
#include "gpuumd/ring.h"
#include "tests/fake/manual_reactor.h"

#include <gtest/gtest.h>

namespace gpuumd {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kRequestsPerTurn = 16;

struct Turn : ::testing::Test, ChannelPort, SessionHandler {
  Turn() {
    channel = std::move(Channel::create(reactor, *this, end).value());
    channel->start(*this);
    memory =
        base::Mapping::map(end.control.get(), 0, end.layout.control_bytes, PROT_READ | PROT_WRITE)
            .value();
    page = memory.at<wire::SessionPage>();
    requests = RingProducer(&page->requests, end.layout.request_slots);
    replies = RingConsumer(&page->replies, end.layout.reply_slots);
  }

  // The client.
  void ask() {
    wire::Nop nop{};
    nop.header.type = wire::RequestType::kNop;
    nop.header.size = sizeof(nop);
    nop.header.id = ++asked;
    auto* slots = memory.at<wire::RequestSlot>(end.layout.requests_offset);
    store_shared(slots[requests.slot()].bytes, &nop, sizeof(nop));
    requests.fill(1);
    requests.publish();
  }
  bool take_reply() {
    if (replies.filled().value_or(0) == 0) return false;
    replies.release(1);
    return true;
  }

  void handle(RequestId id, Request) override {
    channel->reply(id, reply::Done{});
    if (answered) answered();
  }
  bool poll_queues() override { return false; }
  void close(std::move_only_function<void()> done) override { done(); }
  void send_descriptors(std::uint32_t, std::vector<base::UniqueFd>,
                        std::move_only_function<void(bool)>) override {}
  void session_broken(base::Error) override { ++broken; }

  std::uint64_t served() const { return channel->counters().requests; }

  fake::ManualReactor reactor;
  Channel::ClientEnd end;
  std::unique_ptr<Channel> channel;
  base::Mapping memory;
  wire::SessionPage* page = nullptr;
  RingProducer requests;
  RingConsumer replies;
  std::uint64_t asked = 0;
  std::function<void()> answered;  // after a reply was published, on the reactor's side
  unsigned broken = 0;
};

TEST_F(Turn, TakesABoundedNumberOfAClientThatAlwaysHasAnother) {
  answered = [this] {
    ASSERT_TRUE(take_reply());
    ask();
  };
  ask();
  for (std::uint64_t turns = 1; turns <= 10; ++turns) {
    EXPECT_TRUE(reactor.turn());
    EXPECT_EQ(served(), turns * kRequestsPerTurn);
  }
}

TEST_F(Turn, AnIndexThatBreaksBetweenTwoRequestsEndsTheSession) {
  answered = [this] { page->requests.tail = 4711; };
  ask();
  EXPECT_TRUE(reactor.turn());
  EXPECT_EQ(broken, 1u);
  EXPECT_EQ(served(), 1u);
  EXPECT_FALSE(reactor.turn());
  EXPECT_EQ(broken, 1u);
}

// A reply takes the first request's place in the reply ring; the client reads none of them.
TEST_F(Turn, ARequestWithoutAPlaceForItsReplyWaits) {
  for (std::uint32_t i = 0; i < end.layout.request_slots; ++i) ask();
  ASSERT_TRUE(reactor.settle());
  ASSERT_EQ(served(), end.layout.reply_slots);
  ask();
  EXPECT_FALSE(reactor.turn());
  ASSERT_TRUE(take_reply());
  EXPECT_TRUE(reactor.turn());
  EXPECT_EQ(served(), asked);
}

// A client that polls asks again when it sees the reply: most such requests are answered in the
// turn of the one before. Round trips happen while both threads run, so the share holds on a loaded
// machine too; on one core they never do.
TEST_F(Turn, APollingClientIsAnsweredWithoutATurnForEach) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "one core";
  constexpr std::uint64_t kTrips = 20'000;
  const auto deadline = std::chrono::steady_clock::now() + 60s;
  const auto in_time = [&] { return std::chrono::steady_clock::now() < deadline; };
  std::thread client([&] {
    while (asked < kTrips) {
      ask();
      for (std::uint64_t looks = 1; !take_reply(); ++looks)
        if (looks % 65536 == 0 && !in_time()) return;
    }
  });
  std::uint64_t turns = 0;
  for (std::uint64_t empty = 0; served() < kTrips && (empty % 65536 != 65535 || in_time());) {
    const std::uint64_t before = served();
    (void)reactor.turn();
    ASSERT_LE(served() - before, kRequestsPerTurn);
    ++(served() == before ? empty : turns);
  }
  client.join();
  ASSERT_EQ(served(), kTrips);
  EXPECT_LT(turns, kTrips / 2);
}

}  // namespace
}  // namespace gpuumd
