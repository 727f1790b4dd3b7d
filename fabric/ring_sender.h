// The books of one ring at one peer, as its sender keeps them: pointers, sequence numbers, what is
// in flight. No addresses, no actions: fabric/peer_link.h makes those.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "fabric/layout.h"
#include "fabric/types.h"
#include "fabric/write_back.h"

namespace fabric {

class RingSender {
 public:
  struct Entry {
    std::uint64_t id = 0;  // the link's name for what was sent
    std::uint32_t sequence = 0;
    std::uint64_t index = 0;  // wptr before this entry
    OpId post;
    TimePoint deadline;
  };
  struct Finished {
    Entry entry;
    NhtStatus status = NhtStatus::kOk;
  };

  // False until the firmware knows where to write back (opcode 3 was acknowledged).
  bool ready() const { return ready_; }
  void set_ready(bool ready) { ready_ = ready; }

  std::uint64_t write_pointer() const { return wptr_; }
  const std::deque<Entry>& in_flight() const { return in_flight_; }
  // Whether one more entry fits: n = wptr + 1 - rptr must stay below 64, and `depth` is kept.
  bool has_room(std::size_t depth) const {
    return in_flight_.size() < depth && wptr_ + 1 - rptr_ < kRingEntries;
  }

  // Takes the next slot and sequence number. Room must be there.
  Entry& begin(std::uint64_t id, TimePoint deadline);

  // The record as it stands. Only a sequence in (last acknowledged, last sent] counts, with wrap
  // (U10, U35, errata A15); whatever else is an older life's or the same one again. `corrupt`: the
  // read pointer does not lie in the part of the ring that is in use.
  struct Accepted {
    std::vector<Finished> finished;
    bool corrupt = false;
  };
  Accepted accept(const WriteBackRecord& record);

  // Everything from `first` on leaves the books without an answer.
  std::vector<Entry> abandon(std::size_t first = 0);

  // Both pointers become what the receiver's memory says (errata A14). True if that is a change.
  bool adopt(std::uint64_t pointer);

  // Tests set the sequence close to its wrap.
  void set_sequence(std::uint32_t last) { last_sent_ = last_acknowledged_ = last; }

 private:
  std::uint64_t wptr_ = 0;
  std::uint64_t rptr_ = 0;
  std::uint32_t last_sent_ = 0;
  std::uint32_t last_acknowledged_ = 0;
  bool ready_ = false;
  std::deque<Entry> in_flight_;
};

}  // namespace fabric
