// Single accesses to mapped device memory, each a load or a store of exactly its width.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/fence.h"

namespace vfio {

template <class Word>
std::atomic_ref<Word> word_at(std::byte* at) {
  return std::atomic_ref<Word>(*reinterpret_cast<Word*>(at));
}

// Between stores to memory and the store to a doorbell that tells the device of them: also those
// that x86 does not order by itself (write-combined, non-temporal).
inline void order_before_doorbell() {
#if defined(__x86_64__)
  __builtin_ia32_sfence();
#else
  base::full_fence();
#endif
}

// The widest naturally aligned access at `offset` that `left` bytes allow: 1, 2, 4 or 8.
constexpr std::size_t step_at(std::uint64_t offset, std::size_t left) {
  std::size_t step = sizeof(std::uint64_t);
  while (step > left || offset % step != 0) step /= 2;
  return step;
}

// One access as wide as the span: 1, 2, 4 or 8 bytes.
void load_step(std::byte* from, std::span<std::byte> to);
void store_step(std::byte* to, std::span<const std::byte> from);

}  // namespace vfio
