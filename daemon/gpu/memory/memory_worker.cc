#include "daemon/gpu/memory/memory_worker.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <future>
#include <system_error>
#include <utility>

#include "daemon/gpu/memory/page_source.h"

namespace gpuumd {

base::Result<std::unique_ptr<MemoryWorker>> MemoryWorker::create(Reactor& reactor) {
  base::UniqueFd wake(::eventfd(0, EFD_CLOEXEC));
  if (!wake) return base::fail(base::Errc::kSystem, "eventfd of the memory worker", errno);
  std::unique_ptr<MemoryWorker> worker(new MemoryWorker(reactor, std::move(wake)));
  try {
    worker->thread_ = std::thread([raw = worker.get()] { raw->loop(); });
  } catch (const std::system_error& error) {
    return base::fail(base::Errc::kSystem, "thread of the memory worker", error.code().value());
  }
  return worker;
}

MemoryWorker::MemoryWorker(Reactor& reactor, base::UniqueFd wake)
    : reactor_(reactor), wake_(std::move(wake)), alive_(std::make_shared<bool>(true)) {}

MemoryWorker::~MemoryWorker() {
  *alive_ = false;
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_seq_cst);
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
  thread_.join();
}

void MemoryWorker::loop() {
  ::pthread_setname_np(::pthread_self(), "memory worker");
  while (true) {
    requests_.drain([](Task& task) { task(); });
    if (stop_.load(std::memory_order_seq_cst)) {
      // What was queued before the stop is visible now; nothing comes after it.
      if (!requests_.drain([](Task& task) { task(); })) return;
      continue;
    }
    sleeping_.store(true, std::memory_order_seq_cst);
    // Whoever queued before the flag was set is seen here; whoever queues after it wakes us.
    if (requests_.empty() && !stop_.load(std::memory_order_seq_cst)) {
      std::uint64_t count;
      (void)!::read(wake_.get(), &count, sizeof count);
    }
    sleeping_.store(false, std::memory_order_seq_cst);
  }
}

void MemoryWorker::run(Work work, Reply reply) {
  assert(reactor_.on_thread());
  ++pending_;
  requests_.push(
      [this, alive = alive_, work = std::move(work), reply = std::move(reply)]() mutable {
        auto result = work();
        // `work` holds descriptors and mappings: let go of them here, where closing may block.
        work = nullptr;
        reactor_.post([this, alive = std::move(alive), result = std::move(result),
                       reply = std::move(reply)]() mutable {
          if (!*alive) return;
          --pending_;
          reply(std::move(result));
        });
      });
  if (sleeping_.load(std::memory_order_seq_cst)) {
    const std::uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof one);
  }
}

void MemoryWorker::finish() {
  const auto done = std::make_shared<std::promise<void>>();
  run(
      [done] {
        done->set_value();
        return base::Result<void>();
      },
      [](base::Result<void>) {});
  done->get_future().wait();
}

void MemoryWorker::map_dma(vfio::PciDevice& device, SharedFd fd, std::uint64_t offset,
                           std::uint64_t bytes, base::Iova at, vfio::Rights rights, Reply reply) {
  assert(bytes <= kPiece);
  run([&device, fd = std::move(fd), offset, bytes, at,
       rights] { return device.map_dma(fd->get(), offset, bytes, at, rights); },
      std::move(reply));
}

void MemoryWorker::unmap_dma(vfio::PciDevice& device, base::Iova at, std::uint64_t bytes,
                             Reply reply) {
  assert(bytes <= kPiece);
  run([&device, at, bytes] { return device.unmap_dma(at, bytes); }, std::move(reply));
}

void MemoryWorker::allocate(SharedFd fd, std::uint64_t offset, std::uint64_t bytes, Reply reply) {
  assert(bytes <= kPiece);
  run([fd = std::move(fd), offset, bytes] { return allocate_pages(fd->get(), offset, bytes); },
      std::move(reply));
}

void MemoryWorker::punch(SharedFd fd, std::uint64_t offset, std::uint64_t bytes, Reply reply) {
  assert(bytes <= kPiece);
  run([fd = std::move(fd), offset, bytes] { return punch_pages(fd->get(), offset, bytes); },
      std::move(reply));
}

void MemoryWorker::populate(std::span<std::byte> pages, Reply reply) {
  assert(pages.size() <= kPiece);
  run([pages] { return populate_pages(pages); }, std::move(reply));
}

void MemoryWorker::unmap(base::Mapping mapping, Reply reply) {
  // The mapping ends with the work, on the worker's thread.
  run([mapping = std::move(mapping)] { return base::Result<void>(); }, std::move(reply));
}

}  // namespace gpuumd
