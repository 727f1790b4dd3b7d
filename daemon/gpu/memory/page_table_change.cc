#include <algorithm>
#include <bit>

#include "daemon/gpu/memory/page_table_nodes.h"

namespace gpuumd {
namespace {

// What the next entry of a contiguous run adds, in a table of `level`.
constexpr std::uint64_t leaf_step(unsigned level) {
  return base::kPageSize << (kLevelBits * level);
}

}  // namespace

void append_runs(std::vector<EntryRun>& to, const TablePlace& place,
                 std::span<const std::uint64_t, kTableEntries> entries, unsigned first,
                 unsigned end) {
  while (first < end) {
    EntryRun run{place, static_cast<std::uint16_t>(first), 1, entries[first], 0};
    if (first + 1 < end) {
      const std::uint64_t step = entries[first + 1] - entries[first];
      // The increment of PTEPDE generate is 32 bits wide.
      if (step <= ~std::uint32_t{0}) {
        run.step = step;
        while (first + run.count < end &&
               entries[first + run.count] == run.value + run.count * step)
          ++run.count;
      }
    }
    if (run.count == 1) run.step = 0;
    first += run.count;
    to.push_back(run);
  }
}

std::unique_ptr<TableChange::Table> TableChange::new_table(Table& parent, unsigned index) {
  assert(!reserve_.empty());  // the plan reserves the worst case
  auto table = std::make_unique<Table>();
  table->page = std::move(reserve_.back());
  reserve_.pop_back();
  table->level = parent.level - 1;
  table->parent = &parent;
  table->index = index;
  table->page.shadow().fill(owner_.invalid_entry());
  if (table->level > 0) table->children = std::make_unique<Table::Children>();
  ++owner_.tables_;
  fresh_.push_back(table.get());
  return table;
}

TableChange::Table& TableChange::ensure_child(Table& table, unsigned index) {
  if (Table* child = table.child(index)) return *child;
  const std::uint64_t old = table.entry(index);
  auto made = new_table(table, index);
  Table& child = *made;
  if (is_leaf(old)) {  // split: the same pages by smaller entries
    shrink_fragments_round(table, index, index + 1);
    const std::uint64_t first = without_fragment(old);
    for (unsigned i = 0; i < kTableEntries; ++i)
      child.entry(i) = first + i * leaf_step(child.level);
    child.used = kTableEntries;
    assign_fragments(child, 0, kTableEntries);
  } else {
    ++table.used;
  }
  Pde pointer = child.page.place().pointer(owner_.format_.vram);
  // translate_further: 12.1 wants the block fragment size in PDB1 entries that are no leaves.
  if (table.level == 2) pointer.set<PDE::BLOCK_FRAGMENT_SIZE>(kLevelBits);
  table.entry(index) = pointer.raw();
  (*table.children)[index] = std::move(made);
  mark(table, index, index + 1);
  return child;
}

void TableChange::bury(std::unique_ptr<Table> table) {
  if (table->children) {
    for (auto& child : *table->children) {
      if (child) bury(std::move(child));
    }
  }
  table->dead = true;
  update_.freed.push_back(std::move(table->page));
  --owner_.tables_;
  graveyard_.push_back(std::move(table));
}

void TableChange::drop_child(Table& table, unsigned index) {
  bury(std::move((*table.children)[index]));
}

// FRAGMENT is believed by the hardware: one entry serves its whole run. Before entries [first, end)
// change, runs that reach into them from outside are cut there.
void TableChange::shrink_fragments_round(Table& table, unsigned first, unsigned end) {
  const auto block = [&table](unsigned i) {
    const std::uint64_t entry = table.entry(i);
    if (!is_leaf(entry)) return 1u;
    return 1u << (Pte(entry).get<PTE::FRAGMENT>() - kLevelBits * table.level);
  };
  const unsigned start = first & ~(block(first) - 1);
  const unsigned stop = ((end - 1) | (block(end - 1) - 1)) + 1;
  if (start < first) assign_fragments(table, start, first);
  if (stop > end) assign_fragments(table, end, stop);
}

// The largest aligned runs inside [first, end): virtual and physical address aligned alike.
void TableChange::assign_fragments(Table& table, unsigned first, unsigned end) {
  const std::uint64_t step = leaf_step(table.level);
  for (unsigned i = first; i < end;) {
    const std::uint64_t entry = without_fragment(table.entry(i));
    if (!is_leaf(entry)) {
      ++i;
      continue;
    }
    unsigned stop = i + 1;
    while (stop < end && without_fragment(table.entry(stop)) == entry + (stop - i) * step) ++stop;
    while (i < stop) {
      const Pte here(without_fragment(table.entry(i)));
      const std::uint64_t place =
          i | here.get<PTE::ADDRESS>() >> (kLevelBits * table.level) | kTableEntries;
      const unsigned log =
          std::min<unsigned>(std::countr_zero(place), std::bit_width(stop - i) - 1);
      for (unsigned n = 1u << log; n > 0; --n, ++i) {
        table.entry(i) = Pte(without_fragment(table.entry(i)))
                             .with<PTE::FRAGMENT>(kLevelBits * table.level + log)
                             .raw();
      }
    }
  }
  mark(table, first, end);
}

void TableChange::set_leaves(Table& table, unsigned first, unsigned count, Pte leaf) {
  shrink_fragments_round(table, first, first + count);
  for (unsigned i = 0; i < count; ++i) {
    const std::uint64_t old = table.entry(first + i);
    const std::uint64_t value = leaf.raw() + i * leaf_step(table.level);
    if (table.child(first + i) != nullptr) {  // the same pages by smaller entries: join them
      drop_child(table, first + i);
      replaced_ = true;
    } else if (is_leaf(old)) {
      // Valid over valid without a flush between is for the same page only (INV-5).
      assert(Pte(old).get<PTE::ADDRESS>() == Pte(value).get<PTE::ADDRESS>());
      replaced_ = true;
    } else {
      ++table.used;
    }
    table.entry(first + i) = value;
  }
  assign_fragments(table, first, first + count);
}

void TableChange::map(Table& table, std::uint64_t page, std::uint64_t count, Pte leaf) {
  const std::uint64_t span = entry_pages(table.level);
  while (count != 0) {
    const unsigned index = entry_index(page, table.level);
    const std::uint64_t target = leaf.get<PTE::ADDRESS>();
    std::uint64_t done;
    if (table.level <= kHighestLeaf && page % span == 0 && target % span == 0 && count >= span) {
      const auto entries =
          static_cast<unsigned>(std::min<std::uint64_t>(count / span, kTableEntries - index));
      set_leaves(table, index, entries, leaf);
      done = entries * span;
    } else {
      done = std::min(count, span - page % span);
      map(ensure_child(table, index), page, done, leaf);
    }
    page += done;
    count -= done;
    if (count != 0) leaf.set<PTE::ADDRESS>(target + done);
  }
  if (table.used == kTableEntries && table.level < kHighestLeaf) full_.push_back(&table);
}

// A table whose entries are one contiguous run becomes one leaf of its parent.
void TableChange::merge_upwards(Table* table) {
  while (table->parent != nullptr && table->level < kHighestLeaf && !table->dead &&
         table->used == kTableEntries) {
    const std::uint64_t first = without_fragment(table->entry(0));
    const std::uint64_t step = leaf_step(table->level);
    if (!is_leaf(first) || Pte(first).get<PTE::ADDRESS>() % entry_pages(table->level + 1) != 0)
      return;
    for (unsigned i = 1; i < kTableEntries; ++i) {
      if (without_fragment(table->entry(i)) != first + i * step) return;
    }
    Table& parent = *table->parent;
    const unsigned index = table->index;
    drop_child(parent, index);
    parent.entry(index) = first;
    assign_fragments(parent, index, index + 1);
    table = &parent;
  }
}

void TableChange::clear(Table& table, unsigned first, unsigned end) {
  shrink_fragments_round(table, first, end);
  for (unsigned i = first; i < end; ++i) {
    if (table.entry(i) == owner_.invalid_entry()) continue;
    if (table.child(i) != nullptr) drop_child(table, i);
    table.entry(i) = owner_.invalid_entry();
    --table.used;
    replaced_ = true;
    mark(table, i, i + 1);
  }
}

void TableChange::unmap(Table& table, std::uint64_t page, std::uint64_t count) {
  const std::uint64_t span = entry_pages(table.level);
  while (count != 0) {
    const unsigned index = entry_index(page, table.level);
    std::uint64_t done;
    if (page % span == 0 && count >= span) {
      const auto entries =
          static_cast<unsigned>(std::min<std::uint64_t>(count / span, kTableEntries - index));
      clear(table, index, index + entries);
      done = entries * span;
    } else {
      done = std::min(count, span - page % span);
      if (table.child(index) != nullptr || is_leaf(table.entry(index))) {
        Table& child = ensure_child(table, index);
        unmap(child, page, done);
        if (child.used == 0) clear(table, index, index + 1);
      }
    }
    page += done;
    count -= done;
  }
}

void TableChange::finish() {
  for (Table* table : full_) merge_upwards(table);
  // A fresh table is written whole, so marks inside it say nothing more.
  std::erase_if(dirty_, [](const Dirty& dirty) { return dirty.table->dead || dirty.table->fresh; });
  for (Table* table : fresh_) {
    if (table->dead) continue;
    table->fresh = false;
    append_runs(update_.fill, table->page.place(), table->page.shadow(), 0, kTableEntries);
  }
  std::sort(dirty_.begin(), dirty_.end(), [](const Dirty& a, const Dirty& b) {
    return std::pair(a.table, a.first) < std::pair(b.table, b.first);
  });
  for (std::size_t i = 0; i < dirty_.size();) {
    Dirty range = dirty_[i++];
    while (i < dirty_.size() && dirty_[i].table == range.table && dirty_[i].first <= range.end)
      range.end = std::max(range.end, dirty_[i++].end);
    append_runs(update_.link, range.table->page.place(), range.table->page.shadow(), range.first,
                range.end);
  }
}

}  // namespace gpuumd
