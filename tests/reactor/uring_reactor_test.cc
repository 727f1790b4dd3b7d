#include "daemon/reactor/uring_reactor.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <future>
#include <vector>

namespace gpuumd {
namespace {

using namespace std::chrono_literals;
constexpr auto kPatience = 20s;  // these machines are slow at times; no test waits this long

// Runs `call` on the reactor and waits for it.
void on(Reactor& reactor, std::move_only_function<void()> call) {
  std::promise<void> done;
  reactor.post([&] {
    call();
    done.set_value();
  });
  ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
}

std::unique_ptr<ReactorThread> start(ReactorOptions options = {}) {
  auto thread = ReactorThread::start(std::move(options));
  EXPECT_TRUE(thread.has_value()) << (thread ? "" : thread.error().message());
  return std::move(*thread);
}

TEST(UringReactor, TasksRunOnItsThreadInOrder) {
  auto thread = start();
  std::vector<int> order;
  bool own = true;
  for (int i = 0; i < 1000; ++i)
    thread->reactor().post([&, i] {
      own &= thread->reactor().on_thread();
      order.push_back(i);
    });
  on(thread->reactor(), [] {});
  EXPECT_TRUE(own);
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
}

TEST(UringReactor, PostsFromManyThreadsAllArriveWhileItSleepsAndWakes) {
  auto thread = start();
  std::atomic<int> ran{0};
  std::vector<std::thread> posters;
  for (int t = 0; t < 4; ++t)
    posters.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        thread->reactor().post([&] { ran.fetch_add(1); });
        if (i % 50 == 0) std::this_thread::sleep_for(300us);  // lets it fall asleep in between
      }
    });
  for (auto& poster : posters) poster.join();
  on(thread->reactor(), [] {});
  EXPECT_EQ(ran.load(), 2000);
}

TEST(UringReactor, TimersRunInOrderAndCancelledOnesDoNot) {
  auto thread = start();
  std::vector<int> order;
  std::promise<void> done;
  std::vector<Registration> kept;
  on(thread->reactor(), [&] {
    auto& reactor = thread->reactor();
    kept.push_back(reactor.after(20ms, "b", [&] { order.push_back(2); }));
    kept.push_back(reactor.after(5ms, "a", [&] { order.push_back(1); }));
    auto cancelled = reactor.after(1ms, "never", [&] { order.push_back(99); });
    cancelled.cancel();
    kept.push_back(reactor.after(40ms, "end", [&] { done.set_value(); }));
  });
  ASSERT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(order, (std::vector<int>{1, 2}));
  on(thread->reactor(), [&] { kept.clear(); });
}

TEST(UringReactor, AnEventfdWakesItFromSleepEachTime) {
  auto thread = start();
  base::UniqueFd event(::eventfd(0, EFD_CLOEXEC));
  std::atomic<int> seen{0};
  Registration watch;
  on(thread->reactor(), [&] {
    watch = thread->reactor().watch(event.get(), "test", true, [&] { seen.fetch_add(1); });
  });
  for (int i = 1; i <= 20; ++i) {
    std::this_thread::sleep_for(1ms);
    ::eventfd_write(event.get(), 1);
    const auto end = Clock::now() + kPatience;
    while (seen.load() < i && Clock::now() < end) std::this_thread::yield();
    ASSERT_GE(seen.load(), i);
  }
  on(thread->reactor(), [&] { watch.cancel(); });
}

TEST(UringReactor, InputLeftBehindByAHandlerIsReportedAgain) {
  auto thread = start();
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  base::UniqueFd ours(ends[0]), theirs(ends[1]);
  std::atomic<int> bytes{0};
  Registration watch;
  on(thread->reactor(), [&] {
    watch = thread->reactor().watch(theirs.get(), "socket", false, [&] {
      char one;
      if (::read(theirs.get(), &one, 1) == 1) bytes.fetch_add(1);
    });
  });
  ASSERT_EQ(::write(ours.get(), "12345678", 8), 8);
  const auto end = Clock::now() + kPatience;
  while (bytes.load() < 8 && Clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(bytes.load(), 8);
  on(thread->reactor(), [&] { watch.cancel(); });
}

TEST(UringReactor, AWatchMayCancelItselfAndItsDescriptorBeReused) {
  auto thread = start();
  base::UniqueFd first(::eventfd(0, EFD_CLOEXEC));
  std::atomic<int> seen{0};
  Registration watch;
  on(thread->reactor(), [&] {
    watch = thread->reactor().watch(first.get(), "once", true, [&] {
      seen.fetch_add(1);
      watch.cancel();
    });
  });
  ::eventfd_write(first.get(), 1);
  const auto end = Clock::now() + kPatience;
  while (seen.load() < 1 && Clock::now() < end) std::this_thread::yield();
  ::eventfd_write(first.get(), 1);
  on(thread->reactor(), [] {});
  on(thread->reactor(), [] {});
  EXPECT_EQ(seen.load(), 1);
}

TEST(UringReactor, APollerIsAskedOnceMoreAfterItWasArmed) {
  auto thread = start();
  std::atomic<bool> armed{false};
  std::atomic<int> found_after_arm{0};
  Registration poller;
  std::promise<void> done;
  // Work that appears exactly between the last look and sleep must not be missed.
  on(thread->reactor(), [&] {
    poller = thread->reactor().add_poller({"test",
                                           [&] {
                                             if (!armed.load() || found_after_arm.load() != 0)
                                               return false;
                                             found_after_arm = 1;
                                             done.set_value();
                                             return true;
                                           },
                                           [&](bool sleeping) { armed = sleeping; }});
  });
  EXPECT_EQ(done.get_future().wait_for(kPatience), std::future_status::ready);
  on(thread->reactor(), [&] { poller.cancel(); });
}

TEST(UringReactor, APollerMayCancelItselfAndAnother) {
  auto thread = start();
  std::atomic<int> second_ran{0};
  Registration first, second;
  on(thread->reactor(), [&] {
    first = thread->reactor().add_poller({"first",
                                          [&] {
                                            second.cancel();
                                            first.cancel();
                                            return true;
                                          },
                                          {}});
    second = thread->reactor().add_poller({"second",
                                           [&] {
                                             second_ran.fetch_add(1);
                                             return false;
                                           },
                                           {}});
  });
  on(thread->reactor(), [] {});
  on(thread->reactor(), [] {});
  EXPECT_EQ(second_ran.load(), 0);
}

TEST(UringReactor, AnIdleReactorSleeps) {
  auto thread = start();
  on(thread->reactor(), [] {});
  rusage before{}, after{};
  ::getrusage(RUSAGE_SELF, &before);
  const auto sleeps = thread->reactor().sleeps();
  std::this_thread::sleep_for(500ms);
  ::getrusage(RUSAGE_SELF, &after);
  EXPECT_LE(thread->reactor().sleeps() - sleeps, 3u);
  const auto micros = [](const rusage& use) {
    return use.ru_utime.tv_sec * 1000000L + use.ru_utime.tv_usec + use.ru_stime.tv_sec * 1000000L +
           use.ru_stime.tv_usec;
  };
  EXPECT_LT(micros(after) - micros(before), 100000);
}

TEST(UringReactor, ALongTurnIsReportedWithItsHandler) {
  std::promise<std::string> report;
  ReactorOptions options;
  options.turn_limit = 10ms;
  options.on_long_turn = [&, told = false](std::string_view handler, Duration) mutable {
    if (!std::exchange(told, true)) report.set_value(std::string(handler));
  };
  auto thread = start(std::move(options));
  Registration timer;
  on(thread->reactor(), [&] {
    timer = thread->reactor().after(0ms, "the slow one", [] { std::this_thread::sleep_for(30ms); });
  });
  auto handler = report.get_future();
  ASSERT_EQ(handler.wait_for(kPatience), std::future_status::ready);
  EXPECT_EQ(handler.get(), "the slow one");
  on(thread->reactor(), [&] { timer.cancel(); });
}

TEST(UringReactor, TasksLeftAtTheEndAreDestroyedNotRun) {
  auto token = std::make_shared<int>(1);
  bool ran = false;
  {
    auto thread = start();
    thread->reactor().stop();
    std::this_thread::sleep_for(5ms);
    thread->reactor().post([token, &ran] { ran = true; });
  }
  EXPECT_EQ(token.use_count(), 1);
  (void)ran;  // it may have run if stop() had not been seen yet
}

TEST(SpinPolicy, SleepsAtOnceWhenPollersOutnumberCores) {
  EXPECT_TRUE(keep_spinning(1us, 50us, 1, 2));
  EXPECT_TRUE(keep_spinning(1us, 50us, 2, 2));
  EXPECT_FALSE(keep_spinning(1us, 50us, 3, 2));
  EXPECT_FALSE(keep_spinning(1us, 50us, 1, 1));
  EXPECT_FALSE(keep_spinning(50us, 50us, 1, 2));
  EXPECT_FALSE(keep_spinning(20us, 10us, 1, 2));
  EXPECT_FALSE(keep_spinning(60us, 1s, 1, 2));
}

TEST(SpinPolicy, BudgetAdaptsBetweenATenthAndTheLimit) {
  Duration budget = kSpinLimit;
  for (int i = 0; i < 20; ++i) budget = adapt_budget(budget, false);
  EXPECT_EQ(budget, kSpinLimit / 10);
  for (int i = 0; i < 20; ++i) budget = adapt_budget(budget, true);
  EXPECT_EQ(budget, kSpinLimit);
}

}  // namespace
}  // namespace gpuumd
