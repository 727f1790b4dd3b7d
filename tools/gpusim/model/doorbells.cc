#include "tools/gpusim/model/doorbells.h"

#include <cstddef>

namespace gpusim {

void DoorbellRouter::connect(DoorbellTarget target, DoorbellConsumer& consumer) {
  consumers_[static_cast<std::size_t>(target)] = &consumer;
}

// A consumer sees the store when any enabled entry with its id covers the doorbell, so entry 0 of
// the graphics block, which covers everything, takes nothing away from the others (D29).
void DoorbellRouter::store(std::uint64_t offset, std::uint64_t value, unsigned bytes) {
  if (!gate_.doorbell_aperture_enabled()) {
    ++counters_.dropped_aperture;
    return;
  }
  const auto dword = static_cast<std::uint32_t>(offset / 4);
  const bool wide = bytes == 8;
  bool covered = false;
  bool refused_by_entry = false;
  bool refused_by_access = false;
  for (unsigned i = 0; i < DoorbellGate::kEntries; ++i) {
    const S2aEntry entry = gate_.s2a_entry(i);
    const bool covers = entry.dwords == 0 ||
                        (dword >= entry.first_dword && dword < entry.first_dword + entry.dwords);
    if (!entry.enabled || !covers) continue;
    DoorbellConsumer* consumer = consumers_[entry.target];
    if (consumer == nullptr) continue;
    covered = true;
    if (entry.drop || (wide && entry.no_64bit)) {
      refused_by_entry = true;
    } else if ((gate_.doorbell_access() >> entry.target & 1) == 0) {
      refused_by_access = true;
    } else if (consumer->doorbell(dword, value, wide)) {
      ++counters_.delivered;
      return;
    }
  }
  if (!covered)
    ++counters_.dropped_no_entry;
  else if (refused_by_entry)
    ++counters_.dropped_by_entry;
  else if (refused_by_access)
    ++counters_.dropped_access;
  else
    ++counters_.dropped_consumer;
}

}  // namespace gpusim
