// Where the register blocks of one GPU lie: absolute dwords, by hardware block, instance and
// segment (docs/hardware/discovery.md, D6).
#pragma once

#include <cstdint>
#include <vector>

#include "tools/gpusim/model/options.h"

namespace gpusim {

// Hardware ids of the discovery table.
enum class Ip : std::uint16_t {
  kMp1 = 1,
  kGc = 11,
  kMmhub = 34,
  kAthub = 35,
  kOsssys = 40,
  kHdp = 41,
  kSdma0 = 42,
  kLsdma = 91,
  kNbio = 108,
  kUmc = 150,
  kMp0 = 255,
};

class Bases {
 public:
  // The nominal bases plus, where they are not fixed, multiples of 0x400 drawn from
  // options.bases_seed; nothing overlaps and instance 0 of all blocks lies below kBar5Dwords.
  explicit Bases(const GpuOptions& options);

  // Asserts that the segment exists.
  std::uint32_t at(Ip ip, unsigned instance, unsigned segment) const;
  const std::vector<std::uint32_t>& segments(Ip ip) const;  // of instance 0

  // Instance k of GC and MMHUB lies k times this above instance 0.
  static constexpr std::uint32_t kInstanceStride = 0x40000;
  static constexpr std::uint32_t kBar5Dwords = 0x20000;

 private:
  struct Block {
    Ip ip;
    std::vector<std::uint32_t> segments;
  };
  std::vector<Block> blocks_;
};

}  // namespace gpusim
