#include "daemon/gpu/bringup/bring_up.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace gpuumd {

BringUp::BringUp(Reactor& reactor, std::move_only_function<bool()> lost, std::vector<Step> steps)
    : reactor_(reactor), lost_(std::move(lost)), steps_(std::move(steps)) {
  assert(!steps_.empty());
}

void BringUp::start(Done done) {
  assert(state_ == State::kIdle);
  rising_done_ = std::move(done);
  state_ = State::kRising;
  enter(0);
}

void BringUp::shut_down(Done done) {
  assert(!falling_done_);
  falling_done_ = std::move(done);
  switch (state_) {
    case State::kFalling:
      return;  // after a failed step; complete() calls both
    case State::kReady:
      state_ = State::kFalling;
      return enter(steps_.size() - 1);
    case State::kRising:
      return fall(base::fail(base::Errc::kDisconnected,
                             steps_[index_].name + " was interrupted by a shutdown"));
    case State::kIdle:
    case State::kDown:
      state_ = State::kDown;
      timer_ = reactor_.after(Duration::zero(), "bring-up", [this] { complete(); });
  }
}

std::string_view BringUp::current_step() const {
  if (state_ != State::kRising && state_ != State::kFalling) return {};
  return steps_[index_].name;
}

void BringUp::enter(std::size_t index) {
  index_ = index;
  started_ = false;
  schedule(Duration::zero());
}

void BringUp::schedule(Duration delay) {
  timer_ = reactor_.after(delay, steps_[index_].name, [this] { run(); });
}

void BringUp::run() {
  auto done = advance();
  if (!done) return finish_step(std::unexpected(std::move(done.error())));
  if (*done) return finish_step({});
  const auto& phase = state_ == State::kRising ? steps_[index_].up : steps_[index_].down;
  schedule(std::min(phase.every, deadline_ - reactor_.now()));
}

// One piece of the present step: true when it is through.
base::Result<bool> BringUp::advance() {
  Step& step = steps_[index_];
  Phase& phase = state_ == State::kRising ? step.up : step.down;
  base::Result<bool> done = true;
  if (!started_) {
    started_ = true;
    deadline_ = reactor_.now() + step.deadline;
    if (phase.start)
      if (auto begun = phase.start(); !begun) done = std::unexpected(std::move(begun.error()));
  }
  if (done && phase.poll && !lost_()) done = phase.poll();
  if (lost_()) {
    // What a step makes of a lost device's all ones is beside the point, but says where it was.
    auto where = !done ? done.error().step : phase.waiting_for ? phase.waiting_for() : "";
    return base::fail(base::Errc::kDeviceLost, std::move(where));
  }
  if (done && !*done && reactor_.now() >= deadline_)
    return base::fail(base::Errc::kTimeout, phase.waiting_for ? phase.waiting_for() : "");
  return done;
}

void BringUp::finish_step(base::Result<void> result) {
  if (state_ == State::kRising) {
    if (!result) return fall(base::fail_within(steps_[index_].name, std::move(result.error())));
    if (index_ + 1 < steps_.size()) return enter(index_ + 1);
    state_ = State::kReady;
    std::exchange(rising_done_, nullptr)({});
    return;
  }
  if (!result) {
    auto error = base::fail_within(steps_[index_].name + " shutdown", std::move(result.error()));
    shutdown_errors_.push_back(std::move(error.error()));
  }
  if (index_ > 0) return enter(index_ - 1);
  complete();
}

void BringUp::fall(base::Result<void> outcome) {
  outcome_ = std::move(outcome);
  state_ = State::kFalling;
  if (started_) return enter(index_);
  if (index_ > 0) return enter(index_ - 1);
  timer_ = reactor_.after(Duration::zero(), "bring-up", [this] { complete(); });
}

// A callback may destroy this object, so everything that they need is taken out before.
void BringUp::complete() {
  state_ = State::kDown;
  auto rising = std::exchange(rising_done_, nullptr);
  auto falling = std::exchange(falling_done_, nullptr);
  auto outcome = outcome_;
  base::Result<void> shutdown;
  if (!shutdown_errors_.empty()) shutdown = std::unexpected(shutdown_errors_.front());
  if (rising) rising(std::move(outcome));
  if (falling) falling(std::move(shutdown));
}

}  // namespace gpuumd
