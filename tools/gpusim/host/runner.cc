#include "tools/gpusim/host/runner.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <thread>

namespace gpusim {

namespace {

using Clock = std::chrono::steady_clock;

// Steps between two looks at the sources while there is always work.
constexpr unsigned kStepsALook = 256;

}  // namespace

base::Result<Runner> Runner::create(Pod& pod, RunnerOptions options) {
  base::UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) return base::fail(base::Errc::kSystem, "eventfd", errno);
  if (std::thread::hardware_concurrency() < 2) options.spin = {};
  return Runner(pod, options, std::move(event));
}

Runner::Runner(Pod& pod, RunnerOptions options, base::UniqueFd stop_event)
    : pod_(&pod),
      options_(options),
      stop_event_(std::move(stop_event)),
      wakes_(std::make_unique<std::atomic<std::uint64_t>>(0)) {}

void Runner::stop() { ::eventfd_write(stop_event_.get(), 1); }

void Runner::run() {
  unsigned steps = 0;
  while (!stopped_) {
    if (pod_->step() || spin()) {
      if (++steps % kStepsALook == 0) handle_sources();
      continue;
    }
    sleep();
    if (!stopped_) handle_sources();
  }
}

// True when work came.
bool Runner::spin() {
  const auto end = Clock::now() + options_.spin;
  while (Clock::now() < end) {
    if (pod_->step()) return true;
  }
  return false;
}

void Runner::sleep() {
  const bool nap = pod_->waiting();
  if (!nap && !pod_->prepare_sleep()) return;
  fds_.clear();
  fds_.push_back({stop_event_.get(), POLLIN, 0});
  pod_->add_poll_fds(fds_);
  for (PollSource* source : sources_) source->add_poll_fds(fds_);
  const auto nanoseconds = std::chrono::nanoseconds(options_.nap).count();
  const timespec limit{.tv_sec = nanoseconds / 1'000'000'000,
                       .tv_nsec = nanoseconds % 1'000'000'000};
  ::ppoll(fds_.data(), fds_.size(), nap ? &limit : nullptr, nullptr);
  wakes_->fetch_add(1, std::memory_order_relaxed);
  stopped_ = fds_.front().revents != 0;
  pod_->wake_up();
}

void Runner::handle_sources() {
  pollfd stop{stop_event_.get(), POLLIN, 0};
  if (::poll(&stop, 1, 0) > 0) stopped_ = true;
  for (PollSource* source : sources_) source->handle();
}

}  // namespace gpusim
