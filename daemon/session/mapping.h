// One bind of a buffer: a record of its own that outlives the range that it was made for (INV-8).
// Device thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/address.h"
#include "base/interval_map.h"
#include "daemon/gpu/memory/host_memory.h"
#include "daemon/gpu/memory/pte.h"
#include "daemon/session/buffer.h"

namespace gpuumd {

// What every piece of one bind shares. It goes when its last piece is unmapped *and* that was
// flushed: whoever takes a piece out of a VM keeps it until the flush is acknowledged.
class Mapping {
 public:
  Mapping(BufferRef buffer, PteFlags rights, bool on_fault, std::uint64_t window,
          std::uint64_t generation)
      : buffer(std::move(buffer)),
        rights(rights),
        on_fault(on_fault),
        window(window),
        generation(generation) {}
  // Entries are cleared and flushed by now, which is what the memory behind them asks for (DMA-3).
  ~Mapping() {
    for (auto& use : dma_uses) use.cleared();
    for (auto& use : dma_uses) use.flushed();
  }
  Mapping(const Mapping&) = delete;

  const BufferRef buffer;
  const PteFlags rights;
  const bool on_fault;
  const std::uint64_t window;  // bytes made present round a fault
  const std::uint64_t generation;
  std::vector<DmaUse> dma_uses;
};

// A piece of a mapping at some address: `offset` is where it starts in the buffer.
struct MappedPiece {
  std::shared_ptr<Mapping> mapping;
  std::uint64_t offset = 0;
};

struct PiecePolicy {
  static MappedPiece tail(const MappedPiece& piece, std::uint64_t bytes) {
    return {piece.mapping, piece.offset + bytes};
  }
  static bool joins(const MappedPiece& left, std::uint64_t size, const MappedPiece& right) {
    return left.mapping == right.mapping && left.offset + size == right.offset;
  }
};
using MappingMap = base::IntervalMap<MappedPiece, base::GpuVa, PiecePolicy>;

}  // namespace gpuumd
