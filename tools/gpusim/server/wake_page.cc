#include "tools/gpusim/server/wake_page.h"

#include <sys/eventfd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace gpusim {

base::Result<WakePage> WakePage::create() {
  WakePage made;
  auto memory = base::make_memfd("gpusim-wake", base::kPageSize);
  if (!memory) return std::unexpected(memory.error());
  made.memory_ = std::move(*memory);
  auto page = base::Mapping::map(made.memory_.get(), 0, base::kPageSize, PROT_READ | PROT_WRITE);
  if (!page) return std::unexpected(page.error());
  made.page_ = std::move(*page);
  made.event_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!made.event_) return base::fail(base::Errc::kSystem, "eventfd", errno);
  return made;
}

void WakePage::publish(bool sleeping) {
  std::atomic_ref word(*page_.at<std::uint32_t>());
  if (sleeping) {
    word.store(1, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
  } else {
    word.store(0, std::memory_order_relaxed);
  }
}

void WakePage::drain() {
  eventfd_t count = 0;
  ::eventfd_read(event_.get(), &count);
}

}  // namespace gpusim
