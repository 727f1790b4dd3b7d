// One SDMA instance over plain memory with queues on it, and a clock of the test's.
#pragma once

#include <cstdint>

#include "daemon/gpu/engine/sdma_instance.h"
#include "daemon/gpu/engine/sdma_queue.h"
#include "tests/fake/fake_sdma.h"
#include "tests/fake/manual_reactor.h"

namespace gpuumd::test {

struct EngineRig {
  static constexpr std::uint32_t kFirstDoorbell = 0x200;

  RegisterBlock registers() {
    RegisterBlock::Bases gc;
    gc.fill(RegisterBlock::kAbsent);
    gc[0] = fake::SdmaEngine::kGc0;
    gc[1] = fake::SdmaEngine::kGc1;
    return {io, sdma::bases(0, gc)};
  }
  EngineMemory allocate(std::size_t bytes) {
    const auto piece = memory.allocate(0, bytes);
    return {piece.cpu, base::McAddress(piece.at), bytes};
  }
  SdmaQueue make_queue(unsigned queue, std::size_t ring_bytes = 4096) {
    SdmaQueue::Place place;
    place.registers = registers();
    place.queue = queue;
    place.doorbells = &doorbells;
    place.doorbell = kFirstDoorbell + 2 * queue;
    place.ring = allocate(ring_bytes);
    place.pointers = allocate(SdmaQueue::kPointerBytes);
    return SdmaQueue(place);
  }

  fake::ManualReactor reactor;
  fake::FakeRegisterIo io;
  fake::FakeBar doorbells{8192};
  fake::GpuMemory memory;
  fake::SdmaEngine engine{io, doorbells, memory};
};

}  // namespace gpuumd::test
