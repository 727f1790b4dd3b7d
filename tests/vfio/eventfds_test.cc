#include "vfio/eventfds.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include <gtest/gtest.h>

namespace vfio_test {
namespace {

TEST(Eventfds, EachIsItsOwnAndNeitherBlocksNorIsInherited) {
  const auto fds = vfio::make_eventfds(3).value();
  const auto numbers = vfio::numbers_of(fds);
  ASSERT_EQ(numbers.size(), 3u);
  const std::uint64_t two = 2;
  ASSERT_EQ(::write(numbers[1], &two, sizeof(two)), 8);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(numbers[i], fds[i].get());
    EXPECT_NE(::fcntl(numbers[i], F_GETFD) & FD_CLOEXEC, 0);
    ASSERT_NE(::fcntl(numbers[i], F_GETFL) & O_NONBLOCK, 0);
    std::uint64_t count = 0;
    EXPECT_EQ(::read(numbers[i], &count, sizeof(count)), i == 1 ? 8 : -1);
    EXPECT_EQ(count, i == 1 ? 2u : 0u);
  }
}

TEST(Eventfds, WithoutDescriptorsThereAreNone) {
  // The numbers that are next, closed again.
  const int last = vfio::numbers_of(vfio::make_eventfds(2).value()).back();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(last) + 1;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const auto too_many = vfio::make_eventfds(3);
  const auto fits = vfio::make_eventfds(2);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(too_many);
  EXPECT_EQ(too_many.error().code, base::Errc::kSystem);
  EXPECT_EQ(too_many.error().sys, EMFILE);
  EXPECT_TRUE(fits) << "those of the failed call are closed";
}

}  // namespace
}  // namespace vfio_test
