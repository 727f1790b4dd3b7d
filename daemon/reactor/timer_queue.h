// Timers in order of their due time, with stable ids for cancelling.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "daemon/reactor/reactor.h"

namespace gpuumd {

class TimerQueue {
 public:
  struct Due {
    std::string_view name;
    Task task;
  };

  std::uint64_t add(TimePoint when, std::string_view name, Task task) {
    const std::uint64_t id = next_id_++;
    order_.emplace(std::pair(when, id), Due{name, std::move(task)});
    when_.emplace(id, when);
    return id;
  }

  // Nothing happens for a timer that has run.
  void cancel(std::uint64_t id) {
    const auto it = when_.find(id);
    if (it == when_.end()) return;
    order_.erase({it->second, id});
    when_.erase(it);
  }

  std::optional<TimePoint> next() const {
    if (order_.empty()) return std::nullopt;
    return order_.begin()->first.first;
  }

  // The earliest timer that is due at `now`. One at a time, because its task may cancel others.
  std::optional<Due> pop(TimePoint now) {
    if (order_.empty() || order_.begin()->first.first > now) return std::nullopt;
    auto node = order_.extract(order_.begin());
    when_.erase(node.key().second);
    return std::move(node.mapped());
  }

 private:
  // Ids rise, so timers due at one time run in the order of their making.
  std::map<std::pair<TimePoint, std::uint64_t>, Due> order_;
  std::map<std::uint64_t, TimePoint> when_;
  std::uint64_t next_id_ = 1;
};

}  // namespace gpuumd
