// The SDMA engines of a GPU: on each XCC instance 0 carries clients' lanes and instance 1 is the
// daemon's (docs/hardware/sdma.md). The daemon uses that of XCC 0 today.
#pragma once

#include <string>
#include <vector>

#include "daemon/gpu/bringup/topology.h"
#include "daemon/gpu/device/permanent_memory.h"
#include "daemon/gpu/engine/sdma_instance.h"
#include "daemon/gpu/engine/sdma_queue.h"
#include "vfio/pci_device.h"

namespace gpuumd {

struct LaneQueue {
  SdmaQueue queue;
  EngineMemory fence;
};
struct LaneEngine {
  SdmaInstance instance;
  std::vector<LaneQueue> queues;
};

struct EngineSet {
  static constexpr unsigned kLaneInstance = 0;
  static constexpr unsigned kOwnInstance = 1;
  static constexpr std::size_t kLaneRingBytes = 4096;
  static constexpr std::size_t kOwnRingBytes = 64 * 1024;

  std::vector<LaneEngine> lane_engines;  // by XCC
  std::vector<SdmaInstance> own;         // by XCC
  SdmaQueue own_queue;                   // of XCC 0
  EngineMemory own_fence;

  // Cuts rings and fences out of `memory`. kUnsupported when an XCC has fewer than two instances.
  static base::Result<EngineSet> create(const GpuTopology& topology, vfio::Bar& doorbells,
                                        PermanentMemory& memory);
};

}  // namespace gpuumd
