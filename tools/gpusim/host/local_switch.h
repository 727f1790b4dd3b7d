// The switch of the GPUs of this process, linked to those of other processes if asked, and the pod
// they form when nobody says otherwise.
#pragma once

#include <vector>

#include "tools/gpusim/host/assembly.h"

namespace gpusim {

// Puts every GPU on one FabricSwitch and gives it its nHT firmware.
SwitchFactory local_switch();

// `gpus` accelerators in one virtual pod, configuration complete, each on a host of its own. Ids do
// not start at 0 and have gaps: docs/model.md, "Pod file".
std::vector<PodOptions> default_pod(unsigned gpus, bool ident);

}  // namespace gpusim
