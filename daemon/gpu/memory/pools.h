// What the fault path takes without waiting: table pages and mapped host chunks, made beforehand.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/shared_memory.h"
#include "daemon/gpu/memory/host_memory.h"
#include "daemon/gpu/memory/table_page.h"
#include "daemon/gpu/memory/table_writer.h"
#include "daemon/gpu/memory/vram.h"
#include "daemon/reactor/reactor.h"

namespace gpuumd {

struct PoolCounters {
  std::uint64_t taken = 0;
  std::uint64_t empty = 0;  // asked in vain
  std::uint64_t refills = 0;
  std::uint64_t refill_failures = 0;
};

// Table pages with their shadows, both touched beforehand: from visible VRAM up to `vram_bytes`,
// else host memory (S bit). Device thread. Every TablePage must be back before it goes.
class TablePool final : public TablePages {
 public:
  // Kept back for tables: clients' reservations count on all the rest of VRAM.
  static constexpr std::uint64_t kVramReserve = 16 * base::kMiB;
  struct Options {
    std::size_t low = 64;      // refill below
    std::size_t target = 256;  // up to
    std::uint64_t vram_bytes = kVramReserve;
  };
  TablePool(Reactor& reactor, Vram& vram, HostMemory& memory, DmaMapper& dma, Options options);
  ~TablePool() override;

  TablePage take() override;
  // Calls `then` on a later turn, when `pages` of them can be taken, with kNoMemory when they
  // cannot be had. For a plan that got kAgain (PageTable::tables_for_map() says how many).
  void when_ready(std::size_t pages, Done then);

  // Updates under way are never finished: pages may be out when the pool ends.
  void device_lost() { device_lost_ = true; }

  std::size_t ready() const { return ready_.size(); }
  const PoolCounters& counters() const { return counters_; }
  std::uint64_t vram_pages() const { return vram_pages_; }  // in use or ready
  std::uint64_t host_pages() const { return host_pages_; }

 private:
  struct Page {
    TablePlace place;
    std::unique_ptr<TablePage::Entries> shadow;
  };
  // 2 MiB of host memory cut into table pages.
  struct Slab {
    base::Mapping mapping;
    HostChunk chunk;
  };
  void give_back(const TablePlace& place, std::unique_ptr<TablePage::Entries> shadow) override;
  void refill();
  bool refill_from_vram();
  void refill_from_host();
  void map_slab(const HostBuffer& buffer);
  void add_slab(HostChunk chunk, base::Mapping mapping);
  void answer_waiting();
  void refill_failed(const base::Error& error);
  std::size_t wanted() const;

  Reactor& reactor_;
  Vram& vram_;
  HostMemory& memory_;
  DmaMapper& dma_;
  Options options_;
  std::vector<Page> ready_;
  std::vector<VramBlock> vram_blocks_;  // of all VRAM pages: once taken they stay table pages
  std::vector<Slab> slabs_;
  std::uint64_t vram_pages_ = 0;
  std::uint64_t host_pages_ = 0;
  std::uint64_t out_ = 0;
  bool device_lost_ = false;
  bool refilling_ = false;
  struct Waiter {
    std::size_t pages;
    Done then;
  };
  std::vector<Waiter> waiting_;
  PoolCounters counters_;
  Registration timer_;
  std::shared_ptr<TablePool*> self_;
};

// Host memory of 2 MiB each, its pages taken and mapped for the device. Device thread.
class HostChunkPool {
 public:
  HostChunkPool(Reactor& reactor, HostMemory& memory, DmaMapper& dma, std::size_t target);
  ~HostChunkPool();

  // An empty chunk when there is none (counted); refills in the background.
  HostChunk take();
  std::size_t ready() const { return ready_.size(); }
  const PoolCounters& counters() const { return counters_; }

 private:
  void refill();

  Reactor& reactor_;
  HostMemory& memory_;
  DmaMapper& dma_;
  std::size_t target_;
  std::vector<HostChunk> ready_;
  bool refilling_ = false;
  PoolCounters counters_;
  Registration timer_;
  std::shared_ptr<HostChunkPool*> self_;
};

}  // namespace gpuumd
