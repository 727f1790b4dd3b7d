#include "daemon/gpu/memory/page_table.h"

#include <algorithm>
#include <utility>

#include "daemon/gpu/memory/page_table_nodes.h"

namespace gpuumd {
namespace {

constexpr std::uint64_t kEndPage = PageTable::kEnd.page();

// One address range that becomes entries of one kind: runs that go on where the last ended are one.
struct Extent {
  std::uint64_t page;    // virtual
  std::uint64_t target;  // page that the first entry names
  std::uint64_t count;
};

template <class F>
void for_each_extent(const PteFormat& format, base::GpuVa at, std::span<const PhysRun> runs, F f) {
  std::uint64_t page = at.page();
  std::optional<Extent> extent;
  std::size_t first = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::uint64_t target = format.target(runs[i]) / base::kPageSize;
    if (extent && runs[i].kind() == runs[first].kind() &&
        target == extent->target + extent->count) {
      extent->count += runs[i].pages();
    } else {
      if (extent) f(*extent, runs[first]);
      extent = Extent{page, target, runs[i].pages()};
      first = i;
    }
    page += runs[i].pages();
  }
  if (extent) f(*extent, runs[first]);
}

// Counts tables of one level, i.e. regions of `size` pages that need one. Regions that are a single
// leaf of the level above need none; a region that two extents share counts once.
class RegionCounter {
 public:
  RegionCounter(std::uint64_t size, bool leaf_possible)
      : size_(size), leaf_possible_(leaf_possible) {}

  void add(const Extent& extent) {
    const std::uint64_t first = extent.page / size_;
    const std::uint64_t last = (extent.page + extent.count - 1) / size_;
    if (!leaf_possible_ || extent.page % size_ != extent.target % size_) return add(first, last);
    const std::uint64_t whole_first = (extent.page + size_ - 1) / size_;
    const std::uint64_t whole_end = (extent.page + extent.count) / size_;
    if (whole_first >= whole_end) return add(first, last);
    if (first < whole_first) add(first, first);
    if (last >= whole_end) add(last, last);
  }
  std::uint64_t count() const { return count_; }

 private:
  void add(std::uint64_t first, std::uint64_t last) {
    if (first < next_) ++first;  // counted with the extent before
    if (first > last) return;
    count_ += last - first + 1;
    next_ = last + 1;
  }
  std::uint64_t size_;
  bool leaf_possible_;
  std::uint64_t next_ = 0;  // regions below are counted
  std::uint64_t count_ = 0;
};

bool in_range(base::GpuVa at, std::uint64_t bytes) {
  return base::fits(at.value(), bytes, PageTable::kEnd.value());
}

}  // namespace

PageTable::PageTable(const PteFormat& format, Unmapped unmapped)
    : format_(format), unmapped_(unmapped) {}
PageTable::PageTable(PageTable&&) noexcept = default;
PageTable& PageTable::operator=(PageTable&&) noexcept = default;
PageTable::~PageTable() = default;

base::Result<PageTable> PageTable::create(const PteFormat& format, TablePages& pages,
                                          Unmapped unmapped, TableUpdate& update) {
  PageTable table(format, unmapped);
  table.pages_ = &pages;
  table.root_ = std::make_unique<Table>();
  table.root_->page = pages.take();
  if (!table.root_->page) return base::fail(base::Errc::kAgain, "page-table pages");
  table.root_->level = kLevels - 1;
  table.root_->fresh = false;
  table.root_->children = std::make_unique<Table::Children>();
  table.root_->page.shadow().fill(table.invalid_entry());
  table.tables_ = 1;
  append_runs(update.fill, table.root_->page.place(), table.root_->page.shadow(), 0, kTableEntries);
  return table;
}

Pde PageTable::root() const { return root_->page.place().pointer(format_.vram); }

std::uint64_t PageTable::tables_for_map(const PteFormat& format, base::GpuVa at,
                                        std::span<const PhysRun> runs) {
  std::uint64_t count = 0;
  for (unsigned level = 0; level + 1 < kLevels; ++level) {
    RegionCounter regions(entry_pages(level + 1), level + 1 <= kHighestLeaf);
    for_each_extent(format, at, runs,
                    [&](const Extent& extent, const PhysRun&) { regions.add(extent); });
    count += regions.count();
  }
  return count;
}

base::Result<std::vector<TablePage>> PageTable::reserve(std::uint64_t count) {
  std::vector<TablePage> tables;
  tables.reserve(count);
  while (tables.size() < count) {
    TablePage page = pages_->take();
    if (!page) return base::fail(base::Errc::kAgain, "page-table pages");
    tables.push_back(std::move(page));
  }
  return tables;
}

base::Result<PageTable::MapPlan> PageTable::plan_map(base::GpuVa at, std::vector<PhysRun> runs,
                                                     PteFlags flags) {
  if (!at.aligned(base::kPageSize) || runs.empty())
    return base::fail(base::Errc::kInvalidArgument, "GPU address or pages to map");
  std::uint64_t pages = 0;
  for (const PhysRun& run : runs) {
    if (!format_.can_encode(run) || (run.kind() == RunKind::kNpa && flags.execute))
      return base::fail(base::Errc::kInvalidArgument, "memory that no page-table entry can name");
    pages += run.pages();
    if (pages > kEndPage || !in_range(at, pages * base::kPageSize))
      return base::fail(base::Errc::kOutOfRange, "GPU address range beyond 57 bits");
  }
  auto tables = reserve(tables_for_map(format_, at, runs));
  if (!tables) return std::unexpected(tables.error());
  return MapPlan{at, std::move(runs), flags, std::move(*tables)};
}

base::Result<PageTable::UnmapPlan> PageTable::plan_unmap(base::GpuVa at, std::uint64_t bytes) {
  if (!at.aligned(base::kPageSize) || !base::is_aligned(bytes, base::kPageSize) || bytes == 0)
    return base::fail(base::Errc::kInvalidArgument, "GPU address range to unmap");
  if (!in_range(at, bytes))
    return base::fail(base::Errc::kOutOfRange, "GPU address range beyond 57 bits");
  // A leaf that sticks out is split at either end: 1 GiB into 2 MiB, 2 MiB into 4 KiB.
  std::uint64_t count = 0;
  for (unsigned level = 1; level <= kHighestLeaf; ++level) {
    const std::uint64_t span = entry_pages(level) * base::kPageSize;
    const base::GpuVa end = at + bytes;
    const bool cut_first = !at.aligned(span);
    const bool cut_last =
        !end.aligned(span) && !(cut_first && at.value() / span == end.value() / span);
    count += (cut_first ? 1 : 0) + (cut_last ? 1 : 0);
  }
  auto tables = reserve(count);
  if (!tables) return std::unexpected(tables.error());
  return UnmapPlan{at, bytes, std::move(*tables)};
}

void PageTable::map(MapPlan plan, TableUpdate& update) {
  TableChange change(*this, plan.tables, update);
  std::uint64_t pages = 0;
  for_each_extent(format_, plan.at, plan.runs, [&](const Extent& extent, const PhysRun& run) {
    assert(!unflushed_.overlaps(base::GpuVa(extent.page * base::kPageSize),
                                base::GpuVa((extent.page + extent.count) * base::kPageSize)));
    change.map(*root_, extent.page, extent.count, format_.leaf(run, plan.flags));
    pages += extent.count;
  });
  change.finish();
  if (change.replaced()) update.stale.insert(plan.at, plan.at + pages * base::kPageSize);
}

void PageTable::unmap(UnmapPlan plan, TableUpdate& update) {
  TableChange change(*this, plan.tables, update);
  change.unmap(*root_, plan.at.page(), plan.bytes / base::kPageSize);
  change.finish();
  if (!change.replaced()) return;
  update.stale.insert(plan.at, plan.at + plan.bytes);
  update.cleared.insert(plan.at, plan.at + plan.bytes);
  unflushed_.insert(plan.at, plan.at + plan.bytes);
}

void PageTable::flushed(TableUpdate update) {
  update.cleared.for_each(
      [this](base::GpuVa first, base::GpuVa end) { unflushed_.erase(first, end); });
}

std::optional<PageTable::Leaf> PageTable::lookup(base::GpuVa at) const {
  if (at >= kEnd) return std::nullopt;
  const Table* table = root_.get();
  while (true) {
    const unsigned index = entry_index(at.page(), table->level);
    const std::uint64_t entry = table->entry(index);
    const std::uint64_t bytes = entry_pages(table->level) * base::kPageSize;
    if (is_leaf(entry))
      return Leaf{Pte(entry), base::GpuVa(base::align_down(at.value(), bytes)), bytes};
    table = table->child(index);
    if (table == nullptr) return std::nullopt;
  }
}

bool PageTable::occupied(base::GpuVa at, std::uint64_t bytes) const {
  if (unflushed_.overlaps(at, at + bytes)) return true;
  const auto any = [](auto& self, const Table& table, std::uint64_t page,
                      std::uint64_t end) -> bool {
    const std::uint64_t span = entry_pages(table.level);
    while (page < end) {
      const unsigned index = entry_index(page, table.level);
      const std::uint64_t stop = std::min(end, page - page % span + span);
      if (is_leaf(table.entry(index))) return true;
      if (const Table* child = table.child(index); child && self(self, *child, page, stop))
        return true;
      page = stop;
    }
    return false;
  };
  return any(any, *root_, at.page(), at.page() + bytes / base::kPageSize);
}

}  // namespace gpuumd
