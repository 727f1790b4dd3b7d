// A session's rings as a well-behaved client uses them.
#include <sys/eventfd.h>

#include "tests/ipc/fixture.h"
#include "tests/ipc/raw_client.h"

namespace gpuumd::fake {
namespace {

using wire::RequestType;

struct ChannelTest : ::testing::Test {
  void SetUp() override {
    ASSERT_TRUE(client.shake_hands());
    auto opened = client.open_session();
    ASSERT_TRUE(opened);
    ASSERT_EQ(opened->type(), wire::MessageType::kSessionOpened);
    session.emplace(std::move(*opened));
  }
  std::uint64_t create_vm() {
    return session->call(RequestType::kCreateVm, wire::CreateVm{})->body.object;
  }

  Daemon daemon;
  RawClient client{daemon.directory};
  std::optional<RawSession> session;
};

TEST_F(ChannelTest, RepliesAndTypedErrors) {
  const auto nop = session->call(RequestType::kNop, wire::Nop{});
  ASSERT_TRUE(nop);
  EXPECT_EQ(nop->header.status, GPUUMD_OK);
  EXPECT_EQ(nop->header.id, 1u);
  wire::Destroy destroy{};
  destroy.object = 4711;
  const auto missing = session->call(RequestType::kDestroy, destroy);
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->header.status, GPUUMD_NOT_FOUND);
  EXPECT_NE(std::string(missing->text).find("4711"), std::string::npos) << missing->text;
  wire::CreateVm vm{};
  vm.flags = 0x80;
  EXPECT_EQ(session->call(RequestType::kCreateVm, vm)->header.status, GPUUMD_INVALID_ARGUMENT);
  EXPECT_EQ(session->call(static_cast<RequestType>(77), vm)->header.status, GPUUMD_UNSUPPORTED);
  EXPECT_EQ(session->call(RequestType::kCreateVm, vm, 24)->header.status, GPUUMD_INVALID_ARGUMENT);
  EXPECT_FALSE(session->over()) << "a refused request costs nothing else";
}

TEST_F(ChannelTest, DescriptorsComeBeforeTheReply) {
  wire::CreateBuffer buffer{};
  buffer.kind = GPUUMD_BUFFER_HOST;
  buffer.bytes = 5000;
  const auto reply = session->call(RequestType::kCreateBuffer, buffer);
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->body.bytes, 8192u);
  ASSERT_EQ(reply->header.descriptor_count, 1u);
  const auto message = client.receive(0);  // it is there already
  ASSERT_TRUE(message);
  EXPECT_EQ(message->as<wire::Descriptors>().tag, reply->header.descriptor_tag);
  ASSERT_EQ(message->descriptors.size(), 1u);
  EXPECT_EQ(base::sealed_size(message->descriptors[0].get()).value(), 8192u);
}

TEST_F(ChannelTest, RingsAreSealedAndTheFencePageIsReadOnly) {
  EXPECT_EQ(base::sealed_size(session->descriptors[0].get()).value(),
            session->info.layout.control_bytes);
  EXPECT_NE(::ftruncate(session->descriptors[0].get(), 4096), 0);
  const int fences = session->descriptors[1].get();
  EXPECT_TRUE(base::Mapping::map(fences, 0, 4096, PROT_READ));
  EXPECT_FALSE(base::Mapping::map(fences, 0, 4096, PROT_READ | PROT_WRITE));
  EXPECT_LT(::pwrite(fences, "x", 1, 0), 0);
}

TEST_F(ChannelTest, FullReplyRingStopsTheClientAlone) {
  // Nobody reads replies: the daemon takes as many requests as it has places for, and no more.
  RawClient other(daemon.directory);
  ASSERT_TRUE(other.shake_hands());
  RawSession neighbour(*other.open_session());
  for (std::uint32_t i = 0; i < 2 * session->info.layout.reply_slots; ++i) {
    if (*session->requests.room() == 0) break;
    session->send(RequestType::kNop, wire::Nop{});
  }
  EXPECT_TRUE(
      eventually([&] { return session->replies.filled() == session->info.layout.reply_slots; }));
  EXPECT_EQ(neighbour.call(RequestType::kNop, wire::Nop{})->header.status, GPUUMD_OK);
  EXPECT_FALSE(session->over());
  for (std::uint64_t id = 1; id <= session->info.layout.reply_slots; ++id)
    ASSERT_EQ(session->receive()->header.id, id);
  session->ring();
  ASSERT_TRUE(eventually([&] { return session->requests.room().value_or(0) > 0; }));
  EXPECT_EQ(session->call(RequestType::kNop, wire::Nop{})->header.status, GPUUMD_OK);
}

TEST_F(ChannelTest, WakesASleepingReaderOnce) {
  publish_sleeping(session->page->client_sleeping, true);
  session->send(RequestType::kNop, wire::Nop{});
  pollfd watched{session->reply_wake(), POLLIN, 0};
  ASSERT_EQ(::poll(&watched, 1, 20000), 1);
  EXPECT_EQ(session->page->client_sleeping, 0u) << "taken down by the daemon";
  char bytes[16];
  EXPECT_EQ(::read(session->reply_wake(), bytes, sizeof(bytes)), 1);
  ASSERT_TRUE(session->receive());
  session->send(RequestType::kNop, wire::Nop{});
  ASSERT_TRUE(session->receive());
  EXPECT_EQ(::poll(&watched, 1, 0), 0) << "awake: nothing is written";
}

TEST_F(ChannelTest, EventsAreMergedThenLostAndCounted) {
  constexpr std::uint32_t kRing = Channel::kEventSlots;
  daemon.on_reactor([&] {
    Channel& channel = daemon.host().last_session->channel();
    for (std::uint64_t i = 0; i < kRing; ++i) channel.event({.kind = 1, .object = i});
    for (int i = 0; i < 3; ++i) channel.event({.kind = 2, .object = 5, .va = 7});  // merged
    for (std::uint64_t i = 0; i < 1000; ++i) channel.event({.kind = 3, .object = i});
    EXPECT_EQ(channel.counters().events, kRing);
    EXPECT_EQ(channel.counters().events_merged, 2u);
    EXPECT_EQ(channel.counters().events_lost, 1000u - 63);
  });
  EXPECT_EQ(load_acquire(session->page->events_lost), 1000u - 63);
  RingConsumer events(&session->page->events, kRing);
  ASSERT_EQ(events.filled(), kRing);
  events.release(kRing);
  session->ring();  // the next turn brings what had been put aside
  ASSERT_TRUE(eventually([&] { return events.filled() == 64u; }));
  wire::EventSlot first;
  copy_shared(
      &first,
      session->control.at<wire::EventSlot>(session->info.layout.events_offset) + events.slot(),
      sizeof(first));
  EXPECT_EQ(first.kind, 2u);
  EXPECT_EQ(first.count, 3u);
  pollfd watched{session->event_wake(), POLLIN, 0};
  EXPECT_EQ(::poll(&watched, 1, 20000), 1);
}

TEST_F(ChannelTest, QueueCommandsReachTheHandler) {
  wire::CreateQueue create{};
  create.vm = create_vm();
  create.slots = 16;
  const auto reply = session->call(RequestType::kCreateQueue, create);
  ASSERT_TRUE(reply);
  ASSERT_EQ(reply->header.status, GPUUMD_OK) << reply->text;
  const auto message = client.receive();
  ASSERT_TRUE(message);
  auto memory = base::Mapping::map(message->descriptors.at(0).get(), 0, 4096 + 16 * 64,
                                   PROT_READ | PROT_WRITE);
  ASSERT_TRUE(memory);
  auto* page = memory->at<wire::QueuePage>();
  RingProducer ring(&page->ring, 16);
  wire::TimestampCommand stamp{};
  stamp.header = {wire::Operation::kTimestamp, 1, 0};
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(eventually([&] { return *ring.room() > 0; }));
    store_shared(memory->at<wire::CommandSlot>(4096) + ring.slot(), &stamp, sizeof(stamp));
    ring.fill(1);
    ring.publish();
    if (must_wake(session->page->daemon_sleeping)) session->ring();
  }
  EXPECT_TRUE(eventually([&] { return daemon.host().knobs.commands == 100; }));
}

}  // namespace
}  // namespace gpuumd::fake
