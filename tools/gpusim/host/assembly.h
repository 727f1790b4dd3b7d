// The one place that puts real GPUs into a pod.
#pragma once

#include <functional>
#include <memory>

#include "tools/gpusim/host/pod.h"
#include "tools/gpusim/host/setup.h"
#include "tools/gpusim/model/gpu.h"

namespace gpusim {

// The switch of a pod, and whatever joins it to other processes.
class PodSwitch : public PodPart {
 public:
  // The port that GPU `index` is built with. It outlives that GPU.
  virtual FabricPort& port(unsigned index) = 0;
  // The GPU is built: from now on it can be reached, and may be given its nHT block.
  virtual void plug(unsigned index, Gpu& gpu) = 0;
};

using SwitchFactory = std::function<base::Result<std::unique_ptr<PodSwitch>>(
    const PodSetup&, ScenarioHooks&, AccessLog&, const ModelClock&)>;

// A factory for `setup`, which was checked: its GPUs on one switch, each with its nHT firmware.
PodFactory gpu_pod(const PodSetup& setup);
// With another switch; with none (a null factory) no GPU has a link.
PodFactory gpu_pod(const PodSetup& setup, SwitchFactory make_switch);

}  // namespace gpusim
