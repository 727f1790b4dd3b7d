#include "daemon/reactor/uring_reactor.h"

#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cassert>
#include <fstream>
#include <future>
#include <utility>

#include "base/fence.h"

namespace gpuumd {
namespace {

constexpr unsigned kRingEntries = 256;
constexpr std::uint64_t kWakeId = ~std::uint64_t{0};  // the eventfd that post() writes
constexpr std::uint64_t kIgnoredId = 0;               // completions of cancellations

std::string refusal_text(int error) {
  std::ifstream sysctl("/proc/sys/kernel/io_uring_disabled");
  int disabled = 0;
  if (sysctl >> disabled && disabled != 0)
    return "io_uring is off (sysctl kernel.io_uring_disabled = " + std::to_string(disabled) + ")";
  if (error == EPERM || error == EACCES)
    return "io_uring is forbidden here (seccomp or LSM policy)";
  if (error == EINVAL)
    return "io_uring of this kernel lacks DEFER_TASKRUN (Linux 6.1 or newer needed)";
  return "io_uring could not be set up";
}

}  // namespace

void UringReactor::RingCloser::operator()(io_uring* ring) const {
  io_uring_queue_exit(ring);
  delete ring;
}

base::Result<std::unique_ptr<UringReactor>> UringReactor::create(ReactorOptions options) {
  auto raw = std::make_unique<io_uring>();
  // Completions run only when this thread asks (DEFER_TASKRUN), and a flag in shared memory tells
  // when asking is worth a system call (TASKRUN_FLAG): polling a default ring costs an interrupt
  // for each completion, 10-20 times as much (docs/performance.md).
  const unsigned flags =
      IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG;
  if (const int error = -io_uring_queue_init(kRingEntries, raw.get(), flags); error != 0)
    return base::fail(base::Errc::kUnsupported, refusal_text(error), error);
  std::unique_ptr<io_uring, RingCloser> ring(raw.release());
  base::UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake) return base::fail(base::Errc::kSystem, "eventfd of the reactor", errno);
  if (options.cores <= 0) options.cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  return std::unique_ptr<UringReactor>(
      new UringReactor(std::move(options), std::move(ring), std::move(wake)));
}

UringReactor::UringReactor(ReactorOptions options, std::unique_ptr<io_uring, RingCloser> ring,
                           base::UniqueFd wake)
    : options_(std::move(options)),
      ring_(std::move(ring)),
      wake_(std::move(wake)),
      thread_(std::this_thread::get_id()) {
  auto* sqe = io_uring_get_sqe(ring_.get());
  io_uring_prep_poll_multishot(sqe, wake_.get(), POLLIN);
  io_uring_sqe_set_data64(sqe, kWakeId);
}

UringReactor::~UringReactor() = default;

void UringReactor::post(Task task) {
  tasks_.push(std::move(task));
  if (sleeping_.load(std::memory_order_seq_cst)) ::eventfd_write(wake_.get(), 1);
}

void UringReactor::stop() {
  stop_.store(true, std::memory_order_seq_cst);
  if (sleeping_.load(std::memory_order_seq_cst)) ::eventfd_write(wake_.get(), 1);
}

Registration UringReactor::after(Duration delay, std::string_view name, Task task) {
  assert(on_thread());
  const auto id = timers_.add(now() + std::max(delay, Duration::zero()), name, std::move(task));
  return Registration([this, id] { timers_.cancel(id); });
}

Registration UringReactor::add_poller(Poller poller) {
  assert(on_thread());
  auto& entry = pollers_.emplace_back(PollerEntry{std::move(poller)});
  // The entry itself goes at the end of the turn: its own poll() may be what cancels it.
  return Registration([&entry] { entry.alive = false; });
}

Registration UringReactor::watch(int fd, std::string_view name, bool eventfd, Task ready) {
  assert(on_thread());
  const auto id = next_watch_++;
  auto entry = std::make_shared<WatchEntry>(WatchEntry{fd, name, eventfd, true, std::move(ready)});
  arm(id, *entry);
  watches_.emplace(id, std::move(entry));
  return Registration([this, id] {
    const auto it = watches_.find(id);
    if (it == watches_.end()) return;
    it->second->alive = false;
    watches_.erase(it);
    if (auto* sqe = io_uring_get_sqe(ring_.get())) {
      io_uring_prep_poll_remove(sqe, id);
      io_uring_sqe_set_data64(sqe, kIgnoredId);
    }
    // Now, before the caller closes the descriptor and its number is used again.
    io_uring_submit(ring_.get());
  });
}

// An eventfd is polled "multishot" and never read: each write is one completion, and nothing has to
// be re-armed. Anything else is armed again after its handler, so that input the handler left
// behind is reported again.
void UringReactor::arm(std::uint64_t id, const WatchEntry& entry) {
  auto* sqe = io_uring_get_sqe(ring_.get());
  if (sqe == nullptr) {
    io_uring_submit(ring_.get());
    sqe = io_uring_get_sqe(ring_.get());
    assert(sqe != nullptr);
  }
  if (entry.multishot)
    io_uring_prep_poll_multishot(sqe, entry.fd, POLLIN);
  else
    io_uring_prep_poll_add(sqe, entry.fd, POLLIN);
  io_uring_sqe_set_data64(sqe, id);
}

template <class Call>
void UringReactor::timed(std::string_view name, Call call) {
  if (options_.turn_limit == Duration::zero()) {
    call();
    return;
  }
  const auto start = now();
  call();
  const auto took = now() - start;
  if (took > options_.turn_limit && options_.on_long_turn) options_.on_long_turn(name, took);
}

bool UringReactor::reap() {
  if (io_uring_sq_ready(ring_.get()) != 0) io_uring_submit(ring_.get());
  if ((IO_URING_READ_ONCE(*ring_->sq.kflags) & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0)
    io_uring_get_events(ring_.get());
  bool any = false;
  io_uring_cqe* cqe = nullptr;
  while (io_uring_peek_cqe(ring_.get(), &cqe) == 0) {
    const auto id = io_uring_cqe_get_data64(cqe);
    const bool more = (cqe->flags & IORING_CQE_F_MORE) != 0;
    io_uring_cqe_seen(ring_.get(), cqe);
    if (id == kWakeId) {
      eventfd_t drained = 0;
      ::eventfd_read(wake_.get(), &drained);
      if (!more) {
        auto* sqe = io_uring_get_sqe(ring_.get());
        io_uring_prep_poll_multishot(sqe, wake_.get(), POLLIN);
        io_uring_sqe_set_data64(sqe, kWakeId);
      }
      continue;
    }
    const auto it = watches_.find(id);
    if (it == watches_.end()) continue;
    const auto entry = it->second;  // the handler may cancel its own watch
    any = true;
    timed(entry->name, [&] { entry->ready(); });
    if (entry->alive && !more) arm(id, *entry);
  }
  return any;
}

bool UringReactor::run_timers() {
  bool any = false;
  const auto limit = now();
  while (auto due = timers_.pop(limit)) {
    any = true;
    timed(due->name, [&] { due->task(); });
  }
  return any;
}

bool UringReactor::run_pollers() {
  bool any = false;
  for (auto& entry : pollers_)
    if (entry.alive) timed(entry.poller.name, [&] { any |= entry.poller.poll(); });
  return any;
}

void UringReactor::forget_dead_pollers() {
  std::erase_if(pollers_, [](const PollerEntry& entry) { return !entry.alive; });
}

bool UringReactor::turn() {
  bool any = tasks_.drain([&](Task& task) { timed("task", [&] { task(); }); });
  any |= run_timers();
  any |= run_pollers();
  any |= reap();
  forget_dead_pollers();
  return any;
}

void UringReactor::arm_pollers(bool sleeping) {
  for (auto& entry : pollers_)
    if (entry.alive && entry.poller.arm) entry.poller.arm(sleeping);
}

// Says that it sleeps, looks once more at everything, and only then sleeps: whoever made work
// before saw the flag, whoever made it after is seen by the last look.
void UringReactor::sleep_until_event() {
  sleeping_.store(true, std::memory_order_seq_cst);
  arm_pollers(true);
  base::full_fence();
  if (!turn() && tasks_.empty() && !stop_.load(std::memory_order_seq_cst)) {
    sleeps_.fetch_add(1, std::memory_order_relaxed);
    io_uring_cqe* cqe = nullptr;
    if (const auto next = timers_.next()) {
      const auto left = std::max(*next - now(), Duration::zero());
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
      __kernel_timespec limit{seconds.count(), std::chrono::nanoseconds(left - seconds).count()};
      io_uring_submit_and_wait_timeout(ring_.get(), &cqe, 1, &limit, nullptr);
    } else {
      io_uring_submit_and_wait(ring_.get(), 1);
    }
  }
  arm_pollers(false);
  sleeping_.store(false, std::memory_order_seq_cst);
}

void UringReactor::run() {
  assert(on_thread());
  SpinCensus own;
  SpinCensus& census = options_.census != nullptr ? *options_.census : own;
  Duration budget = kSpinLimit;
  auto last_work = now();
  census.enter();
  while (!stop_.load(std::memory_order_relaxed)) {
    if (turn()) {
      last_work = now();
      budget = adapt_budget(budget, true);
      continue;
    }
    if (keep_spinning(now() - last_work, budget, census.count(), options_.cores)) continue;
    budget = adapt_budget(budget, false);
    census.leave();
    sleep_until_event();
    census.enter();
    last_work = now();
  }
  census.leave();
}

base::Result<std::unique_ptr<ReactorThread>> ReactorThread::start(ReactorOptions options) {
  std::unique_ptr<ReactorThread> self(new ReactorThread);
  std::promise<base::Result<std::unique_ptr<UringReactor>>> made;
  auto answer = made.get_future();
  self->thread_ = std::thread([&made, options = std::move(options)]() mutable {
    auto reactor = UringReactor::create(std::move(options));
    auto* running = reactor ? reactor->get() : nullptr;
    made.set_value(std::move(reactor));
    if (running != nullptr) running->run();
  });
  auto result = answer.get();
  if (!result) {
    self->thread_.join();
    return std::unexpected(result.error());
  }
  self->reactor_ = std::move(*result);
  return self;
}

ReactorThread::~ReactorThread() {
  if (!thread_.joinable()) return;
  reactor_->stop();
  thread_.join();
}

}  // namespace gpuumd
