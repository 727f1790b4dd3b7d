// `gpuctl demo`: a short proof on one device of a running daemon. The whole story, with two nodes,
// is tools/demo.sh.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "tools/gpuctl/snapshot.h"

namespace gpuctl {

// Uploads random bytes into a VRAM buffer whose pages come by page fault, has the GPU copy it to
// another, downloads that and compares. `bytes` is a multiple of 4 KiB. kFailed when it is not
// equal.
Outcome<nlohmann::json> run_demo(const Target& target, std::uint64_t bytes);

}  // namespace gpuctl
