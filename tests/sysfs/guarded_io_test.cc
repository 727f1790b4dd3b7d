#include "vfio/sysfs/guarded_io.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <future>
#include <optional>
#include <thread>

#include "base/fd.h"
#include "tests/sysfs/fake_machine.h"
#include "vfio/sysfs/tree.h"

namespace {

using namespace std::chrono_literals;
using namespace vfio::sysfs;
using ::testing::HasSubstr;

TEST(GuardedIo, ReadsAndWrites) {
  sysfs_test::FakeMachine machine;
  machine.put("/a", "a longer text than the next\n");
  EXPECT_TRUE(write_guarded(machine.path("/a"), "short\n", 10s));
  EXPECT_EQ(*read_guarded(machine.path("/a"), 10s), "short");
}

TEST(GuardedIo, ErrorsOfTheKernelComeThrough) {
  sysfs_test::FakeMachine machine;
  EXPECT_EQ(read_guarded(machine.path("/no"), 10s).error().code, base::Errc::kNotFound);
  const auto written = write_guarded(machine.path("/no"), "x", 10s);
  EXPECT_EQ(written.error().code, base::Errc::kNotFound);
  EXPECT_EQ(written.error().sys, ENOENT);
  EXPECT_THAT(written.error().step, HasSubstr(machine.path("/no")));
  EXPECT_FALSE(std::filesystem::exists(machine.path("/no"))) << "an attribute is never made";
  EXPECT_EQ(write_guarded("/dev/full", "x", 10s).error().sys, ENOSPC);
}

// A FIFO with nobody at its other end: open() does not come back. One for each access: a writer
// that is left behind would be the reader's other end.
TEST(GuardedIo, HungAccessIsLeftBehindAndNamed) {
  sysfs_test::FakeMachine machine;
  machine.fifo("/hung_write");
  machine.fifo("/hung_read");
  const auto written = write_guarded(machine.path("/hung_write"), "x", 50ms);
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, base::Errc::kTimeout);
  EXPECT_THAT(written.error().step,
              HasSubstr("/hung_write: the kernel has not answered for 50 ms"));
  const auto read = read_guarded(machine.path("/hung_read"), 50ms);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, base::Errc::kTimeout);
  EXPECT_THAT(read.error().step, HasSubstr("/hung_read: the kernel has not answered for 50 ms"));
}

// The process that this one has started; nullopt: none.
std::optional<std::string> child_of_ours() {
  for (const auto& name : names_in("/proc")) {
    const auto fields = words(read_text("/proc/" + name + "/stat").value_or(""));
    if (fields.size() > 3 && fields[3] == std::to_string(::getpid())) return name;
  }
  return std::nullopt;
}

// Of the same program and process group, no child of ours, and with one descriptor.
bool somebody_elses_child_has_one_descriptor() {
  const auto own = words(read_text("/proc/self/stat").value_or(""));
  for (const auto& name : names_in("/proc")) {
    const auto fields = words(read_text("/proc/" + name + "/stat").value_or(""));
    if (fields.size() > 4 && fields[0] != own[0] && fields[1] == own[1] && fields[4] == own[4] &&
        fields[3] != own[0] && names_in("/proc/" + name + "/fd").size() == 1)
      return true;
  }
  return false;
}

// Whether this process has a child, ended or not.
bool has_child() {
  siginfo_t ignored{};
  return ::waitid(P_ALL, 0, &ignored, WEXITED | WNOHANG | WNOWAIT) == 0;
}

// While the kernel keeps it, it is init's child: we need not reap it when it comes back.
TEST(GuardedIo, WhoIsStuckIsNoZombieOfOursLater) {
  sysfs_test::FakeMachine machine;
  machine.fifo("/hung");
  auto written = std::async(std::launch::async,
                            [&] { return write_guarded(machine.path("/hung"), "x", 60s); });
  bool found = false;
  bool reaped = false;  // the process between it and us, a moment after it has ended
  for (const auto end = std::chrono::steady_clock::now() + 30s;
       !(found && reaped) && std::chrono::steady_clock::now() < end;
       std::this_thread::sleep_for(1ms)) {
    found = found || somebody_elses_child_has_one_descriptor();
    reaped = found && !has_child();
  }
  EXPECT_TRUE(found);
  EXPECT_TRUE(reaped) << "a child is left to us";
  const base::UniqueFd reader(::open(machine.path("/hung").c_str(), O_RDONLY | O_NONBLOCK));
  EXPECT_TRUE(written.get());
}

// A signal that comes in the middle ends nothing.
TEST(GuardedIo, SignalsDoNotEndTheWait) {
  struct sigaction action{};
  action.sa_handler = [](int) {};
  struct sigaction before{};
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);  // without SA_RESTART
  sysfs_test::FakeMachine machine;
  machine.put("/a", "text\n");
  std::atomic<bool> done = false;
  const auto reader = ::pthread_self();
  std::thread ringer([&] {
    while (!done) {
      ::pthread_kill(reader, SIGUSR1);
      std::this_thread::sleep_for(50us);
    }
  });
  int failed = 0;
  for (int i = 0; i < 100; ++i) failed += read_guarded(machine.path("/a"), 60s) ? 0 : 1;
  done = true;
  ringer.join();
  ::sigaction(SIGUSR1, &before, nullptr);
  EXPECT_EQ(failed, 0);
}

// Whoever reads our output must see its end although a child is stuck: it keeps one descriptor, to
// answer through.
TEST(GuardedIo, StuckChildHoldsNoDescriptorOfOurs) {
  sysfs_test::FakeMachine machine;
  machine.fifo("/hung");
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);  // it is found as a child
  auto written = std::async(std::launch::async,
                            [&] { return write_guarded(machine.path("/hung"), "x", 60s); });
  std::size_t held = 0;
  for (const auto end = std::chrono::steady_clock::now() + 30s;
       held != 1 && std::chrono::steady_clock::now() < end; std::this_thread::sleep_for(1ms))
    if (const auto child = child_of_ours()) held = names_in("/proc/" + *child + "/fd").size();
  EXPECT_EQ(held, 1u);
  const base::UniqueFd reader(::open(machine.path("/hung").c_str(), O_RDONLY | O_NONBLOCK));
  EXPECT_TRUE(written.get());
  ::prctl(PR_SET_CHILD_SUBREAPER, 0);
  while (::waitpid(-1, nullptr, 0) > 0) {
  }
}

}  // namespace
