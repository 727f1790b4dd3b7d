// What a hub remembers of its walks, by VMID: leaf translations, directory entries and the root,
// without limit, until a flush names them (D22). It never holds an invalid entry (D15).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "tools/gpusim/model/hub_registers.h"

namespace gpusim {

// Where an entry lies in memory.
struct TableAddress {
  bool system = false;
  std::uint64_t address = 0;  // IOVA, or VRAM offset
};

// A translation of 2^span_log2 pages, aligned.
struct Leaf {
  enum class Kind : std::uint8_t { kVram, kSystem, kRemote };
  std::uint64_t first_page = 0;  // VA >> 12
  std::uint64_t address = 0;     // of the first page's first byte: VRAM offset, IOVA or NPA
  std::uint64_t raw = 0;         // the entry it came from, and where that is
  TableAddress at;
  std::uint64_t root = 0;  // that the walk started from, or would have
  std::uint8_t vmid = 0;
  std::uint16_t owner = 0;  // PASID of the VMID when it was cached
  std::uint8_t span_log2 = 0;
  std::uint8_t level = 0;  // of the table that held it: 0 PTB, 1 PDB0, ...
  Kind kind = Kind::kVram;
  bool readable = false;
  bool writeable = false;
  bool executable = false;
  bool bus_atomics = false;
  bool poison = false;  // some page was freed by another owner

  bool covers(std::uint64_t page) const { return (page ^ first_page) >> span_log2 == 0; }
  std::uint64_t pages() const { return std::uint64_t{1} << span_log2; }
};

// What an invalidation request names, as far as the cache is concerned.
struct FlushScope {
  bool ptes = false;           // both L1 and L2: a leaf lies in both, so one alone drops nothing
  std::array<bool, 4> pdes{};  // PDE0..PDE3
  bool only_4k = false;

  static FlushScope of(base::Value<INVALIDATE_REQ> request);
  static FlushScope everything() { return {true, {true, true, true, true}, false}; }
};

class TranslationCache {
 public:
  // Called for each leaf that goes, after it went.
  using Dropped = std::function<void(const Leaf&)>;
  explicit TranslationCache(Dropped dropped) : dropped_(std::move(dropped)) {}

  // The leaf over `page`, or null; valid until the next non-const call.
  const Leaf* find(std::uint8_t vmid, std::uint64_t page) {
    Context& context = contexts_[vmid];
    for (const Leaf& leaf : context.recent)
      if (leaf.span_log2 != kNoLeaf && leaf.covers(page)) return &leaf;
    return find_in_map(context, page);
  }
  const Leaf* insert(std::uint8_t vmid, const Leaf& leaf);

  // The table that the directory entry of `level` (1 PDB0 .. 4 PDB3) over `page` leads to.
  // `shift` is log2 of the pages that one such entry covers.
  std::optional<TableAddress> directory(std::uint8_t vmid, unsigned level, std::uint64_t page,
                                        unsigned shift) const;
  void insert_directory(std::uint8_t vmid, unsigned level, std::uint64_t page, unsigned shift,
                        TableAddress table);
  std::optional<std::uint64_t> root(std::uint8_t vmid) const { return contexts_[vmid].root; }
  void insert_root(std::uint8_t vmid, std::uint64_t root) { contexts_[vmid].root = root; }

  void flush(std::uint8_t vmid, const FlushScope& scope);
  // Drops the leaves of all VMIDs for which `goes` is true.
  void drop_if(const std::function<bool(const Leaf&)>& goes);
  std::size_t leaves(std::uint8_t vmid) const { return contexts_[vmid].leaves.size(); }

 private:
  static constexpr unsigned kSpans = 46;  // FRAGMENT up to 31, a PDB3 leaf 36
  static constexpr std::uint8_t kNoLeaf = 0xFF;
  static constexpr std::size_t kRecent = 4;

  static constexpr Leaf no_leaf() {
    Leaf leaf;
    leaf.span_log2 = kNoLeaf;
    return leaf;
  }

  struct Context {
    Context() { forget_recent(); }
    void forget_recent() { recent.fill(no_leaf()); }

    std::array<Leaf, kRecent> recent;
    std::size_t oldest_recent = 0;
    absl::flat_hash_map<std::uint64_t, Leaf> leaves;  // by (page >> span) and span
    std::array<std::uint32_t, kSpans> by_span{};
    std::uint64_t spans = 0;  // bit n: by_span[n] is not 0
    std::array<absl::flat_hash_map<std::uint64_t, TableAddress>, 4> directories;
    std::optional<std::uint64_t> root;
  };

  static std::uint64_t key(std::uint64_t page, unsigned span) {
    return (page >> span << 6) | span;  // 45-bit page numbers leave room
  }
  const Leaf* find_in_map(Context& context, std::uint64_t page);
  static const Leaf* remember(Context& context, const Leaf& leaf);
  template <class Goes>
  void erase_leaves(Context& context, Goes goes);

  std::array<Context, HubRegisters::kVmids> contexts_;
  Dropped dropped_;
};

}  // namespace gpusim
