#include "tools/gpusim/host/embedded.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "base/address.h"
#include "tools/gpusim/host/control.h"
#include "tools/gpusim/host/steady_clock.h"

namespace gpusim {

namespace {

constexpr unsigned kInlineStepsALook = 16;
// Copied in about 30 us, and in ten times that when the kernel has to clear the pages first. Half
// of it costs a tenth of the rate of large copies.
constexpr std::size_t kInlineStepBytes = 256 * base::kKiB;

struct SocketPair {
  base::UniqueFd ours;
  base::UniqueFd clients;
};

base::Result<SocketPair> make_pair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return base::fail(base::Errc::kSystem, "socketpair", errno);
  return SocketPair{base::UniqueFd(ends[0]), base::UniqueFd(ends[1])};
}

base::Result<void> check_index(std::size_t gpu, std::size_t size) {
  if (gpu < size) return {};
  return base::fail(base::Errc::kOutOfRange,
                    "GPU " + std::to_string(gpu) + " of a pod of " + std::to_string(size));
}

// Tasks from other threads for the thread that owns the pod. Runner's sleep watches the eventfd.
class Mailbox final : public PollSource {
 public:
  Mailbox() : event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

  void post(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    ::eventfd_write(event_.get(), 1);
  }
  void add_poll_fds(std::vector<pollfd>& fds) override { fds.push_back({event_.get(), POLLIN, 0}); }
  void handle() override {
    std::vector<std::function<void()>> tasks;
    {
      const std::lock_guard lock(mutex_);
      eventfd_t count = 0;
      ::eventfd_read(event_.get(), &count);
      tasks.swap(tasks_);
    }
    for (auto& task : tasks) task();
  }

 private:
  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;
  base::UniqueFd event_;
};

}  // namespace

struct ThreadHost::Impl {
  Impl(std::unique_ptr<Pod> made, Runner loop) : pod(std::move(made)), runner(std::move(loop)) {}

  std::unique_ptr<Pod> pod;
  Runner runner;
  Mailbox mailbox;
  std::size_t size = 0;
  std::unique_ptr<SteadyClock> clock;
  std::thread thread;
};

ThreadHost::ThreadHost(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

base::Result<std::unique_ptr<ThreadHost>> ThreadHost::start(const PodFactory& factory,
                                                            ServerOptions server,
                                                            RunnerOptions options) {
  auto clock = std::make_unique<SteadyClock>();
  auto pod = Pod::create(factory, *clock, server);
  if (!pod) return std::unexpected(pod.error());
  auto runner = Runner::create(**pod, options);
  if (!runner) return std::unexpected(runner.error());
  auto impl = std::make_unique<Impl>(std::move(*pod), std::move(*runner));
  impl->clock = std::move(clock);
  impl->size = impl->pod->size();
  impl->runner.add(impl->mailbox);
  impl->thread = std::thread([state = impl.get()] {
    state->runner.run();
    state->mailbox.handle();  // nobody waits for an answer that never comes
  });
  return std::unique_ptr<ThreadHost>(new ThreadHost(std::move(impl)));
}

ThreadHost::~ThreadHost() {
  impl_->runner.stop();
  impl_->thread.join();
  impl_->pod.reset();  // before its clock
}

std::size_t ThreadHost::size() const { return impl_->size; }

std::uint64_t ThreadHost::wakes() const { return impl_->runner.wakes(); }

base::Result<base::UniqueFd> ThreadHost::connect(std::size_t gpu) {
  if (const auto valid = check_index(gpu, size()); !valid) return std::unexpected(valid.error());
  auto pair = make_pair();
  if (!pair) return std::unexpected(pair.error());
  auto ours = std::make_shared<base::UniqueFd>(std::move(pair->ours));
  impl_->mailbox.post(
      [state = impl_.get(), gpu, ours] { state->pod->server(gpu).connect(std::move(*ours)); });
  return std::move(pair->clients);
}

std::string ThreadHost::control(const std::string& line) {
  auto answer = std::make_shared<std::promise<std::string>>();
  auto ready = answer->get_future();
  impl_->mailbox.post(
      [state = impl_.get(), line, answer] { answer->set_value(Control(*state->pod).run(line)); });
  return ready.get();
}

InlineHost::InlineHost(std::unique_ptr<Pod> pod, base::UniqueFd outer)
    : pod_(std::move(pod)), outer_(std::move(outer)) {}

InlineHost::~InlineHost() = default;

base::Result<std::unique_ptr<InlineHost>> InlineHost::create(const PodFactory& factory,
                                                             const ModelClock& clock,
                                                             std::function<void()> while_waiting) {
  ServerOptions server;
  server.while_waiting = std::move(while_waiting);
  server.steps_a_look = kInlineStepsALook;
  server.step_bytes = kInlineStepBytes;
  auto pod = Pod::create(factory, clock, server);
  if (!pod) return std::unexpected(pod.error());
  base::UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return base::fail(base::Errc::kSystem, "epoll", errno);
  return std::unique_ptr<InlineHost>(new InlineHost(std::move(*pod), std::move(epoll)));
}

base::Result<base::UniqueFd> InlineHost::connect(std::size_t gpu) {
  if (const auto valid = check_index(gpu, pod_->size()); !valid)
    return std::unexpected(valid.error());
  auto pair = make_pair();
  if (!pair) return std::unexpected(pair.error());
  pod_->server(gpu).connect(std::move(pair->ours));
  return std::move(pair->clients);
}

std::string InlineHost::control(const std::string& line) { return Control(*pod_).run(line); }

void InlineHost::pump() {
  if (!stepping_) pod_->serve();
}

bool InlineHost::step() {
  if (std::exchange(stepping_, true)) return false;
  const bool any = pod_->step();
  stepping_ = false;
  return any || pod_->waiting();
}

void InlineHost::arm(bool sleeping) {
  if (!sleeping) return pod_->wake_up();
  if (pod_->prepare_sleep()) watch_current();
}

// A set of its own for each change: the client holds duplicates of the wake eventfds, so closing
// ours would not take them out of a set. The count of clients tells a new descriptor from an old
// one of the same number.
void InlineHost::watch_current() {
  std::vector<pollfd> now;
  pod_->add_poll_fds(now);
  std::uint64_t clients = 0;
  for (std::size_t i = 0; i < pod_->size(); ++i) clients += pod_->server(i).counters().clients;
  const auto same = [](const pollfd& a, const pollfd& b) {
    return a.fd == b.fd && a.events == b.events;
  };
  if (inner_ && clients == watched_clients_ && std::ranges::equal(now, watched_, same)) return;
  inner_.reset(::epoll_create1(EPOLL_CLOEXEC));
  for (const pollfd& fd : now) {
    epoll_event event{};
    event.events = static_cast<std::uint32_t>(fd.events);
    ::epoll_ctl(inner_.get(), EPOLL_CTL_ADD, fd.fd, &event);
  }
  epoll_event event{};
  event.events = EPOLLIN;
  ::epoll_ctl(outer_.get(), EPOLL_CTL_ADD, inner_.get(), &event);
  watched_ = std::move(now);
  watched_clients_ = clients;
}

}  // namespace gpusim
