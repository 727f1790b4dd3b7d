// One answer for several that are awaited. Device thread.
#pragma once

#include <memory>
#include <utility>

#include "base/result.h"
#include "daemon/gpu/memory/table_writer.h"

namespace gpuumd {

// Calls `done` when every part and the join itself have ended, with the first error of any. The
// maker ends it with end() when there are no more parts to come.
class Join {
 public:
  explicit Join(Done done) : state_(std::make_shared<State>(std::move(done))) {}

  // To be called once.
  Done part() {
    ++state_->open;
    return [state = state_](base::Result<void> result) { state->one(std::move(result)); };
  }
  // May call `done`.
  void end() { std::exchange(state_, nullptr)->one({}); }

 private:
  struct State {
    explicit State(Done call) : done(std::move(call)) {}
    void one(base::Result<void> result) {
      if (!result && outcome) outcome = std::move(result);
      if (--open == 0) done(std::move(outcome));
    }
    Done done;
    base::Result<void> outcome;
    unsigned open = 1;
  };
  std::shared_ptr<State> state_;
};

}  // namespace gpuumd
