// The public codes of gpuumd.h, made from the daemon's own in this one place.
#pragma once

#include "base/result.h"
#include "gpuumd/gpuumd.h"

namespace gpuumd {

gpuumd_status to_status(base::Errc code);

}  // namespace gpuumd
