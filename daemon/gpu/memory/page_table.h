// The page table of one VM: GPUVM of GFX 12.1, five levels, 57 bits (docs/hardware/gpuvm.md).
// Pure: changes its shadow and says what to write (TableUpdate); touches no device.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/address.h"
#include "base/interval_set.h"
#include "base/result.h"
#include "daemon/gpu/memory/phys_run.h"
#include "daemon/gpu/memory/pte.h"
#include "daemon/gpu/memory/table_page.h"
#include "daemon/gpu/memory/table_update.h"

namespace gpuumd {

// What an address without a mapping answers, fixed when the VM is made.
enum class Unmapped : std::uint8_t { kNoRetry, kRetry };

class PageTable {
 public:
  static constexpr unsigned kLevels = 5;  // 4 is the root (PDB3), 0 the PTB
  static constexpr unsigned kVaBits = 57;
  static constexpr base::GpuVa kEnd{std::uint64_t{1} << kVaBits};

  // Takes the root table from `pages`, which must outlive this. kAgain when the pool is empty. The
  // root's own content is in `update`, to be written before the root is given to a hub.
  static base::Result<PageTable> create(const PteFormat& format, TablePages& pages,
                                        Unmapped unmapped, TableUpdate& update);
  PageTable(PageTable&&) noexcept;
  PageTable& operator=(PageTable&&) noexcept;
  ~PageTable();  // frees every table: no hub may have the root any more, and all is flushed

  // Value for CONTEXTn_PAGE_TABLE_BASE_ADDR.
  Pde root() const;

  // Everything that a map or unmap may need, taken before it is accepted, so that the change itself
  // cannot fail (VMB-4, VMB-25). What is left over goes back to the pool. A plan says nothing about
  // what is mapped now, so it stays good while other changes pass it.
  struct MapPlan {
    base::GpuVa at;
    std::vector<PhysRun> runs;
    PteFlags flags;
    std::vector<TablePage> tables;
  };
  struct UnmapPlan {
    base::GpuVa at;
    std::uint64_t bytes = 0;
    std::vector<TablePage> tables;
  };

  // How many table pages plan_map() takes for this, whatever is mapped now.
  static std::uint64_t tables_for_map(const PteFormat& format, base::GpuVa at,
                                      std::span<const PhysRun> runs);

  // `runs`, one behind the other, at `at`. kInvalidArgument: not 4 KiB aligned, no pages, a run
  // that no entry can name, execute on NPA. kOutOfRange: beyond 57 bits. kAgain: no table pages
  // now.
  base::Result<MapPlan> plan_map(base::GpuVa at, std::vector<PhysRun> runs, PteFlags flags);
  base::Result<UnmapPlan> plan_unmap(base::GpuVa at, std::uint64_t bytes);

  // The range is unmapped and not waiting for a flush, or maps these very pages (change of rights):
  // the VM's duty, asserted. Appends to `update`.
  void map(MapPlan plan, TableUpdate& update);
  // Parts that are not mapped are left alone. Larger leaves that stick out are split.
  void unmap(UnmapPlan plan, TableUpdate& update);
  // The flush behind `update` was acknowledged: its tables go back to the pool and its addresses
  // may be mapped again.
  void flushed(TableUpdate update);

  // The leaf that serves `at`, from the shadow.
  struct Leaf {
    Pte entry;          // with the address of the leaf's first page
    base::GpuVa first;  // what it covers
    std::uint64_t bytes = 0;
  };
  std::optional<Leaf> lookup(base::GpuVa at) const;
  // Whether any page of the range is mapped, or waits for its flush.
  bool occupied(base::GpuVa at, std::uint64_t bytes) const;

  std::uint64_t tables() const { return tables_; }  // the root included
  std::uint64_t invalid_entry() const {
    return unmapped_ == Unmapped::kRetry ? kRetryEntry : kNoRetryEntry;
  }

 private:
  friend class TableChange;
  struct Table;

  PageTable(const PteFormat& format, Unmapped unmapped);
  base::Result<std::vector<TablePage>> reserve(std::uint64_t count);

  PteFormat format_;
  Unmapped unmapped_;
  TablePages* pages_ = nullptr;
  std::unique_ptr<Table> root_;
  std::uint64_t tables_ = 0;
  base::IntervalSet<base::GpuVa> unflushed_;
};

}  // namespace gpuumd
