// The io_uring backend of Reactor and the thread that runs it (docs/adr/0002-reactor.md).
#pragma once

#include <atomic>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>

#include "base/fd.h"
#include "daemon/reactor/reactor.h"
#include "daemon/reactor/spin_policy.h"
#include "daemon/reactor/task_queue.h"
#include "daemon/reactor/timer_queue.h"

struct io_uring;

namespace gpuumd {

struct ReactorOptions {
  std::string name = "reactor";
  SpinCensus* census = nullptr;  // null: this reactor alone counts
  int cores = 0;                 // online CPUs; 0: ask the system
  // A turn of one handler over this is reported (0: not measured). The report names the handler.
  Duration turn_limit{0};
  std::move_only_function<void(std::string_view handler, Duration took)> on_long_turn;
};

class UringReactor final : public Reactor {
 public:
  // kUnsupported with the reason (sysctl kernel.io_uring_disabled, seccomp, an old kernel) when the
  // ring cannot be made. Must be called on the thread that will run(): the ring has one issuer.
  static base::Result<std::unique_ptr<UringReactor>> create(ReactorOptions options);
  ~UringReactor() override;

  // Runs until stop(). The creating thread.
  void run();
  // Any thread; run() returns after the current turn.
  void stop();

  TimePoint now() const override { return Clock::now(); }
  bool on_thread() const override { return std::this_thread::get_id() == thread_; }
  void post(Task task) override;
  Registration after(Duration delay, std::string_view name, Task task) override;
  Registration add_poller(Poller poller) override;
  Registration watch(int fd, std::string_view name, bool eventfd, Task ready) override;

  // How often it slept and woke, for the idle test and metrics. Any thread.
  std::uint64_t sleeps() const { return sleeps_.load(std::memory_order_relaxed); }

 private:
  struct PollerEntry {
    Poller poller;
    bool alive = true;
  };
  struct WatchEntry {
    int fd;
    std::string_view name;
    bool multishot;
    bool alive = true;
    Task ready;
  };
  struct RingCloser {
    void operator()(io_uring* ring) const;
  };

  UringReactor(ReactorOptions options, std::unique_ptr<io_uring, RingCloser> ring,
               base::UniqueFd wake);

  bool turn();
  bool run_pollers();
  bool run_timers();
  bool reap();
  void arm(std::uint64_t id, const WatchEntry& entry);
  void arm_pollers(bool sleeping);
  void sleep_until_event();
  void forget_dead_pollers();
  template <class Call>
  void timed(std::string_view name, Call call);

  ReactorOptions options_;
  std::unique_ptr<io_uring, RingCloser> ring_;
  base::UniqueFd wake_;
  std::thread::id thread_;
  TaskQueue tasks_;
  TimerQueue timers_;
  std::list<PollerEntry> pollers_;
  std::unordered_map<std::uint64_t, std::shared_ptr<WatchEntry>> watches_;
  std::uint64_t next_watch_ = 1;
  std::atomic<bool> stop_{false};
  std::atomic<bool> sleeping_{false};
  std::atomic<std::uint64_t> sleeps_{0};
};

// A reactor on a thread of its own; stops and joins when it goes. The reactor lives as long as this
// object, so that a late post() finds it (and is dropped).
class ReactorThread {
 public:
  static base::Result<std::unique_ptr<ReactorThread>> start(ReactorOptions options);
  ~ReactorThread();
  UringReactor& reactor() { return *reactor_; }

 private:
  ReactorThread() = default;
  std::unique_ptr<UringReactor> reactor_;
  std::thread thread_;
};

}  // namespace gpuumd
