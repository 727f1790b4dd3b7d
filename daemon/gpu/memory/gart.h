// The page table of VMID 0, what the daemon's own engines, rings and firmware use (docs/vmid0.md).
// 512 MiB from MC address 0, one flat table of 131,072 entries in visible VRAM.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/address.h"
#include "base/interval_set.h"
#include "base/result.h"
#include "daemon/gpu/memory/flush_queue.h"
#include "daemon/gpu/memory/phys_run.h"
#include "daemon/gpu/memory/pte.h"
#include "daemon/gpu/memory/table_writer.h"
#include "daemon/gpu/memory/vram.h"

namespace gpuumd {

class Gart;

// A range of VMID 0 that is mapped. Its destructor clears the entries, flushes VMID 0 on every hub
// and only then lets the addresses be used again. Whoever holds the memory behind it must keep that
// longer than the flush: unmap() says when. Must not outlive its Gart. Device thread.
class GartRange {
 public:
  GartRange() = default;
  GartRange(GartRange&& other) noexcept;
  GartRange& operator=(GartRange&& other) noexcept;
  ~GartRange();

  explicit operator bool() const { return gart_ != nullptr; }
  base::McAddress address() const;
  std::uint64_t bytes() const { return pages_ * base::kPageSize; }
  // As the destructor, and `done` when the flush was acknowledged. Empty after that.
  void unmap(Done done);

 private:
  friend class Gart;
  GartRange(Gart* gart, std::uint64_t first, std::uint64_t pages)
      : gart_(gart), first_(first), pages_(pages) {}
  Gart* gart_ = nullptr;
  std::uint64_t first_ = 0;
  std::uint64_t pages_ = 0;
};

class Gart {
 public:
  static constexpr std::uint64_t kBytes = 512 * base::kMiB;
  static constexpr std::uint64_t kPages = kBytes / base::kPageSize;
  static constexpr std::uint64_t kTableBytes = kPages * sizeof(std::uint64_t);
  // Page 0 stays unmapped: address 0 in VMID 0 is always a mistake.
  static constexpr std::uint64_t kPermanentFirst = 1;
  static constexpr unsigned kPeers = 256;
  static constexpr unsigned kPagesPerPeer = 4;
  static constexpr unsigned kWindows = 64;
  static constexpr std::uint64_t kWindowPages = 512;
  static constexpr std::uint64_t kWindowsFirst = kPages - kWindows * kWindowPages;
  static constexpr std::uint64_t kPeersFirst = kWindowsFirst - kPeers * kPagesPerPeer;

  // A peer's pages, in the order of their slots.
  enum class PeerPage : std::uint8_t { kInterruptRing, kShootdownRing, kPointers, kDoorbell };

  // Takes the table from visible VRAM and writes every entry invalid; `ready` when that has reached
  // memory. kNoSpace. kDeviceError when the apertures of VMID 0 would overlap.
  static base::Result<std::unique_ptr<Gart>> create(const PteFormat& format, Vram& vram,
                                                    TableWriter& writer, FlushQueue& flushes,
                                                    Done ready);
  ~Gart();

  Pde root() const;
  static constexpr base::McAddress first() { return base::McAddress(0); }

  // Rings, write-back, firmware buffers: mapped for as long as the device lives, mostly. `done`
  // when the entries are in memory; the range must not be used before. kNoSpace, kInvalidArgument.
  base::Result<GartRange> map(std::span<const PhysRun> runs, PteFlags flags, Done done);

  // A page of a remote accelerator's ring memory at its fixed place, readable and writable,
  // uncached (docs/hardware/gpuvm.md "NPA entries"). Replaces nothing: the place must be unmapped.
  static base::McAddress peer_address(unsigned peer, PeerPage page);
  base::Result<void> map_peer(unsigned peer, PeerPage page, base::Npa at, Done done);
  // All four pages; `done` when the flush was acknowledged.
  void unmap_peer(unsigned peer, Done done);

  // A slot of 2 MiB by which the daemon's engine reaches pages during one copy. Destroy it after
  // the copy's fence; it is free again after a flush of VMID 0.
  base::Result<GartRange> acquire_window(std::span<const PhysRun> runs, PteFlags flags, Done done);
  unsigned free_windows() const { return static_cast<unsigned>(free_windows_.size()); }

  // What an engine would find at `at`, from the shadow.
  Pte entry(base::McAddress at) const;

 private:
  friend class GartRange;
  Gart(const PteFormat& format, VramBlock table, TableWriter& writer, FlushQueue& flushes);
  base::Result<std::uint64_t> check(std::span<const PhysRun> runs, PteFlags flags) const;
  void set(std::uint64_t first, std::span<const PhysRun> runs, PteFlags flags, Done done);
  void clear(std::uint64_t first, std::uint64_t pages, Done done);
  void write(std::uint64_t first, std::uint64_t pages, Done done);
  void release(std::uint64_t first, std::uint64_t pages);

  PteFormat format_;
  VramBlock table_;
  TableWriter& writer_;
  FlushQueue& flushes_;
  std::vector<std::uint64_t> shadow_;
  base::IntervalSet<std::uint64_t> free_;  // pages of the permanent part
  std::vector<std::uint16_t> free_windows_;
  std::shared_ptr<Gart*> self_;
};

}  // namespace gpuumd
