// Opening a node below /dev, with errors that say what to do.
#pragma once

#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace vfio {

// For reading and writing. kNotFound (which modules to load), kPermission (who may), kBusy,
// kSystem.
base::Result<base::UniqueFd> open_node(const std::string& path);

}  // namespace vfio
