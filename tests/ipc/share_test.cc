// Buffer descriptors, and descriptors that clients bring.
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "daemon/ipc/foreign_fd.h"
#include "daemon/ipc/share_table.h"
#include "tests/ipc/fixture.h"
#include "tests/ipc/raw_client.h"

namespace gpuumd::fake {
namespace {

struct Table {
  Table() {
    thread = start_reactor();
    run([&] {
      table = std::move(ShareTable::create(thread->reactor(), [&](ShareKey key) {
                          ++closed;
                          last = key.value();
                        }).value());
    });
  }
  ~Table() {
    run([&] { table.reset(); });
  }
  template <class Work>
  void run(Work work) {
    std::promise<void> done;
    thread->reactor().post([&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }
  std::pair<ShareKey, base::UniqueFd> make() {
    std::optional<std::pair<ShareKey, base::UniqueFd>> made;
    run([&] { made = std::move(table->make().value()); });
    return std::move(*made);
  }

  std::unique_ptr<ReactorThread> thread;
  std::unique_ptr<ShareTable> table;
  std::atomic<int> closed{0};
  std::atomic<std::uint64_t> last{0};
};

TEST(Share, LastCloseAnywhereDropsTheReference) {
  Table table;
  auto [key, descriptor] = table.make();
  auto other = table.make();
  auto copy = std::move(descriptor.duplicate().value());
  EXPECT_EQ(identify_share(copy.get()), key);
  EXPECT_NE(identify_share(other.second.get()), key);
  descriptor.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(table.closed, 0);
  copy.reset();
  EXPECT_TRUE(eventually([&] { return table.closed == 1; }));
  EXPECT_EQ(table.last, key.value());
  table.run([&] {
    EXPECT_FALSE(table.table->contains(key));
    EXPECT_EQ(table.table->size(), 1u);
  });
}

TEST(Share, NothingCanBeSentThroughIt) {
  Table table;
  auto [key, descriptor] = table.make();
  EXPECT_LT(::send(descriptor.get(), "x", 1, MSG_NOSIGNAL), 0);
  EXPECT_EQ(errno, EPIPE);
}

TEST(Share, ForgedDescriptorsAreNotRecognised) {
  Table table;
  auto made = table.make();
  int pair[2];
  ASSERT_EQ(::pipe2(pair, O_CLOEXEC), 0);
  EXPECT_FALSE(identify_share(pair[0]));
  ::close(pair[0]);
  ::close(pair[1]);
  const base::UniqueFd tcp(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_FALSE(identify_share(tcp.get()));
  const base::UniqueFd lonely(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  EXPECT_FALSE(identify_share(lonely.get()));
  EXPECT_FALSE(identify_share(-1));
}

TEST(Share, ThroughASessionAndBack) {
  Daemon daemon;
  RawClient client(daemon.directory);
  ASSERT_TRUE(client.shake_hands());
  RawSession session(*client.open_session());
  wire::CreateBuffer create{};
  create.kind = GPUUMD_BUFFER_VRAM;
  create.bytes = 4096;
  wire::Share share{};
  share.object = session.call(wire::RequestType::kCreateBuffer, create)->body.object;
  ASSERT_EQ(session.call(wire::RequestType::kShare, share)->header.status, GPUUMD_OK);
  auto message = client.receive();
  ASSERT_TRUE(message);

  RawClient second(daemon.directory);
  ASSERT_TRUE(second.shake_hands());
  RawSession theirs(*second.open_session());
  // The request first: it waits for its descriptor.
  theirs.send(wire::RequestType::kOpenShared, wire::OpenShared{}, sizeof(wire::OpenShared), 42);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  wire::Descriptors bring{{wire::MessageType::kDescriptors, 0, 0}, theirs.info.session, 42, 1};
  ASSERT_TRUE(second.send(bring, {message->descriptors.at(0).get()}));
  const auto opened = theirs.receive();
  ASSERT_TRUE(opened);
  EXPECT_EQ(opened->header.status, GPUUMD_OK) << opened->text;
  EXPECT_EQ(opened->body.bytes, 4096u);

  // A descriptor that is something else.
  const base::UniqueFd event(::eventfd(0, EFD_CLOEXEC));
  bring.tag = 43;
  ASSERT_TRUE(second.send(bring, {event.get()}));
  theirs.send(wire::RequestType::kOpenShared, wire::OpenShared{}, sizeof(wire::OpenShared), 43);
  EXPECT_EQ(theirs.receive()->header.status, GPUUMD_NOT_FOUND);
  message->descriptors.clear();
  EXPECT_TRUE(eventually([&] { return daemon.host().shares_closed == 1; }));
}

TEST(Share, DescriptorThatNeverComesIsAnError) {
  Daemon daemon;
  RawClient client(daemon.directory);
  ASSERT_TRUE(client.shake_hands());
  RawSession session(*client.open_session());
  session.send(wire::RequestType::kOpenShared, wire::OpenShared{}, sizeof(wire::OpenShared), 9);
  const auto reply = session.receive();
  ASSERT_TRUE(reply);
  EXPECT_EQ(reply->header.status, GPUUMD_INVALID_ARGUMENT);
  EXPECT_EQ(session.call(wire::RequestType::kNop, wire::Nop{})->header.status, GPUUMD_OK);
}

// A TCP socket with SO_LINGER and data that nobody reads: close() of the last descriptor blocks for
// its time. The daemon's threads must not be where that happens.
TEST(Share, ClosingWhatAClientSentNeverBlocksTheDaemon) {
  base::UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (!listener ||
      ::bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0)
    GTEST_SKIP() << "no loopback";
  socklen_t size = sizeof(address);
  ASSERT_EQ(::listen(listener.get(), 1), 0);
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  base::UniqueFd lingering(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::connect(lingering.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  const base::UniqueFd peer(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  const std::vector<char> junk(1 << 20);
  while (::send(lingering.get(), junk.data(), junk.size(), MSG_DONTWAIT) > 0) {
  }
  const linger option{1, 3};
  ASSERT_EQ(::setsockopt(lingering.get(), SOL_SOCKET, SO_LINGER, &option, sizeof(option)), 0);

  Daemon daemon;
  RawClient client(daemon.directory);
  ASSERT_TRUE(client.shake_hands());
  RawSession session(*client.open_session());
  wire::Descriptors bring{{wire::MessageType::kDescriptors, 0, 0}, session.info.session, 7, 1};
  ASSERT_TRUE(client.send(bring, {lingering.get()}));
  lingering.reset();  // the daemon's is the last one now
  const auto start = std::chrono::steady_clock::now();
  session.send(wire::RequestType::kOpenShared, wire::OpenShared{}, sizeof(wire::OpenShared), 7);
  EXPECT_EQ(session.receive()->header.status, GPUUMD_NOT_FOUND);
  EXPECT_EQ(session.call(wire::RequestType::kNop, wire::Nop{})->header.status, GPUUMD_OK);
  RawClient other(daemon.directory);
  EXPECT_TRUE(other.shake_hands());
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2))
      << "it lingers for 3 s: somebody waited for it";
  EXPECT_TRUE(eventually([] { return foreign_fds_waiting() == 0; }));
}

}  // namespace
}  // namespace gpuumd::fake
