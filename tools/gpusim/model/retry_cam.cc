#include "tools/gpusim/model/retry_cam.h"

#include <algorithm>

namespace gpusim {
namespace {

constexpr std::size_t kMaxEntries = 1024;  // what the 10-bit index can name
constexpr std::size_t kMaxUnfiltered = 4096;

}  // namespace

void RetryCam::configure(bool enabled, unsigned cam_size) {
  const std::size_t capacity =
      enabled ? std::min<std::size_t>(64 * (cam_size + 1), kMaxEntries) : 0;
  if (enabled == enabled_ && capacity == entries_.size()) return;
  clear();
  enabled_ = enabled;
  entries_.assign(capacity, Entry{});
}

void RetryCam::clear() {
  std::ranges::fill(entries_, Entry{});
  by_key_.clear();
  deadlines_.clear();
  last_unfiltered_.clear();
}

std::optional<std::uint16_t> RetryCam::fault(unsigned hub, std::uint64_t page, const Iv& iv,
                                             ModelTime now) {
  const Key key{hub, iv.vmid, page};
  if (!enabled_) return unfiltered(key, now);
  if (by_key_.contains(key)) {
    ++counters_.filtered;
    return std::nullopt;
  }
  const auto index = free_index();
  if (!index) {
    ++counters_.full;
    return std::nullopt;
  }
  Entry& entry = entries_[*index];
  entry = Entry{true, ++serial_, key, iv};
  entry.iv.src_data[3] = *index;
  by_key_.emplace(key, *index);
  deadlines_.push_back({now + kRepeatAfter, *index, entry.serial});
  ++counters_.raised;
  return index;
}

// Goes round all entries, so that an index is used again as late as possible and a late
// acknowledgement of its last owner hits nobody else.
std::optional<std::uint16_t> RetryCam::free_index() {
  if (by_key_.size() >= entries_.size()) return std::nullopt;
  while (entries_[next_ % entries_.size()].live) ++next_;
  const auto index = static_cast<std::uint16_t>(next_ % entries_.size());
  next_ = static_cast<std::uint16_t>((index + 1) % entries_.size());
  return index;
}

std::optional<std::uint16_t> RetryCam::unfiltered(const Key& key, ModelTime now) {
  if (last_unfiltered_.size() >= kMaxUnfiltered)
    std::erase_if(last_unfiltered_,
                  [&](const auto& seen) { return now - seen.second >= kUnfilteredInterval; });
  const auto [at, first] = last_unfiltered_.try_emplace(key, now);
  if (!first) {
    if (now - at->second < kUnfilteredInterval) {
      ++counters_.filtered;
      return std::nullopt;
    }
    at->second = now;
  }
  return 0;
}

void RetryCam::acknowledge(std::uint16_t index) {
  if (index >= entries_.size() || !entries_[index].live) {
    ++counters_.acknowledged_free;
    return;
  }
  Entry& entry = entries_[index];
  by_key_.erase(entry.key);
  entry = Entry{};
  ++counters_.acknowledged;
}

std::optional<Iv> RetryCam::overdue(ModelTime now) {
  while (!deadlines_.empty() && deadlines_.front().at <= now) {
    const Deadline deadline = deadlines_.front();
    deadlines_.pop_front();
    Entry& entry = entries_[deadline.index];
    if (!entry.live || entry.serial != deadline.serial) continue;
    entry.serial = ++serial_;
    deadlines_.push_back({now + kRepeatAfter, deadline.index, entry.serial});
    ++counters_.repeated;
    return entry.iv;
  }
  return std::nullopt;
}

}  // namespace gpusim
