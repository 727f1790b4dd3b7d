#include "fabric/ring_sender.h"

#include <cassert>

namespace fabric {

RingSender::Entry& RingSender::begin(std::uint64_t id, TimePoint deadline) {
  assert(has_room(kRingEntries));
  in_flight_.push_back(
      {.id = id, .sequence = ++last_sent_, .index = wptr_++, .post = {}, .deadline = deadline});
  return in_flight_.back();
}

RingSender::Accepted RingSender::accept(const WriteBackRecord& record) {
  // Distances from the last acknowledged one, modulo 2^32: no comparison of sequence numbers.
  const std::uint32_t ahead = record.data - last_acknowledged_;
  const std::uint32_t sent = last_sent_ - last_acknowledged_;
  if (ahead == 0 || ahead > sent) return {};
  Accepted accepted;
  while (!in_flight_.empty()) {
    const Entry& entry = in_flight_.front();
    const bool newest = entry.sequence == record.data;
    if (!newest && entry.sequence - last_acknowledged_ > ahead) break;
    // Only the newest one's status is certain; the others were consumed (U28).
    const auto status = newest ? static_cast<NhtStatus>(record.status) : NhtStatus::kOk;
    accepted.finished.push_back({entry, status});
    in_flight_.pop_front();
  }
  last_acknowledged_ = record.data;
  if (record.rptr > wptr_ || record.rptr < rptr_) {
    accepted.corrupt = true;
  } else {
    rptr_ = record.rptr;
  }
  return accepted;
}

std::vector<RingSender::Entry> RingSender::abandon(std::size_t first) {
  std::vector<Entry> gone;
  while (in_flight_.size() > first) {
    gone.insert(gone.begin(), in_flight_.back());
    in_flight_.pop_back();
  }
  return gone;
}

bool RingSender::adopt(std::uint64_t pointer) {
  assert(in_flight_.empty());
  last_acknowledged_ = last_sent_;
  rptr_ = pointer;
  if (wptr_ == pointer) return false;
  wptr_ = pointer;
  return true;
}

}  // namespace fabric
