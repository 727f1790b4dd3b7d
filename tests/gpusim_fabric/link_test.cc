// Two pods, as of two processes, linked over a socket: each is stepped by a thread of its own.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/gpusim_fabric/pod_bench.h"
#include "tools/gpusim/host/fabric_link.h"

namespace gpusim::test {
namespace {

constexpr std::uint64_t kLocal = 0x180'0000;
constexpr std::uint16_t kNear = 5, kFar = 9;
constexpr std::uint32_t kReadNack = 1u << 18;

class Directory {
 public:
  Directory() {
    char name[] = "/tmp/gpusim-link-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~Directory() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string pod(unsigned id) const {
    const std::string path = file("pod" + std::to_string(id));
    std::ofstream(path) << R"({"ppod_size": 16, "vpod_id": 1, "config_state": 5, "members": [5, 9],
      "gpus": [{"accel_id": )"
                        << id << "}]}";
    return path;
  }

 private:
  std::string path_;
};

// The far pod lives on its own thread from start() to stop().
class Linked : public ::testing::Test {
 protected:
  Linked()
      : far(1, "pod=" + directory.pod(kFar) + ",listen-fabric=" + directory.file("fabric")),
        near(1, "pod=" + directory.pod(kNear) + ",join-fabric=" + directory.file("fabric")) {
    prepare(far, kNear);
    prepare(near, kFar);
    start();
    // Until both know each other.
    for (unsigned i = 0; i < 10'000 && near[0].copy(Node::buffer_va(), kMc + kLocal, 4) != 0; ++i)
      ::usleep(1000);
  }
  ~Linked() override { stop(); }
  static void prepare(PodBench& pod, std::uint16_t peer) {
    pod[0].map_peer(peer);
    pod[0].bring_up();
    pod[0].write_table();
    pod[0].load_firmware();
  }
  void start() {
    running = true;
    thread = std::thread([this] {
      while (running) {
        if (!far.step()) std::this_thread::yield();
        far_read = far[0].queue_read();
      }
    });
  }
  void stop() {
    running = false;
    if (thread.joinable()) thread.join();
  }
  static std::uint64_t pattern(std::uint64_t i) { return i * 0x9E37'79B9'7F4A'7C15 + 3; }

  Directory directory;
  PodBench far, near;
  std::atomic<bool> running = false;
  std::atomic<std::uint64_t> far_read = 0;  // of the far queue
  std::thread thread;
};

TEST_F(Linked, CopiesInBothDirections) {
  constexpr std::uint64_t kBytes = 1 << 20;
  stop();
  for (std::uint64_t i = 0; i < kBytes; i += 8) {
    far[0].put(kBuffer + i, pattern(i));
    near[0].put(kBuffer + i, ~pattern(i));
  }
  start();
  near[0].submit_copy(Node::buffer_va(), kMc + kLocal, kBytes);
  near[0].submit_copy(kMc + kBuffer, Node::buffer_va(2 * kBytes), kBytes);
  near.settle();
  stop();
  const ScenarioValues links = near.run("fabric.links");
  EXPECT_EQ(*links.number("open"), 1u);
  EXPECT_GE(*links.number("by_reference"), 32u) << "data goes from memory to memory";
  EXPECT_EQ(*links.number("timeouts"), 0u);
  for (std::uint64_t i = 0; i < kBytes; i += 8) {
    ASSERT_EQ(near[0].get<std::uint64_t>(kLocal + i), pattern(i)) << i;
    ASSERT_EQ(far[0].get<std::uint64_t>(kBuffer + 2 * kBytes + i), ~pattern(i)) << i;
  }
}

TEST_F(Linked, BothReadAtOnceWithoutADeadlock) {
  constexpr std::uint64_t kBytes = 1 << 20;
  stop();
  for (std::uint64_t i = 0; i < kBytes; i += 8) {
    far[0].put(kBuffer + i, pattern(i));
    near[0].put(kBuffer + i, ~pattern(i));
  }
  far[0].submit_copy(Node::buffer_va(), kMc + kLocal, kBytes);
  start();
  near[0].submit_copy(Node::buffer_va(), kMc + kLocal, kBytes);
  const auto done = [&] { return near[0].queue_read() != 0 && far_read != 0; };
  for (unsigned i = 0; i < 40'000 && !done(); ++i)
    if (!near.step()) ::usleep(500);
  stop();
  for (std::uint64_t i = 0; i < kBytes; i += 8)
    ASSERT_EQ(near[0].get<std::uint64_t>(kLocal + i), pattern(i)) << i;
  EXPECT_EQ(far[0].get<std::uint64_t>(kLocal), ~pattern(0));
}

TEST_F(Linked, MessagesAndRecordsGoAcross) {
  stop();
  start();
  near[0].send(kInterrupt, {0x3000'0003, 1,
                            static_cast<std::uint32_t>(kNpaRecords << 12) + 32 * kFar, kNear << 9});
  near[0].send(kInterrupt, Node::message(2, {0x77, 1, 2, 3}));
  const std::uint64_t record = kRecords + 32 * kFar;
  for (unsigned i = 0; i < 10'000 && near[0].get<std::uint32_t>(record) != 2; ++i) {
    near.step();
    ::usleep(500);
  }
  stop();
  EXPECT_EQ(near[0].get<std::uint32_t>(record), 2u);
  EXPECT_EQ(near[0].get<std::uint64_t>(record + 8), 2u);
  const auto messages = far[0].messages();
  ASSERT_EQ(messages.size(), 1u);
  EXPECT_EQ(messages[0].pasid, kNear);
  EXPECT_EQ(messages[0].data[0], 0x77u);
}

TEST_F(Linked, D46_RefusalsAndAtomicsComeBack) {
  stop();
  far[0].put(kBuffer, std::uint64_t{40});
  far[0].set_npa(kNpaBuffer + 1, 0);
  start();
  EXPECT_EQ(near[0].copy(Node::buffer_va(0x1000), kMc + kLocal, 64), kReadNack);
  std::uint64_t old = 0;
  EXPECT_EQ(near.gpu(0).mmhub(0).atomic({"test", 0, 0, 0}, Node::buffer_va(), AtomicOp::kAdd64, 2,
                                        0, old),
            Outcome::kOk);
  EXPECT_EQ(old, 40u);
}

TEST_F(Linked, AProcessThatEndsIsALostPeer) {
  stop();
  far.parts.gpus.clear();
  far.parts.parts.clear();
  near[0].submit_copy(Node::buffer_va(), kMc + kLocal, 64);
  near.settle();
  const auto vectors = near[0].vectors();
  ASSERT_FALSE(vectors.empty());
  EXPECT_EQ(vectors.back().source, 0xE7);
  EXPECT_EQ(vectors.back().data[3], 1u);
}

TEST(Link, NobodyThere) {
  const Directory directory;
  EXPECT_EQ(join_fabric(directory.file("none")).error().code, base::Errc::kNotFound);
  EXPECT_EQ(join_fabric(std::string(200, 'x')).error().code, base::Errc::kInvalidArgument);
  const auto listening = listen_fabric(directory.file("fabric"));
  ASSERT_TRUE(listening);
  EXPECT_EQ(listen_fabric(directory.file("fabric")).error().code, base::Errc::kBusy);
}

// What a broken or hostile process sends ends the link, and nothing else.
TEST(Link, GarbageEndsTheLink) {
  const Directory directory;
  PodBench pod(1, "pod=" + directory.pod(kNear) + ",listen-fabric=" + directory.file("fabric"));
  const auto send = [&](auto change, std::size_t bytes = sizeof(LinkHeader)) {
    auto socket = join_fabric(directory.file("fabric"));
    ASSERT_TRUE(socket);
    std::array<std::byte, 512> packet{};
    LinkHeader header;
    change(header);
    base::store(std::span(packet), 0, header);
    ASSERT_EQ(::send(socket->get(), packet.data(), bytes, MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes));
    for (unsigned i = 0; i < 10; ++i) pod.step();
    std::byte drain[4096];
    ssize_t got = 1;
    while (got > 0) got = ::recv(socket->get(), drain, sizeof drain, MSG_DONTWAIT);
    EXPECT_EQ(got, 0) << "closed";
  };
  send([](LinkHeader& h) { h.magic = 1; });
  send([](LinkHeader& h) { h.version = 2; });
  send([](LinkHeader& h) { h.type = 77; });
  send([](LinkHeader& h) { h.type = 2; });  // an access before any state
  send([](LinkHeader& h) { h.type = 1; });  // a state without GPUs
  send([](LinkHeader& h) { h.type = 1; }, sizeof(LinkHeader) + sizeof(LinkGpu));  // no descriptor
  EXPECT_EQ(*pod.run("fabric.links").number("bad_messages"), 6u);
  send([](LinkHeader&) {}, 10);
  EXPECT_EQ(*pod.run("fabric.links").number("open"), 0u);
}

}  // namespace
}  // namespace gpusim::test
