// Memory that an engine reaches in VMID 0 and that the CPU has mapped: rings, pointers, fences.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/address.h"

namespace gpuumd {

// A view; its owner (daemon/gpu/memory) keeps the memory pinned and mapped for as long as an engine
// may touch it.
struct EngineMemory {
  std::byte* cpu = nullptr;
  base::McAddress at;
  std::size_t size = 0;

  EngineMemory part(std::size_t offset, std::size_t bytes) const {
    return {cpu + offset, at + offset, bytes};
  }
  // The 64-bit word at `offset`, which the device also writes or reads.
  std::atomic_ref<std::uint64_t> word(std::size_t offset = 0) const {
    return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(cpu + offset));
  }
};

}  // namespace gpuumd
