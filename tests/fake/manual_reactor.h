// A reactor whose clock and turns are the test's: time stands still until advance().
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <string>
#include <utility>

#include "daemon/reactor/reactor.h"
#include "daemon/reactor/timer_queue.h"

namespace fake {

class ManualReactor : public gpuumd::Reactor {
 public:
  using Duration = gpuumd::Duration;
  using TimePoint = gpuumd::TimePoint;

  TimePoint now() const override { return now_; }
  bool on_thread() const override { return true; }
  void post(gpuumd::Task task) override { tasks_.push_back(std::move(task)); }

  gpuumd::Registration after(Duration delay, std::string_view name, gpuumd::Task task) override {
    const auto id = timers_.add(now_ + delay, name, std::move(task));
    return gpuumd::Registration([this, id] { timers_.cancel(id); });
  }
  gpuumd::Registration add_poller(gpuumd::Poller poller) override {
    auto& entry = pollers_.emplace_back(std::move(poller), true);
    return gpuumd::Registration([&entry] { entry.second = false; });
  }
  gpuumd::Registration watch(int fd, std::string_view, bool, gpuumd::Task ready) override {
    auto entry = std::make_shared<Watch>(fd, std::move(ready));
    watches_.push_back(entry);
    return gpuumd::Registration([this, entry] { std::erase(watches_, entry); });
  }

  // One turn at the present time. True when something was done.
  bool turn() {
    bool any = false;
    for (std::size_t n = tasks_.size(); n > 0; --n) {
      auto task = std::move(tasks_.front());
      tasks_.pop_front();
      task();
      any = true;
    }
    while (auto due = timers_.pop(now_)) {
      due->task();
      any = true;
    }
    for (auto& [poller, alive] : pollers_)
      if (alive) any |= poller.poll();
    std::erase_if(pollers_, [](const auto& entry) { return !entry.second; });
    return any;
  }

  // Turns until nothing is left to do now, at most `limit` turns. True when it came to rest.
  bool settle(int limit = 1000) {
    while (limit-- > 0)
      if (!turn()) return true;
    return false;
  }

  // Moves the clock on, stopping at each timer on the way.
  void advance(Duration by) {
    const auto end = now_ + by;
    settle();
    while (timers_.next() && *timers_.next() <= end) {
      now_ = *timers_.next();
      settle();
    }
    now_ = end;
    settle();
  }

  // As if `fd` had become readable.
  void signal(int fd) {
    for (const auto& entry : std::list(watches_))
      if (entry->fd == fd) entry->ready();
  }

 private:
  struct Watch {
    int fd;
    gpuumd::Task ready;
  };
  TimePoint now_{std::chrono::hours(1)};
  std::deque<gpuumd::Task> tasks_;
  gpuumd::TimerQueue timers_;
  std::list<std::pair<gpuumd::Poller, bool>> pollers_;
  std::list<std::shared_ptr<Watch>> watches_;
};

}  // namespace fake
