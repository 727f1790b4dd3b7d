#include "tools/gpusim/model/bases.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <span>

#include "tools/gpusim/model/reset_noise.h"

namespace gpusim {
namespace {

struct Segment {
  Ip ip;
  unsigned index;
  std::uint32_t nominal;
  std::uint32_t dwords;  // what the block uses above its base; 0: nothing lies there
  bool fixed;
};

// Largest first among those that move, so that a random placement nearly always fits.
// clang-format off
constexpr std::array kSegments = {
    Segment{Ip::kNbio, 0, 0x0, 0x14, true},
    Segment{Ip::kNbio, 1, 0x14, 0x100, true},
    Segment{Ip::kNbio, 2, 0xD20, 0x200, true},
    Segment{Ip::kMp0, 0, 0x0, 0, true},
    Segment{Ip::kMp0, 1, 0x16000, 0xC00, true},
    Segment{Ip::kMmhub, 0, 0x0, 0, true},
    Segment{Ip::kGc, 1, 0xA000, 0x5C00, false},
    Segment{Ip::kGc, 0, 0x1260, 0x1900, false},
    Segment{Ip::kMmhub, 1, 0x18000, 0x1800, false},
    Segment{Ip::kNbio, 3, 0x10400, 0x1000, false},
    Segment{Ip::kMmhub, 2, 0x19800, 0x400, false},
    Segment{Ip::kMp0, 2, 0x16C00, 0x200, false},
    Segment{Ip::kOsssys, 0, 0x10A0, 0x140, false},
    Segment{Ip::kLsdma, 0, 0x11400, 0x100, false},
    Segment{Ip::kHdp, 0, 0xF20, 0x40, false},
};
// clang-format on
constexpr std::uint32_t kStep = 0x400;

struct Placed {
  std::uint32_t at;
  std::uint32_t dwords;
};

bool overlaps(std::span<const Placed> placed, std::uint32_t at, std::uint32_t dwords) {
  return std::ranges::any_of(placed, [&](const Placed& other) {
    return at < other.at + other.dwords && other.at < at + dwords;
  });
}

// Draws one place a segment; false when a segment found none, and the caller draws anew.
bool place_all(Random& random, std::array<std::uint32_t, kSegments.size()>& bases) {
  std::vector<Placed> placed;
  for (std::size_t i = 0; i < kSegments.size(); ++i) {
    const Segment& segment = kSegments[i];
    bases[i] = segment.nominal;
    if (!segment.fixed) {
      const std::uint32_t room = Bases::kBar5Dwords - segment.nominal - segment.dwords;
      const std::uint32_t steps = room / kStep + 1;
      unsigned tries = 0;
      do {
        if (++tries > 200) return false;
        bases[i] =
            segment.nominal + kStep * static_cast<std::uint32_t>(1 + random.below(steps)) - kStep;
      } while (overlaps(placed, bases[i], segment.dwords));
    }
    placed.push_back({bases[i], segment.dwords});
  }
  return true;
}

}  // namespace

Bases::Bases(const GpuOptions& options) {
  std::array<std::uint32_t, kSegments.size()> bases;
  for (std::size_t i = 0; i < kSegments.size(); ++i) bases[i] = kSegments[i].nominal;
  if (options.bases_seed != 0) {
    Random random(options.bases_seed);
    while (!place_all(random, bases)) {
    }
  }
  for (std::size_t i = 0; i < kSegments.size(); ++i) {
    const Segment& segment = kSegments[i];
    auto block = std::ranges::find(blocks_, segment.ip, &Block::ip);
    if (block == blocks_.end()) block = blocks_.insert(block, Block{segment.ip, {}});
    if (block->segments.size() <= segment.index) block->segments.resize(segment.index + 1);
    block->segments[segment.index] = bases[i];
  }
}

const std::vector<std::uint32_t>& Bases::segments(Ip ip) const {
  const auto block = std::ranges::find(blocks_, ip, &Block::ip);
  assert(block != blocks_.end() && "a block without registers");
  return block->segments;
}

std::uint32_t Bases::at(Ip ip, unsigned instance, unsigned segment) const {
  const auto& all = segments(ip);
  assert(segment < all.size());
  return all[segment] + instance * kInstanceStride;
}

}  // namespace gpusim
