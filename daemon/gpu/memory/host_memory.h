// Host memory that the daemon makes: sealed memfds, their pages taken at once, mapped for the
// device in chunks of at most 2 MiB.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/address.h"
#include "base/result.h"
#include "base/shared_memory.h"
#include "daemon/gpu/memory/iova_space.h"
#include "daemon/gpu/memory/memory_worker.h"
#include "daemon/gpu/memory/phys_run.h"

namespace gpuumd {

template <class T>
using DoneWith = std::move_only_function<void(base::Result<T>)>;

enum class HostPages : std::uint8_t { kHuge2M, kTransparent, kSmall };

// A memfd with all its pages. Cheap to copy: copies share the memfd, which closes with the last.
class HostBuffer {
 public:
  HostBuffer() = default;
  explicit operator bool() const { return fd_ != nullptr; }
  const SharedFd& fd() const { return fd_; }
  std::uint64_t bytes() const { return bytes_; }
  HostPages pages() const { return pages_; }

 private:
  friend class HostMemory;
  SharedFd fd_;
  std::uint64_t bytes_ = 0;
  HostPages pages_ = HostPages::kSmall;
};

// Makes host buffers. Device thread.
class HostMemory {
 public:
  explicit HostMemory(MemoryWorker& worker);
  ~HostMemory();

  struct Request {
    const char* name = "gpuumd";   // shown in /proc
    std::uint64_t bytes = 0;       // rounded up to 4 KiB, or to 2 MiB for huge pages
    bool huge = true;              // wish for huge pages; worth it from 2 MiB on
    int seals = base::kSizeSeals;  // without F_SEAL_SEAL the asker adds more later
  };
  // Pages are taken piece by piece before `done`, so that a shortage is an answer now and never a
  // SIGBUS later: kNoMemory. An empty huge-page pool is no error: smaller pages, counted.
  // `done` may be called from inside.
  void create(const Request& request, DoneWith<HostBuffer> done);
  // Maps a buffer into this process, with every page faulted in: for rings and tables, which the
  // reactor stores to. kNoMemory, kSystem.
  void map_cpu(const HostBuffer& buffer, DoneWith<base::Mapping> done);

  struct Counters {
    std::uint64_t buffers = 0;
    std::uint64_t bytes = 0;           // made, in all
    std::uint64_t huge = 0;            // buffers that got huge pages
    std::uint64_t huge_fallbacks = 0;  // that wished for them in vain
    std::uint64_t failures = 0;
  };
  const Counters& counters() const { return counters_; }

 private:
  struct Job;
  struct CpuJob;
  void populate_next(std::shared_ptr<CpuJob> job);
  void start(std::shared_ptr<Job> job);
  void next_piece(std::shared_ptr<Job> job);
  void failed(std::shared_ptr<Job> job, const base::Error& error);

  MemoryWorker& worker_;
  bool transparent_;  // memfds get transparent huge pages on this host
  Counters counters_;
  std::shared_ptr<HostMemory*> self_;
};

class DmaMapper;

// The owner of one range of host memory in the device's IOVA space. Keeps the memfd. Its destructor
// unmaps it, which asserts the order of DMA-3: no DmaUse is left. Must not outlive its mapper.
class HostChunk {
 public:
  HostChunk();
  HostChunk(HostChunk&&) noexcept;
  HostChunk& operator=(HostChunk&&) noexcept;
  ~HostChunk();

  explicit operator bool() const { return state_ != nullptr; }
  base::Iova iova() const;
  std::uint64_t bytes() const;
  const HostBuffer& buffer() const;
  std::uint64_t offset() const;  // in the buffer
  PhysRun run() const;
  void reset();

 private:
  friend class DmaMapper;
  friend class DmaUse;
  struct State;
  explicit HostChunk(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Says that page-table entries point at a chunk. Made before they are written; ends with
// cleared(), then flushed(), then its destructor: any other order asserts. The chunk must outlive
// it.
class DmaUse {
 public:
  explicit DmaUse(HostChunk& chunk);
  DmaUse(DmaUse&& other) noexcept;
  DmaUse& operator=(DmaUse&&) = delete;
  ~DmaUse();
  void cleared();  // the entries say invalid now
  void flushed();  // and every hub acknowledged the flush

 private:
  enum class State : std::uint8_t { kWritten, kCleared, kFlushed };
  HostChunk::State* chunk_;
  State state_ = State::kWritten;
};

// Host memory in and out of one device's IOMMU domain. Device thread; the calls that block are the
// worker's.
class DmaMapper {
 public:
  // All must outlive this.
  DmaMapper(vfio::PciDevice& device, IovaSpace& space, MemoryWorker& worker);
  ~DmaMapper();

  // [offset, offset + bytes) of `buffer`, at most 2 MiB and whole pages: our duty. A chunk of 2 MiB
  // is aligned to it. kNoSpace, kLimit, kDeviceLost, or what the backend says. If the asker has
  // gone the mapping is undone: `done` drops what it gets. `done` may be called from inside, with
  // an error.
  void map(const HostBuffer& buffer, std::uint64_t offset, std::uint64_t bytes, vfio::Rights rights,
           DoneWith<HostChunk> done);
  // All of `buffer`, as chunks of 2 MiB and a shorter last one, the next when the last is mapped.
  // All or nothing.
  void map_all(const HostBuffer& buffer, vfio::Rights rights,
               DoneWith<std::vector<HostChunk>> done);

  struct Counters {
    std::uint64_t maps = 0;  // DMA-4: equal to unmaps when everybody has gone
    std::uint64_t unmaps = 0;
    std::uint64_t mapped_bytes = 0;  // now
    std::uint64_t map_failures = 0;
    std::uint64_t unmap_failures = 0;  // their IOVA is never used again
  };
  const Counters& counters() const { return counters_; }

 private:
  friend class HostChunk;
  struct MapAll;
  void unmap(std::unique_ptr<HostChunk::State> state);
  void map_next(std::shared_ptr<MapAll> job);

  vfio::PciDevice& device_;
  IovaSpace& space_;
  MemoryWorker& worker_;
  Counters counters_;
  std::shared_ptr<DmaMapper*> self_;
};

}  // namespace gpuumd
