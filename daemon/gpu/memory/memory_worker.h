// The one thread of a reactor that may block: memory calls of the kernel and of the IOMMU.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <thread>

#include "base/address.h"
#include "base/fd.h"
#include "base/result.h"
#include "base/shared_memory.h"
#include "daemon/reactor/reactor.h"
#include "daemon/reactor/task_queue.h"
#include "vfio/pci_device.h"

namespace gpuumd {

// A descriptor that a request keeps open until it is done.
using SharedFd = std::shared_ptr<const base::UniqueFd>;

// Takes requests in order, one at a time, and answers each by a message to the reactor. Owns
// nothing and decides nothing. A request covers at most kPiece bytes, so that one behind it waits
// for short pieces only: whoever has more to do sends the next piece when the last is answered.
//
// Reactor thread, except what is marked. Must not outlive its reactor nor a device that it was
// given.
class MemoryWorker {
 public:
  static constexpr std::uint64_t kPiece = 2 * base::kMiB;
  using Reply = std::move_only_function<void(base::Result<void>)>;
  using Work = std::move_only_function<base::Result<void>()>;

  // kNoMemory or kSystem when the system has no descriptor or thread left.
  static base::Result<std::unique_ptr<MemoryWorker>> create(Reactor& reactor);
  // Does what is queued, so that every unmap happens, and joins. What was not answered before is
  // not answered any more; its callbacks are dropped on the reactor's thread.
  ~MemoryWorker();
  MemoryWorker(const MemoryWorker&) = delete;
  MemoryWorker& operator=(const MemoryWorker&) = delete;

  void map_dma(vfio::PciDevice& device, SharedFd fd, std::uint64_t offset, std::uint64_t bytes,
               base::Iova at, vfio::Rights rights, Reply reply);
  void unmap_dma(vfio::PciDevice& device, base::Iova at, std::uint64_t bytes, Reply reply);
  // Gives [offset, offset + bytes) of a memfd its pages now. kNoMemory when there are none (an
  // empty huge-page pool, a cgroup limit).
  void allocate(SharedFd fd, std::uint64_t offset, std::uint64_t bytes, Reply reply);
  // Takes the pages of the range away; it reads as zeros after that.
  void punch(SharedFd fd, std::uint64_t offset, std::uint64_t bytes, Reply reply);
  // Faults the pages of a mapping in, writable.
  void populate(std::span<std::byte> pages, Reply reply);
  void unmap(base::Mapping mapping, Reply reply);
  // Any other piece of work that may take more than 50 us, on the worker's thread; it must touch
  // nothing that the reactor owns.
  void run(Work work, Reply reply);

  // Waits until the worker has done what was asked of it before, each within its own deadline.
  // Answers are not waited for.
  void finish();

  std::uint64_t pending() const { return pending_; }  // not answered yet

 private:
  MemoryWorker(Reactor& reactor, base::UniqueFd wake);
  void loop();  // worker thread

  Reactor& reactor_;
  TaskQueue requests_;
  base::UniqueFd wake_;  // eventfd, written when a request comes while the worker sleeps
  std::atomic<bool> sleeping_{false};
  std::atomic<bool> stop_{false};
  std::shared_ptr<bool> alive_;  // reactor thread; false: answers find nobody
  std::uint64_t pending_ = 0;
  std::thread thread_;
};

}  // namespace gpuumd
