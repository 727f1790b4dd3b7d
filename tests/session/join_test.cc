#include "daemon/session/join.h"

#include <gtest/gtest.h>

#include <optional>

namespace gpuumd {
namespace {

using base::Errc;

struct JoinTest : testing::Test {
  std::optional<base::Result<void>> outcome;
  Join all{[this](base::Result<void> result) {
    EXPECT_FALSE(outcome) << "answered twice";
    outcome = std::move(result);
  }};
};

TEST_F(JoinTest, EndsWhenAllPartsHave) {
  auto a = all.part(), b = all.part();
  a({});
  all.end();
  EXPECT_FALSE(outcome);
  b({});
  ASSERT_TRUE(outcome);
  EXPECT_TRUE(*outcome);
}

TEST_F(JoinTest, AnErrorThatIsNotTheLastAnswerIsKeptAndWaitsForTheRest) {
  auto a = all.part(), b = all.part(), c = all.part();
  all.end();
  a({});
  b(base::fail(Errc::kDeviceError, "b"));
  EXPECT_FALSE(outcome) << "c is still at it";
  c({});
  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->error().step, "b");
}

TEST_F(JoinTest, WithoutPartsItEndsAtOnceAndPartsMayAnswerFromInside) {
  all.part()({});
  EXPECT_FALSE(outcome) << "there may be more parts";
  all.end();
  EXPECT_TRUE(outcome);
}

}  // namespace
}  // namespace gpuumd
