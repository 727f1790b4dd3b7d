#include "daemon/gpu/device/engine_set.h"

#include "daemon/gpu/registers/nbio.h"

namespace gpuumd {
namespace {

constexpr std::size_t kRingAlignment = 256;
constexpr std::size_t kFenceBytes = 64;  // a cache line each

std::string instance_name(unsigned xcc, unsigned instance) {
  return "SDMA " + std::to_string(xcc) + "." + std::to_string(instance);
}

SdmaQueue make_queue(const RegisterBlock& registers, unsigned engine, unsigned queue,
                     vfio::Bar& doorbells, PermanentMemory& memory, std::size_t ring_bytes) {
  SdmaQueue::Place place;
  place.registers = registers;
  place.queue = queue;
  place.doorbells = &doorbells;
  place.doorbell = nbio::sdma_doorbell(engine, queue);
  place.ring = memory.engine(memory.take(ring_bytes, kRingAlignment));
  place.pointers = memory.engine(memory.take(SdmaQueue::kPointerBytes, SdmaQueue::kPointerBytes));
  return SdmaQueue(place);
}

}  // namespace

base::Result<EngineSet> EngineSet::create(const GpuTopology& topology, vfio::Bar& doorbells,
                                          PermanentMemory& memory) {
  std::vector<LaneEngine> lanes;
  std::vector<SdmaInstance> own;
  const auto per_xcc = topology.sdma_per_xcc();
  for (unsigned xcc = 0; xcc < topology.xccs.size(); ++xcc) {
    const auto& instances = topology.xccs[xcc].sdma;
    if (instances.size() <= kOwnInstance)
      return base::fail(base::Errc::kUnsupported,
                        "XCC " + std::to_string(xcc) + " has fewer than two SDMA instances");
    LaneEngine engine{SdmaInstance(instances[kLaneInstance], instance_name(xcc, kLaneInstance)),
                      {}};
    for (unsigned q = 0; q < sdma::kQueues; ++q)
      engine.queues.push_back({make_queue(instances[kLaneInstance], xcc * per_xcc + kLaneInstance,
                                          q, doorbells, memory, kLaneRingBytes),
                               memory.engine(memory.take(kFenceBytes, kFenceBytes))});
    lanes.push_back(std::move(engine));
    own.emplace_back(instances[kOwnInstance], instance_name(xcc, kOwnInstance));
  }
  auto own_queue = make_queue(topology.xccs[0].sdma[kOwnInstance], kOwnInstance, 0, doorbells,
                              memory, kOwnRingBytes);
  return EngineSet{std::move(lanes), std::move(own), own_queue,
                   memory.engine(memory.take(kFenceBytes, kFenceBytes))};
}

}  // namespace gpuumd
