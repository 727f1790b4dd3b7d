// Clients that mean harm: each costs itself its session, and the daemon and the others nothing.
#include <sys/eventfd.h>
#include <sys/uio.h>

#include <random>

#include "tests/ipc/fixture.h"
#include "tests/ipc/raw_client.h"

namespace gpuumd::fake {
namespace {

using wire::RequestType;

struct Hostile : ::testing::Test {
  void SetUp() override {
    ASSERT_TRUE(client.shake_hands());
    session.emplace(*client.open_session());
    ASSERT_TRUE(other.shake_hands());
    neighbour.emplace(*other.open_session());
  }
  // The attacker's session is over, its connection is not, and the neighbour is served.
  void expect_ended() {
    EXPECT_TRUE(eventually([&] { return session->over(); }));
    EXPECT_EQ(neighbour->call(RequestType::kNop, wire::Nop{})->header.status, GPUUMD_OK);
    EXPECT_TRUE(eventually([&] { return daemon.control->counters().sessions == 1; }));
    EXPECT_EQ(daemon.control->counters().connections, 2u);
    EXPECT_GE(daemon.control->counters().protocol_errors, 1u);
    const auto again = client.open_session();
    ASSERT_TRUE(again);
    EXPECT_EQ(again->type(), wire::MessageType::kSessionOpened);
  }

  Daemon daemon;
  RawClient client{daemon.directory}, other{daemon.directory};
  std::optional<RawSession> session, neighbour;
};

TEST_F(Hostile, RequestIndexBeyondTheRing) {
  store_release(session->page->requests.tail, session->info.layout.request_slots + 1);
  session->ring();
  expect_ended();
}

TEST_F(Hostile, ReplyIndexBeforeAnyReply) {
  store_release(session->page->replies.head, 5u);
  session->send(RequestType::kNop, wire::Nop{});
  expect_ended();
}

TEST_F(Hostile, EventIndexBeforeAnyEvent) {
  store_release(session->page->events.head, 0x80000000u);
  daemon.on_reactor([&] { daemon.hosts[0]->last_session->channel().event({.kind = 1}); });
  // last_session is the neighbour's: do it the other way round.
  store_release(neighbour->page->events.head, 0x80000000u);
  daemon.on_reactor([&] { daemon.hosts[0]->last_session->channel().event({.kind = 1}); });
  EXPECT_TRUE(eventually([&] { return neighbour->over(); }));
  EXPECT_EQ(session->call(RequestType::kNop, wire::Nop{})->header.status, GPUUMD_OK);
}

TEST_F(Hostile, RequestSizeBeyondItsSlot) {
  for (const std::uint32_t size : {0u, 23u, 25u, 1032u, 0xFFFFFFF8u}) {
    RawClient attacker(daemon.directory);
    ASSERT_TRUE(attacker.shake_hands());
    RawSession mine(*attacker.open_session());
    mine.send(RequestType::kNop, wire::Nop{}, size);
    EXPECT_TRUE(eventually([&] { return mine.over(); })) << size;
  }
  EXPECT_EQ(neighbour->call(RequestType::kNop, wire::Nop{})->header.status, GPUUMD_OK);
}

TEST_F(Hostile, RequestIdInUse) {
  daemon.host().knobs.hold_vm = true;
  session->send(RequestType::kCreateVm, wire::CreateVm{});
  session->next_id = 1;
  session->send(RequestType::kCreateVm, wire::CreateVm{});
  expect_ended();
}

TEST_F(Hostile, FloodOfDescriptorsAheadOfRequests) {
  const base::UniqueFd any(::eventfd(0, EFD_CLOEXEC));
  wire::Descriptors bring{{wire::MessageType::kDescriptors, 0, 0}, session->info.session, 1, 1};
  const std::size_t before = open_descriptors();
  for (std::uint32_t tag = 1; tag <= 200; ++tag) {
    bring.tag = tag;
    if (!client.send_bytes(base::as_bytes([&] {
                             bring.header.size = sizeof(bring);
                             return bring;
                           }()),
                           {any.get()}))
      break;
  }
  expect_ended();
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before + 12; }))
      << before << " before, " << open_descriptors() << " after";
}

TEST_F(Hostile, ManyDescriptorsInOneMessage) {
  const base::UniqueFd any(::eventfd(0, EFD_CLOEXEC));
  const std::size_t before = open_descriptors();
  wire::Descriptors bring{
      {wire::MessageType::kDescriptors, sizeof(wire::Descriptors), 0}, session->info.session, 1, 1};
  ASSERT_TRUE(client.send_bytes(base::as_bytes(bring), std::vector<int>(253, any.get())));
  EXPECT_TRUE(client.closed());
  EXPECT_EQ(neighbour->call(RequestType::kNop, wire::Nop{})->header.status, GPUUMD_OK);
  EXPECT_TRUE(eventually([&] { return open_descriptors() <= before; }))
      << before << " before, " << open_descriptors() << " after";
}

TEST_F(Hostile, ClientThatReadsNothingCostsItself) {
  // Host buffers whose descriptors pile up in the socket; then the daemon gives up on the
  // connection or stops taking requests. The neighbour does not notice.
  wire::CreateBuffer create{};
  create.kind = GPUUMD_BUFFER_HOST;
  create.bytes = 4096;
  for (int i = 0; i < 400 && !session->over(); ++i) {
    if (*session->requests.room() == 0) break;
    session->send(RequestType::kCreateBuffer, create);
    if (session->replies.filled().value_or(0) > 0) (void)session->receive();
  }
  EXPECT_EQ(neighbour->call(RequestType::kNop, wire::Nop{})->header.status, GPUUMD_OK);
}

// The client shares the flags of the doorbell with the daemon. Blocking and emptied, a plain read()
// would hang the reactor.
TEST_F(Hostile, BlockingDoorbellDoesNotHangTheReactor) {
  ASSERT_EQ(::fcntl(session->doorbell(), F_SETFL, 0), 0);
  std::atomic<bool> stop{false};
  std::thread thief([&] {
    ::fcntl(session->doorbell(), F_SETFL, 0);
    while (!stop) {
      session->ring();
      pollfd watched{session->doorbell(), POLLIN, 0};
      std::uint64_t count;
      iovec part{&count, sizeof(count)};
      if (::poll(&watched, 1, 0) > 0)
        (void)!::preadv2(session->doorbell(), &part, 1, -1, RWF_NOWAIT);
    }
  });
  for (int i = 0; i < 200; ++i)
    ASSERT_EQ(neighbour->call(RequestType::kNop, wire::Nop{})->header.status, GPUUMD_OK);
  stop = true;
  thief.join();
}

// The wake pipes filled or made blocking by the client: the daemon's writes never block.
TEST_F(Hostile, FullWakePipeDoesNotHangTheReactor) {
  for (const int fd : {session->reply_wake(), session->event_wake()})
    ASSERT_EQ(::fcntl(fd, F_SETFL, 0), 0);
  for (int i = 0; i < 4300; ++i) {  // more wakes than the pipe holds
    publish_sleeping(session->page->client_sleeping, true);
    ASSERT_EQ(session->call(RequestType::kNop, wire::Nop{})->header.status, GPUUMD_OK);
  }
  EXPECT_EQ(neighbour->call(RequestType::kNop, wire::Nop{})->header.status, GPUUMD_OK);
}

TEST_F(Hostile, BadCommandsEndTheSession) {
  wire::CreateQueue create{};
  create.vm = session->call(RequestType::kCreateVm, wire::CreateVm{})->body.object;
  create.slots = 16;
  ASSERT_EQ(session->call(RequestType::kCreateQueue, create)->header.status, GPUUMD_OK);
  auto message = client.receive();
  auto memory = base::Mapping::map(message->descriptors.at(0).get(), 0, 4096 + 16 * 64,
                                   PROT_READ | PROT_WRITE);
  ASSERT_TRUE(memory);
  wire::CommandHeader half{wire::Operation::kWrite, 2, 0};  // and no second slot
  store_shared(memory->at<wire::CommandSlot>(4096), &half, sizeof(half));
  store_release(memory->at<wire::QueuePage>()->ring.tail, 1u);
  session->ring();
  expect_ended();
}

// Seeded noise over everything that a client can write, while the daemon runs. Whatever happens to
// the sessions that do it: the daemon serves the neighbour and ends clean (under ASan and UBSan
// too).
TEST(HostileNoise, RandomScribbling) {
  Daemon daemon;
  RawClient other(daemon.directory);
  ASSERT_TRUE(other.shake_hands());
  RawSession neighbour(*other.open_session());
  const unsigned seed = 20260101;
  int ended = 0;
  for (unsigned round = 0; round < 60; ++round) {
    SCOPED_TRACE("seed " + std::to_string(seed + round));
    std::mt19937_64 random(seed + round);
    RawClient client(daemon.directory);
    ASSERT_TRUE(client.shake_hands());
    RawSession session(*client.open_session());
    wire::CreateQueue create{};
    create.vm = session.call(RequestType::kCreateVm, wire::CreateVm{})->body.object;
    create.slots = 64;
    ASSERT_TRUE(session.call(RequestType::kCreateQueue, create));
    auto message = client.receive();
    ASSERT_TRUE(message);
    auto queue = base::Mapping::map(message->descriptors.at(0).get(), 0, 4096 + 64 * 64,
                                    PROT_READ | PROT_WRITE);
    ASSERT_TRUE(queue);
    const auto scribble = [&](std::byte* at, std::size_t bytes) {
      auto* word = reinterpret_cast<std::uint64_t*>(at + random() % (bytes / 8) * 8);
      // Small numbers get further than large ones.
      const std::uint64_t value = random() % 3 == 0 ? random() : random() % 32;
      __atomic_store_n(word, value, __ATOMIC_RELAXED);
    };
    for (int i = 0; i < 400 && !session.over(); ++i) {
      switch (random() % 6) {
        case 0:  // the indices, the flags
          if (round % 3 == 0) scribble(session.control.data(), sizeof(wire::SessionPage));
          break;
        case 1:
          scribble(session.control.data() + 4096, session.info.layout.control_bytes - 4096);
          break;
        case 2:
          if (round % 3 == 1) scribble(queue->data(), sizeof(wire::QueuePage));
          break;
        case 3:
          scribble(queue->data() + 4096, 64 * 64);
          break;
        case 4: {  // a request that is nearly right
          wire::Bind bind{};
          bind.header = {static_cast<RequestType>(1 + random() % 15),
                         static_cast<std::uint32_t>(24 + random() % 20 * 8), session.next_id++, 0,
                         0};
          store_shared(session.next_slot(), &bind, sizeof(bind));
          scribble(session.next_slot() + 24, 256);
          session.publish();
          break;
        }
        case 5: {
          auto& tail = queue->at<wire::QueuePage>()->ring.tail;
          store_release(tail, load_relaxed(tail) + 1);
          session.ring();
          break;
        }
      }
    }
    session.ring();
    ASSERT_EQ(neighbour.call(RequestType::kNop, wire::Nop{})->header.status, GPUUMD_OK);
    if (session.over()) ++ended;
  }
  EXPECT_GT(ended, 5) << "the noise has to reach the checks";
  other.hang_up();
  EXPECT_TRUE(eventually([&] { return daemon.control->counters().sessions == 0; }));
}

}  // namespace
}  // namespace gpuumd::fake
