#include "daemon/submit/work_queue.h"

#include <utility>

#include "daemon/submit/fence.h"

namespace gpuumd {

base::Result<bool> WorkQueue::read_ring() {
  bool any = false;
  while (commands_.size() < kReadAhead) {
    auto command = ring_.next();
    if (!command) return std::unexpected(command.error());
    if (!command->has_value()) break;
    commands_.push_back(std::move(**command));
    any = true;
  }
  if (broken_) fail_signals();
  return any;
}

bool WorkQueue::ready() const {
  if (commands_.empty() || broken_) return false;
  const auto* wait = std::get_if<command::Wait>(&commands_.front());
  if (wait == nullptr) return true;
  const auto place = find_fence_(wait->fence);
  return place.fence == nullptr || place.fence->reached() >= wait->point;
}

BuildStop WorkQueue::build(Slice& slice) {
  auto stop = build_slice(commands_, find_fence_, slice);
  if (stop) return *stop;
  broken_ = stop.error().code;  // what is in flight and in this slice still ends well
  fail_signals();
  return BuildStop::kEmptyQueue;
}

void WorkQueue::break_queue(base::Errc why) {
  if (!broken_) broken_ = why;
  fail_signals();
}

void WorkQueue::fail_signals() {
  for (const auto& command : std::exchange(commands_, {})) {
    const auto* signal = std::get_if<command::Signal>(&command);
    if (signal == nullptr) continue;
    const auto place = find_fence_(signal->fence);
    // A point that does not rise was never anybody's to wait for.
    if (place.fence != nullptr && place.fence->promise(signal->point))
      place.fence->fail(signal->point, *broken_);
  }
}

}  // namespace gpuumd
