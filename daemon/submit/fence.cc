#include "daemon/submit/fence.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "daemon/ipc/status.h"

namespace gpuumd {

void Fence::abandon() {
  abandoned_ = true;
  while (!waiting_.empty()) {  // one by one: a waiter may cancel others
    auto node = waiting_.extract(waiting_.begin());
    node.mapped().waiter(base::fail(base::Errc::kNotFound, "fence was destroyed"));
  }
}

base::Result<void> Fence::promise(std::uint64_t point) {
  if (point == 0) return base::fail(base::Errc::kInvalidArgument, "fence point 0");
  if (point <= promised_)
    return base::fail(base::Errc::kInvalidArgument, "fence point " + std::to_string(point) +
                                                        " does not rise above " +
                                                        std::to_string(promised_));
  promised_ = point;
  outstanding_.push_back(point);
  return {};
}

void Fence::reach(std::uint64_t point) {
  reached_ = std::max(reached_, point);
  while (!outstanding_.empty() && outstanding_.front() <= reached_) outstanding_.pop_front();
  wake();
}

void Fence::fail(std::uint64_t point, base::Errc why) {
  // Raising the value also passes earlier points whose work is still under way (promised through
  // another queue): they must not look done, so the first failed point is the lowest of them.
  if (!outstanding_.empty()) point = std::min(point, outstanding_.front());
  outstanding_.clear();
  if (!error_ || point < first_failed_) {
    error_ = error_.value_or(why);
    first_failed_ = point;
    std::atomic_ref(slot_.first_failed_point).store(point, std::memory_order_relaxed);
    std::atomic_ref(slot_.error).store(to_status(*error_), std::memory_order_release);
  }
  reached_ = std::max(reached_, promised_);
  std::atomic_ref(slot_.value).store(reached_, std::memory_order_release);
  wake();
}

std::optional<base::Errc> Fence::failure(std::uint64_t point) const {
  if (error_ && point >= first_failed_) return error_;
  return std::nullopt;
}

Fence::WaiterId Fence::wait(std::uint64_t point, Waiter waiter) {
  if (abandoned_) {
    waiter(base::fail(base::Errc::kNotFound, "fence was destroyed"));
    return 0;
  }
  const auto id = next_waiter_++;
  waiting_.emplace(point, Waiting{id, std::move(waiter)});
  if (point <= reached_) {
    wake();
    return 0;
  }
  return id;
}

void Fence::cancel(WaiterId id) {
  std::erase_if(waiting_, [id](const auto& entry) { return entry.second.id == id; });
}

void Fence::wake() {
  while (!waiting_.empty() && waiting_.begin()->first <= reached_) {
    auto node = waiting_.extract(waiting_.begin());  // the waiter may add or cancel others
    if (const auto why = failure(node.key()))
      node.mapped().waiter(base::fail(*why, "fence point " + std::to_string(node.key())));
    else
      node.mapped().waiter(reached_);
  }
}

}  // namespace gpuumd
