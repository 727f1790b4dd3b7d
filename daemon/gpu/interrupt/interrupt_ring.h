// One interrupt ring in host memory: the consumer's place in it, and reading vectors out.
#pragma once

#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>

#include "base/address.h"
#include "daemon/gpu/registers/iv.h"

namespace gpuumd {

// Pinned host memory that the device writes: where we see it and where the device does.
struct DeviceMemory {
  std::byte* cpu = nullptr;
  std::uint64_t device_address = 0;
};

// Both rings have the same size. 256 KiB is what 17:2 of the pointer registers can name.
inline constexpr std::uint32_t kInterruptRingBytes = 256 * base::kKiB;

// Byte offsets in the ring, multiples of 32. The producer's place comes from the device and is
// masked and aligned here.
class InterruptRing {
 public:
  explicit InterruptRing(DeviceMemory memory) : memory_(memory) { assert(memory.cpu != nullptr); }

  static constexpr std::uint32_t kMask = kInterruptRingBytes - 1;

  // True when `raw` was a pointer that a working device writes.
  static bool well_formed(std::uint32_t raw) {
    return (raw & kMask & (InterruptVector::kBytes - 1) & ~1u) == 0;
  }
  static std::uint32_t offset(std::uint32_t raw) {
    return raw & kMask & ~(InterruptVector::kBytes - 1);
  }

  std::uint32_t rptr() const { return rptr_; }
  std::uint32_t wptr() const { return wptr_; }
  void set_wptr(std::uint32_t offset) { wptr_ = offset; }
  bool empty() const { return rptr_ == wptr_; }
  // Bytes from the consumer to the offset `to`.
  std::uint32_t distance(std::uint32_t to) const { return (to - rptr_) & kMask; }
  // Bytes passed since set-up. After an overflow it is too small by whole rings, never too large.
  std::uint64_t consumed() const { return consumed_; }

  // A copy of the vector at rptr, and one step on. Not when empty.
  InterruptVector take() {
    InterruptVector vector;
    auto* words = reinterpret_cast<std::uint32_t*>(memory_.cpu + rptr_);
    for (std::size_t i = 0; i < vector.dwords.size(); ++i)
      vector.dwords[i] = std::atomic_ref(words[i]).load(std::memory_order_relaxed);
    skip_to((rptr_ + InterruptVector::kBytes) & kMask);
    return vector;
  }
  void skip_to(std::uint32_t offset) {
    consumed_ += distance(offset);
    rptr_ = offset;
  }
  void reset() {
    consumed_ += distance(wptr_);
    rptr_ = wptr_ = 0;
  }

  std::uint64_t device_address() const { return memory_.device_address; }

 private:
  DeviceMemory memory_;
  std::uint32_t rptr_ = 0;
  std::uint32_t wptr_ = 0;
  std::uint64_t consumed_ = 0;
};

}  // namespace gpuumd
