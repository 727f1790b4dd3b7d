#include "daemon/gpu/memory/memory_worker.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>

#include "tests/daemon_memory/worker_fixture.h"

namespace {

using namespace gpuumd;

class MemoryWorkerTest : public ::testing::Test {
 protected:
  fake::PostedReactor reactor;
  std::unique_ptr<MemoryWorker> worker = std::move(*MemoryWorker::create(reactor));
};

TEST_F(MemoryWorkerTest, DoesRequestsInOrderElsewhereAndAnswersHere) {
  std::vector<int> order;  // of the worker: read after the last answer
  std::vector<int> answers;
  const auto here = std::this_thread::get_id();
  for (int i = 0; i < 1000; ++i) {
    worker->run(
        [&order, i, here] {
          EXPECT_NE(std::this_thread::get_id(), here);
          order.push_back(i);
          return base::Result<void>();
        },
        [&answers, i, here](base::Result<void> result) {
          EXPECT_TRUE(result);
          EXPECT_EQ(std::this_thread::get_id(), here);
          answers.push_back(i);
        });
  }
  ASSERT_TRUE(reactor.until([&] { return answers.size() == 1000; }));
  EXPECT_TRUE(std::is_sorted(answers.begin(), answers.end()));
  EXPECT_EQ(order, answers);
  EXPECT_EQ(worker->pending(), 0u);
}

TEST_F(MemoryWorkerTest, WakesFromEverySleep) {
  for (int i = 0; i < 200; ++i) {
    bool answered = false;
    worker->run([] { return base::Result<void>(); }, [&](base::Result<void>) { answered = true; });
    ASSERT_TRUE(reactor.until([&] { return answered; }));
    if (i % 20 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

TEST_F(MemoryWorkerTest, EndingItDoesWhatIsQueuedAndAnswersNobody) {
  std::atomic<int> done = 0;
  int answered = 0;
  for (int i = 0; i < 100; ++i) {
    worker->run(
        [&] {
          ++done;
          return base::Result<void>();
        },
        [&](base::Result<void>) { ++answered; });
  }
  worker.reset();
  EXPECT_EQ(done, 100);  // every unmap happens
  reactor.until([n = 0]() mutable { return ++n > 10; });
  EXPECT_EQ(answered, 0);
}

TEST_F(MemoryWorkerTest, TheDescriptorStaysOpenUntilTheWorkIsDone) {
  auto fd =
      std::make_shared<const base::UniqueFd>(std::move(*base::make_memfd("test", 4 * base::kMiB)));
  struct stat status{};
  bool allocated = false;
  worker->allocate(fd, 0, 2 * base::kMiB, [&](base::Result<void> result) {
    EXPECT_TRUE(result);
    allocated = true;
  });
  ASSERT_TRUE(reactor.until([&] { return allocated; }));
  ::fstat(fd->get(), &status);
  EXPECT_EQ(status.st_blocks, 4096);
  bool punched = false;
  worker->punch(fd, base::kMiB, base::kMiB, [&](base::Result<void> result) {
    EXPECT_TRUE(result);
    punched = true;
  });
  const std::weak_ptr<const base::UniqueFd> weak = fd;
  fd.reset();  // the punch succeeds all the same
  ASSERT_TRUE(reactor.until([&] { return punched; }));
  EXPECT_TRUE(weak.expired());
}

TEST_F(MemoryWorkerTest, ErrorsComeBackTyped) {
  const auto small =
      std::make_shared<const base::UniqueFd>(std::move(*base::make_memfd("test", 4096)));
  std::optional<base::Result<void>> answer;
  worker->allocate(small, 0, 2 * base::kMiB, [&](base::Result<void> r) { answer = std::move(r); });
  ASSERT_TRUE(reactor.until([&] { return answer.has_value(); }));
  EXPECT_EQ(answer->error().code, base::Errc::kSystem);  // F_SEAL_GROW
  EXPECT_EQ(answer->error().sys, EPERM);
}

}  // namespace
