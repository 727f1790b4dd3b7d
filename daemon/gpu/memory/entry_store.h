// The one place where the CPU stores page-table entries into memory that the device walks.
#pragma once

#include <atomic>
#include <cstdint>

namespace gpuumd {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kVectorStores = false;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
inline constexpr bool kVectorStores = false;
#else
inline constexpr bool kVectorStores = true;
#endif
#else
inline constexpr bool kVectorStores = true;
#endif

// One 64-bit store each.
inline void store_entries_one_by_one(std::uint64_t* to, unsigned count, std::uint64_t value,
                                     std::uint64_t step) {
  for (unsigned i = 0; i < count; ++i) {
    std::atomic_ref(to[i]).store(value + i * step, std::memory_order_relaxed);
  }
}

// Two entries a store: an aligned 128-bit store never tears an aligned 64-bit half.
inline void store_entries_in_pairs(std::uint64_t* to, unsigned count, std::uint64_t value,
                                   std::uint64_t step) {
  using Pair = std::uint64_t __attribute__((vector_size(16)));
  unsigned i = 0;
  if (count > 0 && reinterpret_cast<std::uintptr_t>(to) % sizeof(Pair) != 0) {
    store_entries_one_by_one(to, 1, value, 0);
    i = 1;
  }
  Pair pair{value + i * step, value + (i + 1) * step};
  const Pair two_steps{2 * step, 2 * step};
  for (; i + 1 < count; i += 2, pair += two_steps) {
    *reinterpret_cast<volatile Pair*>(to + i) = pair;
  }
  if (i < count) store_entries_one_by_one(to + i, 1, value + i * step, 0);
}

// to[i] = value + i * step. Each entry is one aligned 64-bit store, so a walker sees the old or the
// new one. Order among them, and against what follows, is the caller's (release fence, HDP flush).
inline void store_entries(std::uint64_t* to, unsigned count, std::uint64_t value,
                          std::uint64_t step) {
  // The thread sanitizer knows atomic stores, not vector stores.
  if constexpr (kVectorStores) {
    store_entries_in_pairs(to, count, value, step);
  } else {
    store_entries_one_by_one(to, count, value, step);
  }
}

}  // namespace gpuumd
