// The filter for retryable faults: one interrupt a faulting page while its entry is live
// (docs/hardware/ih.md, D15 and D16).
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "tools/gpusim/model/types.h"

namespace gpusim {

class RetryCam {
 public:
  // RETRY_INT_CAM_CNTL was written. Switching the CAM off, or to another size, frees all entries.
  void configure(bool enabled, unsigned cam_size);

  // One failing try of an access. The index for src_data[3] when an IV is to be raised now.
  std::optional<std::uint16_t> fault(unsigned hub, std::uint64_t page, const Iv& iv, ModelTime now);

  // The driver acknowledges an entry; one that is free is ignored.
  void acknowledge(std::uint16_t index);

  // The vector of an entry that nobody acknowledged for kRepeatAfter, src_data[3] filled in.
  std::optional<Iv> overdue(ModelTime now);

  void clear();
  std::size_t live() const { return by_key_.size(); }
  std::size_t capacity() const { return entries_.size(); }
  bool enabled() const { return enabled_; }

  static constexpr ModelTime kRepeatAfter = std::chrono::seconds(1);
  static constexpr ModelTime kUnfilteredInterval = std::chrono::milliseconds(1);

  struct Counters {
    std::uint64_t raised = 0;    // entries taken
    std::uint64_t filtered = 0;  // tries that found their entry live
    std::uint64_t full = 0;      // tries that found no free entry
    std::uint64_t repeated = 0;  // vectors raised again after kRepeatAfter
    std::uint64_t acknowledged = 0;
    std::uint64_t acknowledged_free = 0;
  };
  const Counters& counters() const { return counters_; }

 private:
  struct Key {
    unsigned hub;
    std::uint8_t vmid;
    std::uint64_t page;
    auto operator<=>(const Key&) const = default;
  };
  struct Entry {
    bool live = false;
    std::uint64_t serial =
        0;  // of the vector raised last, so that an old deadline is known as such
    Key key{};
    Iv iv;
  };
  struct Deadline {
    ModelTime at;
    std::uint16_t index;
    std::uint64_t serial;
  };
  std::optional<std::uint16_t> unfiltered(const Key& key, ModelTime now);
  std::optional<std::uint16_t> free_index();

  bool enabled_ = false;
  std::vector<Entry> entries_;
  std::map<Key, std::uint16_t> by_key_;
  std::deque<Deadline> deadlines_;            // in the order of time
  std::map<Key, ModelTime> last_unfiltered_;  // while the CAM is off
  std::uint16_t next_ = 0;
  std::uint64_t serial_ = 0;
  Counters counters_;
};

}  // namespace gpusim
