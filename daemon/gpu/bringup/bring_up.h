// Bring-up and shutdown of a GPU as a list of named steps with deadlines.
//
// Each part of the hardware gives its own step (bringup/steps.h, interrupt/interrupt_controller.h,
// memory, engines); the device's owner puts them in order. Steps run one after the other, each in
// its own turns of the reactor, and are taken down in reverse order. Nothing here touches a
// register.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "daemon/reactor/reactor.h"

namespace gpuumd {

// One direction of a step. An empty function counts as success.
struct Phase {
  // Begins. Bounded work; an error ends the step.
  std::move_only_function<base::Result<void>()> start;
  // Called after start() and then every `every` until it gives true (done) or an error.
  std::move_only_function<base::Result<bool>()> poll;
  // What poll() waits for, for the error at the deadline: the register, what it read last, what was
  // expected ("C2PMSG_33 reads 0x00000000, bit 31 expected").
  std::move_only_function<std::string()> waiting_for;
  Duration every = std::chrono::milliseconds(1);
};

struct Step {
  std::string name;
  Duration deadline;  // of either phase
  Phase up;
  // Taken when the step had been started, even if it failed half-way. Failures are kept in
  // shutdown_errors() and do not stop the rest.
  Phase down;
};

// Device thread. Destroying it cancels what is running and takes nothing down.
class BringUp {
 public:
  enum class State : std::uint8_t { kIdle, kRising, kReady, kFalling, kDown };
  using Done = std::move_only_function<void(base::Result<void>)>;

  // `lost` is asked after every piece of a step: a lost device fails the step with kDeviceLost.
  BringUp(Reactor& reactor, std::move_only_function<bool()> lost, std::vector<Step> steps);

  // Runs all steps up. On an error the steps that were started are taken down again, then `done`
  // gets the error, which names the step. `done` is called once, from a later turn. Only when idle.
  void start(Done done);

  // Takes down what is up, in reverse order, then calls `done` with the first error that a step
  // gave (the others were still taken down). May interrupt start(), whose `done` then gets
  // kDisconnected. Once.
  void shut_down(Done done);

  State state() const { return state_; }
  // The step that runs now ("" when none), for status and logs.
  std::string_view current_step() const;
  const std::vector<base::Error>& shutdown_errors() const { return shutdown_errors_; }

 private:
  void enter(std::size_t index);
  void run();
  base::Result<bool> advance();
  void finish_step(base::Result<void> result);
  void fall(base::Result<void> outcome);
  void complete();
  void schedule(Duration delay);

  Reactor& reactor_;
  std::move_only_function<bool()> lost_;
  std::vector<Step> steps_;
  State state_ = State::kIdle;
  std::size_t index_ = 0;  // the step that runs
  bool started_ = false;   // its start() was called in this direction
  TimePoint deadline_{};
  base::Result<void> outcome_;
  std::vector<base::Error> shutdown_errors_;
  Done rising_done_;
  Done falling_done_;
  Registration timer_;
};

}  // namespace gpuumd
