// A full memory fence: no load or store of this thread moves across it in either direction. Needed
// where a flag is published and then the other side's word is looked at (sleeping flags,
// doorbells).
#pragma once

#include <atomic>

namespace base {

// GCC refuses std::atomic_thread_fence under ThreadSanitizer. A locked instruction on a word of the
// thread's own is the same fence on the CPU and tells the sanitizer nothing that is not so.
inline void full_fence() {
#if defined(__SANITIZE_THREAD__)
  static thread_local std::atomic<int> own{0};
  own.fetch_add(1, std::memory_order_seq_cst);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace base
