#include "daemon/reactor/log_limit.h"

#include <gtest/gtest.h>

namespace gpuumd {
namespace {

using std::chrono::milliseconds;

TEST(LogLimitTest, OneLineAPauseAndTheRestCounted) {
  LogLimit limit;
  const TimePoint start{std::chrono::hours(1)};
  EXPECT_EQ(limit.admit(start), 0u);
  EXPECT_EQ(limit.admit(start), std::nullopt);
  EXPECT_EQ(limit.admit(start + LogLimit::kPause - milliseconds(1)), std::nullopt);
  EXPECT_EQ(limit.admit(start + LogLimit::kPause), 2u);
  EXPECT_EQ(limit.admit(start + LogLimit::kPause), std::nullopt);
  EXPECT_EQ(limit.admit(start + 3 * LogLimit::kPause), 1u);
}

TEST(LogLimitTest, SoManyLinesAPause) {
  LogLimit limit(3);
  const TimePoint start{milliseconds(1000)};
  for (int n = 0; n < 3; ++n) EXPECT_EQ(limit.admit(start + milliseconds(n)), 0u);
  for (int n = 0; n < 5; ++n) EXPECT_EQ(limit.admit(start + milliseconds(n)), std::nullopt);
  EXPECT_EQ(limit.admit(start + LogLimit::kPause), 5u);
  EXPECT_EQ(limit.admit(start + LogLimit::kPause), 0u);
}

}  // namespace
}  // namespace gpuumd
