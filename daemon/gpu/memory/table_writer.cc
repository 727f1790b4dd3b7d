#include "daemon/gpu/memory/table_writer.h"

#include <atomic>
#include <utility>

#include "daemon/gpu/memory/entry_store.h"
#include "daemon/gpu/registers/hdp.h"

namespace gpuumd {
namespace {

// The memory of this process that shows [offset, offset + bytes) of the BAR, or null: trapped.
std::uint64_t* mapped(const vfio::Bar& bar, std::uint64_t offset, std::uint64_t bytes) {
  for (const vfio::MappedArea& area : bar.mapped()) {
    if (offset >= area.offset && base::fits(offset - area.offset, bytes, area.size))
      return reinterpret_cast<std::uint64_t*>(area.data + (offset - area.offset));
  }
  return nullptr;
}

base::VramOffset entry_place(const EntryRun& run) {
  return run.table.vram + run.first * sizeof(std::uint64_t);
}

std::uint64_t entries(const TableUpdate& update) {
  std::uint64_t count = 0;
  for (const auto* runs : {&update.fill, &update.link}) {
    for (const EntryRun& run : *runs) count += run.count;
  }
  return count;
}

}  // namespace

TableWriter::TableWriter(const VramMap& map, vfio::Bar& bar, const RegisterBlock& nbio,
                         TableEngine* engine)
    : map_(map),
      bar_(bar),
      nbio_(nbio),
      engine_(engine),
      self_(std::make_shared<TableWriter*>(this)) {}

TableWriter::~TableWriter() {
  *self_ = nullptr;
  for (Job& job : std::exchange(jobs_, {}))
    job.done(base::fail(base::Errc::kDeviceLost, "page-table update"));
}

void TableWriter::write(const TableUpdate& update, Done done) {
  ++counters_.updates;
  jobs_.push_back({update.fill, update.link, entries(update) >= kEngineEntries, std::move(done)});
  advance();
}

// Stages of the first job, until the engine has something to do.
void TableWriter::advance() {
  if (advancing_ || engine_busy_) return;  // a done-callback may write() again
  advancing_ = true;
  const auto self = self_;
  while (!jobs_.empty()) {
    Job& job = jobs_.front();
    auto writes = store_stage(at_link_ ? job.link : job.fill, job.large);
    if (!writes.empty()) {
      engine_busy_ = true;
      engine_->write(std::move(writes), [self = self_](base::Result<void> result) {
        if (*self != nullptr) (*self)->engine_done(std::move(result));
      });
      break;
    }
    at_link_ = !at_link_;
    if (at_link_) continue;  // fill is done: link next
    Done done = std::move(job.done);
    jobs_.pop_front();
    done({});
    if (*self == nullptr) return;  // the callback ended us
  }
  advancing_ = false;
}

void TableWriter::engine_done(base::Result<void> result) {
  engine_busy_ = false;
  // After a failed fill the link stage would point at tables of unknown content: leave it out.
  const bool last = at_link_ || !result;
  at_link_ = !last;
  if (last) {
    Done done = std::move(jobs_.front().done);
    jobs_.pop_front();
    const auto self = self_;
    done(result ? base::Result<void>()
                : base::fail_within("page-table update", std::move(result).error()));
    if (*self == nullptr) return;
  }
  advance();
}

bool TableWriter::for_engine(const EntryRun& run, bool large) const {
  if (run.table.kind == TablePlace::Kind::kHost) return false;
  const bool visible = map_.is_visible(entry_place(run), run.count * sizeof(std::uint64_t));
  assert(visible || engine_ != nullptr);  // the pool gives no other tables before the engine is up
  return engine_ != nullptr && (large || !visible);
}

std::vector<EngineWrite> TableWriter::store_stage(const std::vector<EntryRun>& runs, bool large) {
  std::vector<EngineWrite> writes;
  bool through_bar = false;
  for (const EntryRun& run : runs) {
    if (for_engine(run, large)) {
      counters_.engine_entries += run.count;
      writes.push_back({map_.mc(entry_place(run)), run.count, run.value, run.step});
      continue;
    }
    counters_.cpu_entries += run.count;
    through_bar |= run.table.kind == TablePlace::Kind::kVram;
    store(run);
  }
  // Walkers see stores to host memory in order; those through the BAR after the HDP flush.
  std::atomic_thread_fence(std::memory_order_release);
  if (through_bar) {
    ++counters_.hdp_flushes;
    flush_hdp(nbio_);
  }
  return writes;
}

void TableWriter::store(const EntryRun& run) {
  if (run.table.kind == TablePlace::Kind::kHost)
    return store_entries(run.table.host + run.first, run.count, run.value, run.step);
  const std::uint64_t offset = entry_place(run).value();
  if (auto* at = mapped(bar_, offset, run.count * sizeof(std::uint64_t)))
    return store_entries(at, run.count, run.value, run.step);
  for (unsigned i = 0; i < run.count; ++i)
    bar_.write64(offset + i * sizeof(std::uint64_t), run.value + i * run.step);
}

}  // namespace gpuumd
