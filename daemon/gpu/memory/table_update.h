// What a change of a page table asks the hardware side to do, in the order that is safe.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/address.h"
#include "base/interval_set.h"
#include "daemon/gpu/memory/table_page.h"

namespace gpuumd {

// `count` entries from `first` on: value, value + step, value + 2 step, ... What PTEPDE generate
// takes (docs/hardware/sdma.md); a run of contiguous pages, or of equal invalid entries, is one.
struct EntryRun {
  TablePlace table;
  std::uint16_t first = 0;
  std::uint16_t count = 0;
  std::uint64_t value = 0;
  std::uint64_t step = 0;
  friend bool operator==(const EntryRun&, const EntryRun&) = default;
};

// Several changes of one PageTable may gather in one update, as long as none maps over what another
// of them unmapped (INV-5: the flush must come between).
//
//   writer.write(update, [..] { if (update.flush) flushes.submit(..., [..] { update ends }); });
//
// Move only: it owns the tables that became unreachable. Destroy it, or call PageTable::flushed(),
// after the flush was acknowledged.
struct TableUpdate {
  std::vector<EntryRun> fill;    // tables that nothing points to yet
  std::vector<EntryRun> link;    // reachable entries: after every fill is visible to the walkers
  std::vector<TablePage> freed;  // tables that nothing points to any more
  base::IntervalSet<base::GpuVa> stale;    // what a TLB may hold wrongly until the flush
  base::IntervalSet<base::GpuVa> cleared;  // of that, what may not be mapped before it (INV-5)
  bool needs_flush() const { return !stale.empty() || !freed.empty(); }
  bool empty() const { return fill.empty() && link.empty() && !needs_flush(); }
};

// Appends entries [first, end) of a table whose content is `entries`, as runs of equal step.
void append_runs(std::vector<EntryRun>& to, const TablePlace& place,
                 std::span<const std::uint64_t, kTableEntries> entries, unsigned first,
                 unsigned end);

}  // namespace gpuumd
