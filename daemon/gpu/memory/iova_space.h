// Which bus addresses of one device are in use. Chosen by us, one space a device (DMA-1).
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include "base/address.h"
#include "base/interval_set.h"
#include "base/result.h"
#include "vfio/pci_device.h"

namespace gpuumd {

// Hands out addresses from a random start upwards, round and round, so that an address comes again
// as late as possible; and only after release(), which is for the end of the line: page-table
// entries cleared, flush acknowledged, unmap_dma() returned (DMA-3). Chunks of 2 MiB and small
// ranges live in regions of their own. Device thread.
class IovaSpace {
 public:
  static constexpr std::uint64_t kChunk = 2 * base::kMiB;
  static constexpr unsigned kDmaBits =
      52;  // what the device can put on the bus (docs/hardware/gpuvm.md)

  // Seeded with what the backend can map, cut to `dma_bits`. kUnsupported when not even one chunk
  // and one small region fit, or when the IOMMU cannot map 4 KiB pages.
  static base::Result<IovaSpace> create(const vfio::IovaLimits& limits, std::uint64_t seed,
                                        unsigned dma_bits = kDmaBits);

  // 2 MiB, aligned to it. kNoSpace.
  base::Result<base::Iova> allocate_chunk() { return allocate(chunks_, kChunk, kChunk); }
  // `bytes` rounded up to 4 KiB, less than a chunk, aligned to the largest power of two in them: so
  // a leaf of the GPU's fits wherever one does in the memory. kNoSpace, kInvalidArgument.
  base::Result<base::Iova> allocate_small(std::uint64_t bytes);
  // Exactly what was allocated.
  void release(base::Iova at, std::uint64_t bytes);

  std::uint64_t used() const { return used_; }  // bytes

 private:
  struct Region {
    base::IntervalSet<base::Iova> free;
    base::Iova cursor;  // the next search starts here
  };
  IovaSpace() = default;
  base::Result<base::Iova> allocate(Region& region, std::uint64_t bytes, std::uint64_t alignment);

  Region chunks_;
  Region small_;
  base::Iova small_first_;  // bounds of the small region
  base::Iova small_end_;
  std::uint64_t used_ = 0;
};

}  // namespace gpuumd
