// The tree behind PageTable and one change of it. Private to page_table*.cc.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "daemon/gpu/memory/page_table.h"

namespace gpuumd {

inline constexpr unsigned kLevelBits = 9;
// PTE, PDB0 and PDB1 entries may be leaves: 4 KiB, 2 MiB, 1 GiB.
inline constexpr unsigned kHighestLeaf = 2;

// Pages that one entry of a table of `level` covers.
constexpr std::uint64_t entry_pages(unsigned level) {
  return std::uint64_t{1} << (kLevelBits * level);
}
constexpr unsigned entry_index(std::uint64_t page, unsigned level) {
  return static_cast<unsigned>(page >> (kLevelBits * level)) % kTableEntries;
}
// Two entries that differ in FRAGMENT alone are the same translation.
constexpr std::uint64_t without_fragment(std::uint64_t entry) {
  return entry & ~PTE::FRAGMENT::kMask;
}

struct PageTable::Table {
  using Children = std::array<std::unique_ptr<Table>, kTableEntries>;

  TablePage page;
  unsigned level = 0;
  unsigned used = 0;  // entries that are not invalid
  bool fresh = true;  // made by the change under way: nothing points to it yet
  bool dead = false;  // freed by it
  Table* parent = nullptr;
  unsigned index = 0;                  // in the parent
  std::unique_ptr<Children> children;  // level > 0

  std::uint64_t& entry(unsigned i) { return page.shadow()[i]; }
  std::uint64_t entry(unsigned i) const { return page.shadow()[i]; }
  Table* child(unsigned i) const { return children ? (*children)[i].get() : nullptr; }
};

// One map or unmap: changes the shadow, notes what changed, and at finish(), once, appends to the
// update.
class TableChange {
 public:
  using Table = PageTable::Table;
  TableChange(PageTable& owner, std::vector<TablePage>& reserve, TableUpdate& update)
      : owner_(owner), reserve_(reserve), update_(update) {}

  // `count` pages from virtual page `page` on get `leaf`, rising by a page each.
  void map(Table& table, std::uint64_t page, std::uint64_t count, Pte leaf);
  void unmap(Table& table, std::uint64_t page, std::uint64_t count);
  void finish();

  bool replaced() const { return replaced_; }  // a valid entry was changed or cleared

 private:
  struct Dirty {
    Table* table;
    unsigned first;
    unsigned end;
  };
  void set_leaves(Table& table, unsigned first, unsigned count, Pte leaf);
  void clear(Table& table, unsigned first, unsigned end);
  Table& ensure_child(Table& table, unsigned index);
  std::unique_ptr<Table> new_table(Table& parent, unsigned index);
  void drop_child(Table& table, unsigned index);
  void bury(std::unique_ptr<Table> table);
  void shrink_fragments_round(Table& table, unsigned first, unsigned end);
  void assign_fragments(Table& table, unsigned first, unsigned end);
  void merge_upwards(Table* table);
  void mark(Table& table, unsigned first, unsigned end) { dirty_.push_back({&table, first, end}); }

  PageTable& owner_;
  std::vector<TablePage>& reserve_;
  TableUpdate& update_;
  std::vector<Dirty> dirty_;
  std::vector<Table*> fresh_;
  std::vector<Table*> full_;  // perhaps one contiguous run by now
  std::vector<std::unique_ptr<Table>> graveyard_;
  bool replaced_ = false;
};

}  // namespace gpuumd
