// Hosts of a pod: thread, in line, process.
#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>

#include "fake_gpu_device.h"
#include "raw_client.h"
#include "tools/gpusim/host/embedded.h"
#include "tools/gpusim/host/process.h"
#include "tools/gpusim/host/steady_clock.h"

#include <gtest/gtest.h>

namespace gpusim::testing {
namespace {

struct FakePod {
  std::vector<FakeGpuDevice*> gpus;

  PodFactory factory(unsigned count) {
    return [this, count](ScenarioHooks&, AccessLog&, const ModelClock&) -> base::Result<PodParts> {
      PodParts parts;
      for (unsigned i = 0; i < count; ++i) {
        auto gpu = std::make_unique<FakeGpuDevice>();
        gpus.push_back(gpu.get());
        parts.gpus.push_back(std::move(gpu));
      }
      return parts;
    };
  }
};

// Until `done` or ten seconds have passed.
template <class Condition>
bool eventually(Condition done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// A client that maps doorbells and wakes the model as the protocol says.
struct WakingClient {
  explicit WakingClient(base::UniqueFd socket, std::function<void()> pump = {})
      : client(std::move(socket), std::move(pump)) {
    Received version = client.negotiate_with_wake();
    Received info = client.call(wire::kGetRegionInfo, wire::RegionInfo{256, 0, 2, 0, 0, 0});
    if (version.fds.size() != 2 || info.fds.size() != 1) {
      ADD_FAILURE() << "no wake page or doorbells";
      return;
    }
    page = base::Mapping::map(version.fds[0].get(), 0, 4096, PROT_READ).value();
    event = std::move(version.fds[1]);
    doorbells = base::Mapping::map(info.fds[0].get(), 0, 4096, PROT_READ | PROT_WRITE).value();
  }
  bool sleeping() const {
    return std::atomic_ref(*page.at<std::uint32_t>()).load(std::memory_order_seq_cst) == 1;
  }
  void ring(std::uint64_t offset, std::uint64_t value) {
    std::atomic_ref(*doorbells.at<std::uint64_t>(offset)).store(value, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (!sleeping()) return;
    ++wakes;
    ::eventfd_write(event.get(), 1);
  }

  RawClient client;
  base::Mapping page;
  base::Mapping doorbells;
  base::UniqueFd event;
  unsigned wakes = 0;
};

TEST(ThreadHosted, ServesSeveralGpus) {
  FakePod fakes;
  auto host = ThreadHost::start(fakes.factory(3)).value();
  for (std::size_t i = 0; i < 3; ++i) {
    RawClient client(host->connect(i).value(), {});
    client.negotiate();
    EXPECT_EQ(client.write32(5, 0x10, static_cast<std::uint32_t>(i)), 0);
    EXPECT_EQ(client.read32(5, 0x10), i);
  }
  EXPECT_EQ(host->connect(3).error().code, base::Errc::kOutOfRange);
  EXPECT_NE(host->control(R"({"command":"counters"})").find("\"messages\":3"), std::string::npos);
}

TEST(ThreadHosted, FactoryErrorIsPassedOn) {
  const auto host = ThreadHost::start(
      [](ScenarioHooks&, AccessLog&, const ModelClock&) -> base::Result<PodParts> {
        return base::fail(base::Errc::kNoMemory, "VRAM");
      });
  ASSERT_FALSE(host);
  EXPECT_EQ(host.error().code, base::Errc::kNoMemory);
}

// The race of the wake protocol: no doorbell may be lost, whenever it comes.
TEST(ThreadHosted, NoDoorbellIsLostRoundSleep) {
  FakePod fakes;
  auto host = ThreadHost::start(fakes.factory(1), {}, {.spin = {}, .nap = {}}).value();
  WakingClient client(host->connect(0).value());
  for (unsigned i = 1; i <= 2000; ++i) {
    client.ring(0x40, i);
    ASSERT_TRUE(eventually([&] { return fakes.gpus[0]->doorbells_seen.load() == i; })) << i;
    // Some land while the model is about to sleep, some while it sleeps.
    if (i % 3 == 0) {
      ASSERT_TRUE(eventually([&] { return client.sleeping(); }));
    }
  }
  EXPECT_GT(client.wakes, 0u);
}

TEST(ThreadHosted, IdlePodDoesNotWake) {
  FakePod fakes;
  auto host = ThreadHost::start(fakes.factory(8)).value();
  std::vector<std::unique_ptr<WakingClient>> clients;
  for (std::size_t i = 0; i < 8; ++i)
    clients.push_back(std::make_unique<WakingClient>(host->connect(i).value()));
  for (const auto& client : clients) ASSERT_TRUE(eventually([&] { return client->sleeping(); }));
  const std::uint64_t before = host->wakes();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_LE(host->wakes() - before, 2u);
}

TEST(InlineHosted, PumpServesAClientOnTheSameThread) {
  FakePod fakes;
  const SteadyClock clock;
  auto host = InlineHost::create(fakes.factory(2), clock).value();
  RawClient client(host->connect(1).value(), [&] { host->pump(); });
  client.negotiate();
  EXPECT_EQ(client.write32(5, 0x10, 6), 0);
  EXPECT_EQ(client.read32(5, 0x10), 6u);
  EXPECT_EQ(fakes.gpus[1]->steps, 0u);  // pump() serves, it does not step
  EXPECT_FALSE(host->step());
  EXPECT_EQ(fakes.gpus[1]->steps, 1u);
  fakes.gpus[0]->set_waiting(true);
  EXPECT_TRUE(host->step());  // stay awake: something is due by time alone
  EXPECT_EQ(host->connect(2).error().code, base::Errc::kOutOfRange);
}

TEST(InlineHosted, BoundsWhatAStepMovesAndOtherHostsDoNot) {
  FakePod in_line, threaded;
  const SteadyClock clock;
  const auto host = InlineHost::create(in_line.factory(1), clock).value();
  EXPECT_EQ(in_line.gpus[0]->step_limit, 256u * 1024);
  const auto thread = ThreadHost::start(threaded.factory(1)).value();
  EXPECT_EQ(threaded.gpus[0]->step_limit, 0u);
}

TEST(InlineHosted, MessageDmaIsAnsweredFromTheHook) {
  FakePod fakes;
  const SteadyClock clock;
  RawClient* answering = nullptr;
  auto host = InlineHost::create(fakes.factory(1), clock, [&] {
                RawClient inner(base::UniqueFd(::dup(answering->fd())), {});
                const auto message = inner.receive();
                ASSERT_TRUE(message);
                inner.reply(*message, {}, EFAULT);
              }).value();
  RawClient client(host->connect(0).value(), [&] { host->pump(); });
  client.negotiate();
  client.set_bus_master();
  answering = &client;
  bool refused = false;
  fakes.gpus[0]->on_step([&](HostBus* bus) {
    host->pump();  // does nothing from in here
    std::vector<std::byte> bytes(8);
    refused = !bus->read(base::Iova(0x1000), bytes);
  });
  host->step();
  EXPECT_TRUE(refused);
}

TEST(InlineHosted, WakeFdShowsMessagesAndDoorbells) {
  FakePod fakes;
  const SteadyClock clock;
  auto host = InlineHost::create(fakes.factory(1), clock).value();
  const auto readable = [&] {
    pollfd entry{host->wake_fd(), POLLIN, 0};
    return ::poll(&entry, 1, 0) > 0;
  };
  for (int round = 0; round < 3; ++round) {
    WakingClient client(host->connect(0).value(), [&] { host->pump(); });
    host->arm(true);
    EXPECT_FALSE(host->step());
    EXPECT_FALSE(readable()) << round;
    client.ring(0x40, static_cast<std::uint64_t>(round) + 1);
    EXPECT_EQ(client.wakes, 1u);
    EXPECT_TRUE(readable());
    host->arm(false);
    EXPECT_TRUE(host->step());
    EXPECT_FALSE(client.sleeping());
    host->arm(true);
    EXPECT_FALSE(readable());
    client.client.send(wire::kDeviceReset, {});
    EXPECT_TRUE(readable());
    host->arm(false);
    EXPECT_TRUE(host->step());
    EXPECT_TRUE(client.client.receive());
    client.client.close();
    host->step();
  }
}

class ProcessHosted : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/gpusim-test-XXXXXX";
    ASSERT_NE(::mkdtemp(name), nullptr);
    directory = name;
  }
  void TearDown() override {
    stop();
    std::filesystem::remove_all(directory);
  }
  void start(ProcessOptions options = {}) {
    options.directory = directory + "/pod";
    host = ProcessHost::open(Pod::create(fakes.factory(2), clock).value(), options).value();
    thread = std::thread([this] { EXPECT_TRUE(host->run()); });
  }
  void stop() {
    if (host == nullptr) return;
    host->stop();
    thread.join();
    host.reset();
  }
  static base::UniqueFd connect(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::strcpy(address.sun_path, path.c_str());
    base::UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0)
      socket.reset();
    return socket;
  }

  std::string directory;
  FakePod fakes;
  SteadyClock clock;
  std::unique_ptr<ProcessHost> host;
  std::thread thread;
};

TEST_F(ProcessHosted, ClientsComeAndGoThroughTheSockets) {
  start();
  ASSERT_EQ(host->sockets().size(), 2u);
  for (int round = 0; round < 3; ++round) {
    for (const std::string& path : host->sockets()) {
      RawClient client(connect(path), {});
      EXPECT_FALSE(client.negotiate().failed());
      RawClient second(connect(path), {});
      EXPECT_TRUE(second.ended());
    }
  }
  const std::string path = host->sockets()[0];
  stop();
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(directory + "/pod/control.sock"));
}

TEST_F(ProcessHosted, ControlSocketAnswers) {
  start();
  const auto answer = control_once(directory + "/pod", R"({"command":"counters"})");
  ASSERT_TRUE(answer);
  EXPECT_NE(answer->find("\"ok\":true"), std::string::npos);
  const auto bad = control_once(directory + "/pod", "nonsense");
  ASSERT_TRUE(bad);
  EXPECT_NE(bad->find("\"ok\":false"), std::string::npos);
  EXPECT_EQ(control_once(directory, "{}").error().code, base::Errc::kNotFound);
}

TEST_F(ProcessHosted, ControlClientWithoutANewlineIsCutOff) {
  start();
  const base::UniqueFd socket = connect(directory + "/pod/control.sock");
  const std::string much(300'000, 'x');
  ::send(socket.get(), much.data(), much.size(), MSG_NOSIGNAL);
  char byte = 0;
  EXPECT_LE(::recv(socket.get(), &byte, 1, 0), 0);
}

TEST_F(ProcessHosted, DirectoryInUseIsRefused) {
  start();
  FakePod others;
  ProcessOptions options;
  options.directory = directory + "/pod";
  const auto second = ProcessHost::open(Pod::create(others.factory(1), clock).value(), options);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, base::Errc::kBusy);
  EXPECT_NE(second.error().message().find(options.directory), std::string::npos);
  EXPECT_TRUE(connect(host->sockets()[0]));  // it did not take the socket away
}

TEST_F(ProcessHosted, SocketInUseIsRefusedAndALeftOverOneReplaced) {
  const std::string path = directory + "/gpu0.sock";
  {
    auto first = Listener::open(path).value();
    const auto second = Listener::open(path);
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, base::Errc::kBusy);
  }
  // A socket whose process died stays in the file system.
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strcpy(address.sun_path, path.c_str());
  {
    const base::UniqueFd dead(::socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(::bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  EXPECT_TRUE(Listener::open(path));
  EXPECT_EQ(Listener::open(directory).error().code, base::Errc::kInvalidArgument);
  EXPECT_EQ(Listener::open(directory + std::string(200, 'x')).error().code,
            base::Errc::kInvalidArgument);
}

TEST_F(ProcessHosted, LogIsWrittenAtTheEnd) {
  ProcessOptions options;
  options.log_file = directory + "/log";
  start(options);
  stop();
  EXPECT_TRUE(std::filesystem::exists(options.log_file));
}

}  // namespace
}  // namespace gpusim::testing
