#include "vfio/sysfs/guarded_io.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

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

// A FIFO with nobody at its other end: open() does not come back.
TEST(GuardedIo, HungAccessIsLeftBehindAndNamed) {
  sysfs_test::FakeMachine machine;
  machine.fifo("/hung");
  for (const auto& error : {write_guarded(machine.path("/hung"), "x", 50ms).error(),
                            read_guarded(machine.path("/hung"), 50ms).error()}) {
    EXPECT_EQ(error.code, base::Errc::kTimeout);
    EXPECT_THAT(error.step, HasSubstr("/hung: the kernel has not answered for 50 ms"));
  }
}

// The process that this one has started; nullopt: none.
std::optional<std::string> child_of_ours() {
  for (const auto& name : names_in("/proc")) {
    const auto fields = words(read_text("/proc/" + name + "/stat").value_or(""));
    if (fields.size() > 3 && fields[3] == std::to_string(::getpid())) return name;
  }
  return std::nullopt;
}

// Whoever reads our output must see its end although a child is stuck: it keeps one descriptor, to
// answer through.
TEST(GuardedIo, StuckChildHoldsNoDescriptorOfOurs) {
  sysfs_test::FakeMachine machine;
  machine.fifo("/hung");
  auto written = std::async(std::launch::async,
                            [&] { return write_guarded(machine.path("/hung"), "x", 60s); });
  std::size_t held = 0;
  for (const auto end = std::chrono::steady_clock::now() + 30s;
       held != 1 && std::chrono::steady_clock::now() < end; std::this_thread::sleep_for(1ms))
    if (const auto child = child_of_ours()) held = names_in("/proc/" + *child + "/fd").size();
  EXPECT_EQ(held, 1u);
  const base::UniqueFd reader(::open(machine.path("/hung").c_str(), O_RDONLY | O_NONBLOCK));
  EXPECT_TRUE(written.get());
}

}  // namespace
