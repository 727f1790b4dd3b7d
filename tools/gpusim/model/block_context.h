// What every block of one GPU is given. The assembly (gpu.h) makes one and outlives the blocks.
#pragma once

#include <cstdint>
#include <functional>

#include "tools/gpusim/model/access_log.h"
#include "tools/gpusim/model/host_bus.h"
#include "tools/gpusim/model/ports.h"
#include "tools/gpusim/model/register_file.h"
#include "tools/gpusim/model/scenario.h"
#include "tools/gpusim/model/types.h"

namespace gpusim {

struct BlockContext {
  RegisterFile& registers;
  InterruptSink& interrupts;
  FabricPort& fabric;
  const ModelClock& clock;
  std::function<HostBus*()> bus;   // null while no client is connected: every bus access fails
  AccessLog* log = nullptr;        // null: nothing is logged
  ScenarioHooks* hooks = nullptr;  // null: no fault injection
  unsigned gpu = 0;                // index in the pod, for the log and the scenario
  std::uint64_t seed = 1;          // orders completions, fills registers that reset to anything
};

}  // namespace gpusim
