// The pod file: what the controller of a pod would have told each GPU's security processor
// (docs/model.md, "Pod file").
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "tools/gpusim/model/options.h"

namespace gpusim {

// One record a GPU, in order. kInvalidArgument names the file and the member that is wrong,
// kNotFound: no such file.
base::Result<std::vector<PodOptions>> read_pod_file(const std::string& path, unsigned gpus);

}  // namespace gpusim
