// The IP discovery binary that firmware leaves in VRAM (docs/hardware/discovery.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tools/gpusim/model/bases.h"
#include "tools/gpusim/model/options.h"

namespace gpusim {

// The whole binary, checksums filled in. Entries stand in an order drawn from options.seed.
std::vector<std::byte> build_discovery(const GpuOptions& options, const Bases& bases);

// Where it lies in VRAM.
std::uint64_t discovery_offset(const GpuOptions& options);

}  // namespace gpusim
