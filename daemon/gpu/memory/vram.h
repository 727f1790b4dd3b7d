// Local memory: who owns which part of it. Reads and writes nothing.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/address.h"
#include "base/buddy_allocator.h"
#include "base/result.h"
#include "daemon/gpu/memory/phys_run.h"

namespace gpuumd {

class Vram;

// The owner of one naturally aligned block of VRAM, 4 KiB to 1 GiB. Its destructor makes the memory
// free for others at once: keep it until the TLB flush behind the last translation was acknowledged
// (FlushQueue). Must not outlive its Vram. Device thread.
class VramBlock {
 public:
  VramBlock() = default;
  VramBlock(VramBlock&& other) noexcept
      : vram_(std::exchange(other.vram_, nullptr)), at_(other.at_), order_(other.order_) {}
  VramBlock& operator=(VramBlock&& other) noexcept {
    if (this != &other) {
      reset();
      vram_ = std::exchange(other.vram_, nullptr);
      at_ = other.at_;
      order_ = other.order_;
    }
    return *this;
  }
  ~VramBlock() { reset(); }

  explicit operator bool() const { return vram_ != nullptr; }
  base::VramOffset offset() const { return at_; }
  std::uint64_t bytes() const { return base::kPageSize << order_; }
  PhysRun run() const { return PhysRun::vram(at_, std::uint64_t{1} << order_); }
  void reset();

 private:
  friend class Vram;
  VramBlock(Vram* vram, base::VramOffset at, unsigned order)
      : vram_(vram), at_(at), order_(order) {}
  Vram* vram_ = nullptr;
  base::VramOffset at_;
  unsigned order_ = 0;
};

// Which part of VRAM a block may come from. "Visible" is what BAR 0 shows: page tables and rings
// need it, so everybody else takes it last.
enum class VramZone : std::uint8_t { kVisible, kInvisible, kVisibleFirst, kInvisibleFirst };

class Vram {
 public:
  static constexpr std::uint64_t kNaturalBlock = 2 * base::kMiB;

  struct Range {
    base::VramOffset first;
    std::uint64_t bytes;
  };
  // `reserved` is never handed out: the discovery table in the last 64 KiB, what firmware keeps.
  // Widened to whole pages; kInvalidArgument when it lies outside VRAM or overlaps.
  static base::Result<Vram> create(std::uint64_t bytes, std::uint64_t visible,
                                   const std::vector<Range>& reserved);
  Vram(Vram&&) = default;  // before the first block only: blocks point here

  // One block of `bytes` rounded up to a power of two (4 KiB to 1 GiB). kNoSpace, kInvalidArgument.
  base::Result<VramBlock> allocate(std::uint64_t bytes, VramZone zone);

  // `bytes` (rounded up to 4 KiB) as few blocks, of 2 MiB each where there is enough and smaller at
  // the end or when memory is in pieces; not contiguous. No whole piece of `alignment` (a power of
  // two up to 2 MiB) is spread over smaller blocks. All or nothing: kNoSpace.
  base::Result<std::vector<VramBlock>> allocate_blocks(std::uint64_t bytes, VramZone zone,
                                                       std::uint64_t alignment = base::kPageSize);

  std::uint64_t size() const { return bytes_; }
  std::uint64_t visible() const { return visible_; }

  struct Usage {
    std::uint64_t total = 0;
    std::uint64_t reserved = 0;
    std::uint64_t used = 0;  // by blocks
    std::uint64_t free = 0;
    std::uint64_t largest_free = 0;  // bytes of one block
  };
  Usage visible_usage() const { return usage(0, visible_); }
  Usage invisible_usage() const { return usage(visible_, bytes_); }
  // total = reserved + used + free in both zones, and the allocator's own conservation. O(pages).
  bool check() const;

 private:
  friend class VramBlock;
  Vram(std::uint64_t bytes, std::uint64_t visible);
  Usage usage(std::uint64_t first, std::uint64_t end) const;
  bool take_block(unsigned order, VramZone zone, VramBlock& to);
  void free(base::VramOffset at, unsigned order);

  std::uint64_t bytes_;
  std::uint64_t visible_;
  base::BuddyAllocator buddy_;
  std::array<std::uint64_t, 2> reserved_{};  // visible, invisible
  std::array<std::uint64_t, 2> used_{};
};

// What `blocks` make up, one behind the other, with neighbours joined.
std::vector<PhysRun> runs_of(const std::vector<VramBlock>& blocks);

}  // namespace gpuumd
