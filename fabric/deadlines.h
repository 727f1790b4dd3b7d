// When each waiting thing is due: one point in time a key.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "fabric/types.h"

namespace fabric {

template <class Key>
class Deadlines {
 public:
  // Replaces an earlier point of the same key.
  void set(const Key& key, TimePoint when) {
    clear(key);
    when_.emplace(key, when);
    order_.emplace(when, key);
  }
  void clear(const Key& key) {
    const auto it = when_.find(key);
    if (it == when_.end()) return;
    order_.erase({it->second, key});
    when_.erase(it);
  }
  std::optional<TimePoint> next() const {
    if (order_.empty()) return std::nullopt;
    return order_.begin()->first;
  }
  std::optional<Key> pop_due(TimePoint now) {
    if (order_.empty() || order_.begin()->first > now) return std::nullopt;
    const Key key = order_.begin()->second;
    clear(key);
    return key;
  }

 private:
  std::set<std::pair<TimePoint, Key>> order_;
  std::map<Key, TimePoint> when_;
};

// What a Node waits for. `a` and `b` say which: peer and ring, import, export.
struct TimerKey {
  enum Kind : std::uint8_t {
    kEntry,
    kPointers,
    kConnect,
    kImport,
    kRevokeSend,
    kRelease,
    kStep,
    kDrain
  };
  Kind kind = kEntry;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  friend auto operator<=>(const TimerKey&, const TimerKey&) = default;
};
using Timers = Deadlines<TimerKey>;

}  // namespace fabric
