// One 4 KiB page-table page: where the device finds it, and its shadow in ordinary memory, which is
// the only copy that is ever read.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "base/address.h"
#include "daemon/gpu/memory/pte.h"
#include "daemon/gpu/memory/vram_map.h"

namespace gpuumd {

inline constexpr unsigned kTableEntries = 512;

// Where a table lies. Host tables are written by the CPU, visible ones through BAR 0, all others by
// the copy engine.
struct TablePlace {
  enum class Kind : std::uint8_t { kVram, kHost };
  Kind kind = Kind::kVram;
  base::VramOffset vram;          // kVram
  base::Iova iova;                // kHost
  std::uint64_t* host = nullptr;  // kHost: the page, mapped in this process

  static TablePlace in_vram(base::VramOffset at) { return {Kind::kVram, at, {}, nullptr}; }
  static TablePlace in_host(base::Iova at, std::uint64_t* page) {
    return {Kind::kHost, {}, at, page};
  }
  // The directory entry, or context BASE, that points here.
  Pde pointer(const VramMap& map) const {
    return kind == Kind::kHost ? directory_entry(iova.value(), true)
                               : directory_entry(map.physical(vram).value(), false);
  }
  friend bool operator==(const TablePlace&, const TablePlace&) = default;
};

class TablePages;

// The owner of one table page; goes back to its pool when it ends, which must be after the flush
// that makes the table unreachable. It may outlive the pool (a lost device leaves updates that
// nobody finishes), and then just goes. Move only. Device thread.
class TablePage {
 public:
  using Entries = std::array<std::uint64_t, kTableEntries>;

  TablePage() = default;
  TablePage(const TablePages& owner, TablePlace place, std::unique_ptr<Entries> shadow);
  TablePage(TablePage&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)),
        place_(other.place_),
        shadow_(std::move(other.shadow_)) {}
  TablePage& operator=(TablePage&& other) noexcept;
  ~TablePage() { reset(); }

  explicit operator bool() const { return owner_ != nullptr; }
  const TablePlace& place() const { return place_; }
  // Content is undefined when the page comes from the pool.
  Entries& shadow() { return *shadow_; }
  const Entries& shadow() const { return *shadow_; }
  void reset();

 private:
  std::shared_ptr<TablePages*> owner_;  // to null when the pool has gone
  TablePlace place_;
  std::unique_ptr<Entries> shadow_;
};

// Where table pages come from. Device thread; never blocks.
class TablePages {
 public:
  virtual ~TablePages() { close(); }
  // An empty TablePage when there is none now (counted); try again after the pool was refilled.
  virtual TablePage take() = 0;

 protected:
  // First in the destructor of a pool: pages that are still out do not come back.
  void close() { *self_ = nullptr; }

 private:
  friend class TablePage;
  std::shared_ptr<TablePages*> self_ = std::make_shared<TablePages*>(this);
  virtual void give_back(const TablePlace& place, std::unique_ptr<TablePage::Entries> shadow) = 0;
};

inline TablePage::TablePage(const TablePages& owner, TablePlace place,
                            std::unique_ptr<Entries> shadow)
    : owner_(owner.self_), place_(place), shadow_(std::move(shadow)) {}
inline void TablePage::reset() {
  const auto owner = std::exchange(owner_, nullptr);
  if (owner && *owner != nullptr) (*owner)->give_back(place_, std::move(shadow_));
}
inline TablePage& TablePage::operator=(TablePage&& other) noexcept {
  if (this != &other) {
    reset();
    owner_ = std::exchange(other.owner_, nullptr);
    place_ = other.place_;
    shadow_ = std::move(other.shadow_);
  }
  return *this;
}

}  // namespace gpuumd
