#include "daemon/gpu/memory/pools.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace gpuumd {
namespace {

constexpr std::uint64_t kSlabBytes = 2 * base::kMiB;
// Shadows made in one turn: each costs a page fault of this process.
constexpr std::size_t kPagesPerTurn = 16;
constexpr Duration kRetryAfter = std::chrono::milliseconds(10);

std::unique_ptr<TablePage::Entries> make_shadow() {
  return std::make_unique<TablePage::Entries>();  // zeroed, hence touched
}

}  // namespace

TablePool::TablePool(Reactor& reactor, Vram& vram, HostMemory& memory, DmaMapper& dma,
                     Options options)
    : reactor_(reactor),
      vram_(vram),
      memory_(memory),
      dma_(dma),
      options_(options),
      self_(std::make_shared<TablePool*>(this)) {
  refill();
}

TablePool::~TablePool() {
  assert(out_ == 0 || device_lost_);
  close();
  *self_ = nullptr;
  for (Waiter& waiter : std::exchange(waiting_, {}))
    waiter.then(base::fail(base::Errc::kDeviceLost, "page-table pages"));
}

TablePage TablePool::take() {
  if (ready_.size() <= options_.low) refill();
  if (ready_.empty()) {
    ++counters_.empty;
    return {};
  }
  Page page = std::move(ready_.back());
  ready_.pop_back();
  ++counters_.taken;
  ++out_;
  return {*this, page.place, std::move(page.shadow)};
}

void TablePool::give_back(const TablePlace& place, std::unique_ptr<TablePage::Entries> shadow) {
  --out_;
  ready_.push_back({place, std::move(shadow)});
  if (!waiting_.empty()) refill();
}

void TablePool::when_ready(std::size_t pages, Done then) {
  waiting_.push_back({pages, std::move(then)});
  refill();
}

// How many should be ready: enough for the next who waits, on top of the usual.
std::size_t TablePool::wanted() const {
  std::size_t most = options_.target;
  for (const Waiter& waiter : waiting_) most = std::max(most, waiter.pages + options_.low);
  return most;
}

// Makes pages, a few a turn, until there are as many as wanted.
void TablePool::refill() {
  if (refilling_) return;
  refilling_ = true;
  ++counters_.refills;
  timer_ = reactor_.after(Duration::zero(), "table pool", [this] {
    timer_.cancel();
    refilling_ = false;
    if (ready_.size() < wanted() && !refill_from_vram()) return refill_from_host();
    answer_waiting();
    if (ready_.size() < wanted()) refill();
  });
}

bool TablePool::refill_from_vram() {
  for (std::size_t i = 0; i < kPagesPerTurn && ready_.size() < wanted(); ++i) {
    if ((vram_pages_ + 1) * base::kPageSize > options_.vram_bytes) return i != 0;
    auto block = vram_.allocate(base::kPageSize, VramZone::kVisible);
    if (!block) return i != 0;
    ready_.push_back({TablePlace::in_vram(block->offset()), make_shadow()});
    vram_blocks_.push_back(std::move(*block));
    ++vram_pages_;
  }
  return true;
}

// A slab of host memory: its pages, the device's mapping, ours.
void TablePool::refill_from_host() {
  refilling_ = true;
  memory_.create({.name = "gpuumd tables", .bytes = kSlabBytes},
                 [self = self_](base::Result<HostBuffer> buffer) {
                   if (*self == nullptr) return;
                   if (!buffer) return (*self)->refill_failed(buffer.error());
                   (*self)->map_slab(*buffer);
                 });
}

void TablePool::map_slab(const HostBuffer& buffer) {
  dma_.map(buffer, 0, kSlabBytes, vfio::Rights::kReadWrite,
           [self = self_](base::Result<HostChunk> chunk) {
             if (*self == nullptr) return;
             if (!chunk) return (*self)->refill_failed(chunk.error());
             const HostBuffer& buffer = chunk->buffer();
             (*self)->memory_.map_cpu(buffer, [self, chunk = std::move(*chunk)](
                                                  base::Result<base::Mapping> mapping) mutable {
               if (*self == nullptr) return;
               if (!mapping) return (*self)->refill_failed(mapping.error());
               (*self)->add_slab(std::move(chunk), std::move(*mapping));
             });
           });
}

void TablePool::add_slab(HostChunk chunk, base::Mapping mapping) {
  for (std::uint64_t at = 0; at < kSlabBytes; at += base::kPageSize) {
    ready_.push_back(
        {TablePlace::in_host(chunk.iova() + at, mapping.at<std::uint64_t>(at)), make_shadow()});
    ++host_pages_;
  }
  slabs_.push_back({std::move(mapping), std::move(chunk)});
  refilling_ = false;
  answer_waiting();
  if (ready_.size() < wanted()) refill();
}

void TablePool::answer_waiting() {
  // In order, so that a big one is not starved by small ones behind it. The pages are not set
  // aside: who takes too late gets kAgain again.
  std::size_t left = ready_.size();
  while (!waiting_.empty() && waiting_.front().pages <= left) {
    left -= waiting_.front().pages;
    Done then = std::move(waiting_.front().then);
    waiting_.erase(waiting_.begin());
    reactor_.post([then = std::move(then)]() mutable { then({}); });
  }
}

void TablePool::refill_failed(const base::Error& error) {
  ++counters_.refill_failures;
  for (Waiter& waiter : std::exchange(waiting_, {}))
    waiter.then(base::fail_within("page-table pages", error));
  // Not at once again: the shortage may pass.
  timer_ = reactor_.after(kRetryAfter, "table pool", [this] {
    timer_.cancel();
    refilling_ = false;
    if (ready_.size() < options_.low) refill();
  });
}

HostChunkPool::HostChunkPool(Reactor& reactor, HostMemory& memory, DmaMapper& dma,
                             std::size_t target)
    : reactor_(reactor),
      memory_(memory),
      dma_(dma),
      target_(target),
      self_(std::make_shared<HostChunkPool*>(this)) {
  refill();
}

HostChunkPool::~HostChunkPool() { *self_ = nullptr; }

HostChunk HostChunkPool::take() {
  HostChunk chunk;
  if (ready_.empty()) {
    ++counters_.empty;
  } else {
    chunk = std::move(ready_.back());
    ready_.pop_back();
    ++counters_.taken;
  }
  refill();
  return chunk;
}

void HostChunkPool::refill() {
  if (refilling_ || ready_.size() >= target_) return;
  refilling_ = true;
  ++counters_.refills;
  const auto ended = [](const std::shared_ptr<HostChunkPool*>& self, bool made) {
    HostChunkPool& pool = **self;
    if (made) {
      pool.refilling_ = false;
      return pool.refill();
    }
    ++pool.counters_.refill_failures;
    pool.timer_ = pool.reactor_.after(kRetryAfter, "host chunk pool", [&pool] {
      pool.timer_.cancel();
      pool.refilling_ = false;
      pool.refill();
    });
  };
  memory_.create({.name = "gpuumd chunk", .bytes = kSlabBytes},
                 [self = self_, ended](base::Result<HostBuffer> buffer) {
                   if (*self == nullptr) return;
                   if (!buffer) return ended(self, false);
                   (*self)->dma_.map(*buffer, 0, kSlabBytes, vfio::Rights::kReadWrite,
                                     [self, ended](base::Result<HostChunk> chunk) {
                                       if (*self == nullptr) return;
                                       if (!chunk) return ended(self, false);
                                       (*self)->ready_.push_back(std::move(*chunk));
                                       ended(self, true);
                                     });
                 });
}

}  // namespace gpuumd
