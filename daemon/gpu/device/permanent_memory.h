// Host memory for what lives as long as the device: interrupt rings, the security processor's ring,
// engine rings, the daemon's fences. One chunk of 2 MiB, mapped for the device once and in VMID 0
// once, and cut up from the front.
#pragma once

#include <cassert>
#include <cstdint>
#include <utility>

#include "base/address.h"
#include "base/shared_memory.h"
#include "daemon/gpu/engine/engine_memory.h"
#include "daemon/gpu/memory/gart.h"
#include "daemon/gpu/memory/host_memory.h"

namespace gpuumd {

class PermanentMemory {
 public:
  static constexpr std::uint64_t kBytes = 2 * base::kMiB;

  struct Piece {
    std::byte* cpu;
    std::uint64_t offset;
    std::size_t bytes;
  };

  PermanentMemory(base::Mapping mapping, HostChunk chunk)
      : mapping_(std::move(mapping)), chunk_(std::move(chunk)), use_(chunk_) {}
  // The GART's entries and their flush are behind us, or the device is gone.
  ~PermanentMemory() {
    use_.cleared();
    use_.flushed();
  }

  // Zeroed. What is needed is known at build time, so running out is our own mistake.
  Piece take(std::size_t bytes, std::size_t alignment) {
    next_ = base::align_up(next_, alignment);
    assert(next_ + bytes <= kBytes);
    const Piece piece{mapping_.data() + next_, next_, bytes};
    next_ += bytes;
    return piece;
  }

  base::Iova iova(const Piece& piece) const { return chunk_.iova() + piece.offset; }
  const HostChunk& chunk() const { return chunk_; }

  // Once the chunk is mapped in VMID 0.
  void set_range(GartRange range) { range_ = std::move(range); }
  GartRange take_range() { return std::move(range_); }
  EngineMemory engine(const Piece& piece) const {
    return {piece.cpu, range_.address() + piece.offset, piece.bytes};
  }

 private:
  base::Mapping mapping_;
  HostChunk chunk_;
  DmaUse use_;
  GartRange range_;
  std::uint64_t next_ = 0;
};

}  // namespace gpuumd
