// No call outlasts its deadline, whatever the daemon does.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "tests/client/app.h"

// The daemon's process is forked from one that has threads, and starts threads of its own.
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options();
const char* __tsan_default_options() { return "die_after_fork=0"; }

namespace gpuumd::fake {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

// A daemon in a process of its own, to be stopped and killed.
class Process {
 public:
  explicit Process(std::string at) : directory(std::move(at)) {
    int ready[2];
    if (::pipe2(ready, O_CLOEXEC) != 0) std::abort();
    pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ControlConfig config;
      config.runtime_dir = directory;
      Daemon daemon(config);
      (void)!::write(ready[1], "x", 1);
      for (;;) ::pause();
    }
    ::close(ready[1]);
    char byte = 0;
    EXPECT_EQ(::read(ready[0], &byte, 1), 1);
    ::close(ready[0]);
  }
  ~Process() { kill(); }
  void kill() {
    if (pid <= 0) return;
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
    pid = 0;
  }
  void stop() {
    ::kill(pid, SIGSTOP);
    int status = 0;
    ::waitpid(pid, &status, WUNTRACED);
  }
  void go_on() { ::kill(pid, SIGCONT); }

  std::string directory;
  pid_t pid = 0;
};

struct Deadline : ::testing::Test {
  void SetUp() override {
    client = connect_to(process.directory);
    ASSERT_NE(client, nullptr);
    ASSERT_EQ(gpuumd_device_open(client, nullptr, 0, nullptr, &device), GPUUMD_OK);
    ASSERT_EQ(gpuumd_fence_create(device, nullptr, &fence), GPUUMD_OK);
  }
  void TearDown() override {
    process.kill();
    (void)gpuumd_fence_destroy(fence, nullptr);
    gpuumd_device_close(device);
    gpuumd_disconnect(client);
    std::filesystem::remove_all(process.directory);
  }
  // Threads that ping and threads that wait for a fence, in every mode; what each ended with.
  std::vector<gpuumd_status> all_threads(std::int64_t ms, auto meanwhile) {
    std::vector<gpuumd_status> results(6, GPUUMD_OK);
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < 6; ++i)
      threads.emplace_back([&, i] {
        const gpuumd_wait wait = wait_for(ms, i % 3);
        if (i >= 3) {
          results[i] = gpuumd_fence_wait(fence, 1, &wait);
          return;
        }
        while (results[i] == GPUUMD_OK) results[i] = gpuumd_device_ping(device, &wait);
      });
    meanwhile();
    for (auto& thread : threads) thread.join();
    return results;
  }

  Process process{make_directory()};
  gpuumd_client* client = nullptr;
  gpuumd_device* device = nullptr;
  gpuumd_fence* fence = nullptr;
};

TEST_F(Deadline, KilledDaemonIsDisconnectedForEveryThread) {
  const auto start = steady_clock::now();
  const auto results = all_threads(120'000, [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    process.kill();
  });
  for (const gpuumd_status result : results) EXPECT_EQ(result, GPUUMD_DISCONNECTED);
  EXPECT_LT(steady_clock::now() - start, seconds(60)) << "at once, not at the deadline";
  EXPECT_EQ(gpuumd_device_ping(device, nullptr), GPUUMD_DISCONNECTED);
  gpuumd_event event{};
  event.size = sizeof(event);
  EXPECT_EQ(gpuumd_event_next(client, &event), GPUUMD_DISCONNECTED);
  std::uint32_t count;
  EXPECT_EQ(gpuumd_device_count(client, nullptr, &count), GPUUMD_DISCONNECTED);
}

TEST_F(Deadline, StoppedDaemonIsDisconnectedAtTheDeadline) {
  process.stop();
  const auto start = steady_clock::now();
  const auto results = all_threads(1000, [] {});
  for (std::size_t i = 0; i < results.size(); ++i) EXPECT_EQ(results[i], GPUUMD_DISCONNECTED) << i;
  EXPECT_LT(steady_clock::now() - start, seconds(20));
  gpuumd_client* second = nullptr;
  gpuumd_connect_options options{};
  options.size = sizeof(options);
  options.runtime_dir = process.directory.c_str();
  const gpuumd_wait wait = wait_for(500);
  EXPECT_EQ(gpuumd_connect(&options, &wait, &second), GPUUMD_DISCONNECTED);
  process.go_on();
  EXPECT_EQ(gpuumd_device_ping(device, nullptr), GPUUMD_OK) << "it was only stopped";
}

TEST_F(Deadline, RestartedDaemonIsAnotherDaemon) {
  process.kill();
  Process second(process.directory);
  EXPECT_EQ(gpuumd_device_ping(device, nullptr), GPUUMD_DISCONNECTED);
  gpuumd_client* again = connect_to(process.directory);
  ASSERT_NE(again, nullptr);
  gpuumd_disconnect(again);
}

TEST_F(App, UnansweredRequestTimesOutAndItsLateResultIsUndone) {
  daemon.host().knobs.stall_reactor = true;  // at the end of its next turn, which the ping brings
  const gpuumd_wait brief = wait_for(50);
  (void)gpuumd_device_ping(device, &brief);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  gpuumd_vm* vm = nullptr;
  const auto status = gpuumd_vm_create(device, nullptr, &brief, &vm);
  EXPECT_TRUE(status == GPUUMD_TIMEOUT || status == GPUUMD_DISCONNECTED);
  EXPECT_EQ(vm, nullptr);
  daemon.host().knobs.stall_reactor = false;
  ASSERT_EQ(gpuumd_device_ping(device, nullptr), GPUUMD_OK);
  EXPECT_TRUE(eventually([&] {
    gpuumd_device_ping(device, nullptr);
    return daemon.host().knobs.destroyed == 1;
  })) << "the VM was made late and is destroyed again";
  EXPECT_EQ(daemon.host().knobs.objects, 0);
}

TEST_F(App, RequestThatTheDaemonHoldsTimesOut) {
  daemon.host().knobs.hold_vm = true;
  for (const std::uint32_t mode : {GPUUMD_WAIT_ADAPTIVE, GPUUMD_WAIT_POLL, GPUUMD_WAIT_SLEEP}) {
    const gpuumd_wait wait = wait_for(400, mode);
    gpuumd_vm* vm = nullptr;
    EXPECT_EQ(gpuumd_vm_create(device, nullptr, &wait, &vm), GPUUMD_TIMEOUT);
    EXPECT_NE(std::string(gpuumd_last_error()).find("create VM"), std::string::npos)
        << gpuumd_last_error();
  }
  EXPECT_EQ(gpuumd_device_ping(device, nullptr), GPUUMD_OK) << "others get through";
}

// Requests that are never answered use up the places; the next ones fail by their deadline too.
TEST_F(App, NoPlaceLeftIsATimeout) {
  daemon.host().knobs.hold_vm = true;
  const gpuumd_wait brief = wait_for(1);
  gpuumd_vm* vm = nullptr;
  for (int i = 0; i < 70; ++i) EXPECT_NE(gpuumd_vm_create(device, nullptr, &brief, &vm), GPUUMD_OK);
  const gpuumd_wait wait = wait_for(300);
  EXPECT_EQ(gpuumd_device_ping(device, &wait), GPUUMD_TIMEOUT) << gpuumd_last_error();
}

TEST_F(App, SessionThatTheDaemonEndsIsDisconnected) {
  daemon.on_reactor([&] {
    daemon.host().last_session->channel().fail({base::Errc::kProtocol, 0, "by the test"});
  });
  EXPECT_TRUE(
      eventually([&] { return gpuumd_device_ping(device, nullptr) == GPUUMD_DISCONNECTED; }));
  gpuumd_device_close(device);
  device = nullptr;
  EXPECT_EQ(gpuumd_device_open(client, nullptr, 0, nullptr, &device), GPUUMD_OK)
      << "the connection lives: " << gpuumd_last_error();
}

}  // namespace
}  // namespace gpuumd::fake
