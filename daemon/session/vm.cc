#include "daemon/session/vm.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "daemon/gpu/registers/describe.h"
#include "daemon/session/join.h"

namespace gpuumd {
namespace {

// Enough table pages for any plan that once found none: asked of the pool before the next try.
constexpr std::size_t kPlanPages = 32;

std::unexpected<base::Error> refuse(const BindStep& step, base::Errc code, std::string text) {
  return base::fail(code, (step.map ? "map of " : "unmap of ") + std::to_string(step.bytes) +
                              " bytes at " + hex(step.va.value(), 12) + ": " + std::move(text));
}

}  // namespace

// ---- creation ----

Vm::Vm(Context context, ObjectId id, bool faults)
    : context_(context), id_(id), faults_(faults), self_(std::make_shared<Vm*>(this)) {}

Vm::~Vm() {
  *self_ = nullptr;
  for (auto& use : reserved_uses_) use.cleared();
  for (auto& use : reserved_uses_) use.flushed();
}

void Vm::create(Context context, ObjectId id, bool faults, FencePage fences,
                DoneWith<std::unique_ptr<Vm>> done) {
  std::unique_ptr<Vm> self(new Vm(context, id, faults));
  auto& vm = *self;
  context.gpu.host_memory().create(
      {"gpuumd-ib", IbWindow::kBytes, false},
      [&vm, fences, self = std::move(self),
       done = std::move(done)](base::Result<HostBuffer> made) mutable {
        if (!made) return done(std::unexpected(made.error()));
        vm.ib_buffer_ = *made;
        vm.context_.gpu.host_memory().map_cpu(
            *made, [&vm, fences, self = std::move(self),
                    done = std::move(done)](base::Result<base::Mapping> cpu) mutable {
              if (!cpu) return done(std::unexpected(cpu.error()));
              vm.ib_cpu_ = std::move(*cpu);
              vm.map_ibs(fences, std::move(done), std::move(self));
            });
      });
}

void Vm::map_ibs(FencePage fences, DoneWith<std::unique_ptr<Vm>> done, std::unique_ptr<Vm> self) {
  // The device only reads IBs.
  context_.gpu.dma().map_all(ib_buffer_, vfio::Rights::kRead,
                             [this, fences, self = std::move(self), done = std::move(done)](
                                 base::Result<std::vector<HostChunk>> chunks) mutable {
                               if (!chunks) return done(std::unexpected(chunks.error()));
                               ib_chunks_ = std::move(*chunks);
                               build_reserved(fences, std::move(done), std::move(self));
                             });
}

base::Result<void> Vm::map_reserved(PageTable& table, bool fences_too, TableUpdate& update) {
  const auto map = [&](std::vector<HostChunk>& chunks, base::GpuVa at,
                       PteFlags flags) -> base::Result<void> {
    for (auto& chunk : chunks) {
      auto plan = table.plan_map(at + chunk.offset(), {chunk.run()}, flags);
      if (!plan) return std::unexpected(plan.error());
      reserved_uses_.emplace_back(chunk);
      table.map(std::move(*plan), update);
    }
    return {};
  };
  if (auto mapped = map(ib_chunks_, kIbVa, {.read = true}); !mapped) return mapped;
  if (!fences_too) return {};
  return map(*fence_chunks_, kFenceVa, {.read = true, .write = true});
}

void Vm::build_reserved(FencePage fences, DoneWith<std::unique_ptr<Vm>> done,
                        std::unique_ptr<Vm> self) {
  fence_chunks_ = fences.chunks;
  auto& gpu = context_.gpu;
  auto update = std::make_shared<TableUpdate>();
  const auto build = [&]() -> base::Result<void> {
    auto table = PageTable::create(gpu.pte_format(), gpu.table_pages(),
                                   faults_ ? Unmapped::kRetry : Unmapped::kNoRetry, *update);
    if (!table) return std::unexpected(table.error());
    auto dead = PageTable::create(gpu.pte_format(), gpu.table_pages(), Unmapped::kNoRetry, *update);
    if (!dead) return std::unexpected(dead.error());
    if (auto mapped = map_reserved(*table, true, *update); !mapped) return mapped;
    if (auto mapped = map_reserved(*dead, false, *update); !mapped) return mapped;
    table_.emplace(std::move(*table));
    dead_table_.emplace(std::move(*dead));
    return {};
  };
  auto built = build();
  if (!built) {
    for (auto& use : reserved_uses_) use.cleared();  // nothing was written
    for (auto& use : reserved_uses_) use.flushed();
    reserved_uses_.clear();
    if (built.error().code != base::Errc::kAgain) return done(std::unexpected(built.error()));
    gpu.table_pages().when_ready(kPlanPages,
                                 [this, fences, done = std::move(done),
                                  self = std::move(self)](base::Result<void> ready) mutable {
                                   if (!ready) return done(std::unexpected(ready.error()));
                                   build_reserved(fences, std::move(done), std::move(self));
                                 });
    return;
  }
  gpu.table_writer().write(*update, [this, update, done = std::move(done),
                                     self = std::move(self)](base::Result<void> written) mutable {
    if (!written) return done(std::unexpected(written.error()));
    bind_vmid(std::move(self), std::move(done));
  });
}

void Vm::bind_vmid(std::unique_ptr<Vm> self, DoneWith<std::unique_ptr<Vm>> done) {
  context_.gpu.vmids().bind(
      table_->root(), faults_,
      [this, self = std::move(self),
       done = std::move(done)](base::Result<VmidPool::Binding> bound) mutable {
        if (!bound) return done(std::unexpected(bound.error()));
        binding_ = *bound;
        work_ = &context_.scheduler.add_vm(id_, binding_.vmid, IbWindow{ib_cpu_.data(), kIbVa});
        done(std::move(self));
      });
}

// ---- binds ----

struct Vm::Change {
  std::vector<BindStep> steps;
  Done done;
  Buffer* unmap_all = nullptr;  // unmap_buffer(): its pieces become steps when its turn comes
  base::Errc missing = base::Errc::kFault;
  std::vector<PageTable::MapPlan> maps;      // of the eager maps, in order
  std::vector<PageTable::UnmapPlan> unmaps;  // in order
  std::size_t next = 0;                      // step
  std::size_t next_map = 0;
  std::size_t next_unmap = 0;
};

void Vm::bind(std::vector<BindStep> steps, Done done) {
  auto change = std::make_shared<Change>();
  change->steps = std::move(steps);
  change->done = std::move(done);
  changes_.push_back(std::move(change));
  start_next();
}

void Vm::unmap_buffer(Buffer& buffer, base::Errc why, Done done) {
  if (ended_) return unmaps_at_end_.push_back(std::move(done));
  auto change = std::make_shared<Change>();
  change->unmap_all = &buffer;
  change->missing = why;
  change->done = std::move(done);
  changes_.push_back(std::move(change));
  start_next();
}

void Vm::start_next() {
  if (pending_ > windows_ || changes_.empty() || ended_) return;
  auto change = std::move(changes_.front());
  changes_.pop_front();
  ++pending_;
  if (change->unmap_all != nullptr)
    pieces_.for_each([&](base::GpuVa first, base::GpuVa end, const MappedPiece& piece) {
      if (piece.mapping->buffer.get() != change->unmap_all) return;
      BindStep& step = change->steps.emplace_back();
      step.va = first;
      step.bytes = end - first;
    });
  else if (dead_)
    return finish(change, base::fail(*dead_, "the VM has died"));
  if (auto valid = validate(*change); !valid) return finish(change, std::move(valid));
  prepare(std::move(change));
}

base::Result<void> Vm::validate(const Change& change) const {
  base::IntervalSet<base::GpuVa> added, removed;
  for (const auto& step : change.steps) {
    const auto first = step.va, end = step.va + step.bytes;
    if (first < kFirstVa || kEndVa < end || step.bytes == 0)
      return refuse(step, base::Errc::kOutOfRange, "outside the address space");
    // What of the range is mapped now, with the steps before done.
    base::IntervalSet<base::GpuVa> covered;
    pieces_.for_each(first, end, [&](base::GpuVa a, base::GpuVa b, const MappedPiece&) {
      covered.insert(std::max(a, first), std::min(b, end));
    });
    removed.for_each(first, end, [&](base::GpuVa a, base::GpuVa b) {
      covered.erase(std::max(a, first), std::min(b, end));
    });
    added.for_each(first, end, [&](base::GpuVa a, base::GpuVa b) {
      covered.insert(std::max(a, first), std::min(b, end));
    });
    if (!step.map) {
      if (covered.size() != step.bytes)
        return refuse(step, base::Errc::kNotFound, "range is not mapped, or not all of it");
      added.erase(first, end);
      removed.insert(first, end);
      continue;
    }
    if (!covered.empty()) return refuse(step, base::Errc::kExists, "range is mapped already");
    if (step.on_fault && !faults_)
      return refuse(step, base::Errc::kUnsupported, "on fault in a VM made without faults");
    if (!base::fits(step.offset, step.bytes, step.buffer->bytes()))
      return refuse(step, base::Errc::kOutOfRange, "past the end of the buffer");
    if (const auto gone = step.buffer->gone()) return refuse(step, *gone, "buffer");
    added.insert(first, end);
  }
  return {};
}

// Eager maps need their memory first.
void Vm::prepare(std::shared_ptr<Change> change) {
  Join all([this, change](base::Result<void> result) {
    if (!result) return finish(change, std::move(result));
    commit(change);
  });
  for (const auto& step : change->steps)
    if (step.map && !step.on_fault)
      context_.buffers.make_present(step.buffer, step.offset, step.bytes, all.part());
  all.end();
}

base::Result<void> Vm::reserve(Change& change) {
  change.maps.clear();
  change.unmaps.clear();
  for (const auto& step : change.steps) {
    if (!step.map) {
      auto plan = table_->plan_unmap(step.va, step.bytes);
      if (!plan) return std::unexpected(plan.error());
      change.unmaps.push_back(std::move(*plan));
    } else if (!step.on_fault) {
      if (const auto gone = step.buffer->gone()) return refuse(step, *gone, "buffer");
      auto plan =
          table_->plan_map(step.va, step.buffer->runs(step.offset, step.bytes), step.rights);
      if (!plan) return std::unexpected(plan.error());
      change.maps.push_back(std::move(*plan));
    }
  }
  return {};
}

void Vm::commit(std::shared_ptr<Change> change) {
  auto reserved = reserve(*change);
  if (!reserved && reserved.error().code == base::Errc::kAgain) {
    context_.gpu.table_pages().when_ready(kPlanPages,
                                          [this, change](base::Result<void> ready) mutable {
                                            if (!ready) return finish(change, std::move(ready));
                                            commit(std::move(change));
                                          });
    return;
  }
  if (!reserved) return finish(change, std::move(reserved));
  write_group(std::move(change));
}

// Does as many steps as one flush can serve: a map over what an earlier step of the group unmapped
// must wait for that flush (INV-5).
void Vm::write_group(std::shared_ptr<Change> change) {
  auto update = std::make_shared<TableUpdate>();
  auto removed = std::make_shared<std::vector<MappedPiece>>();
  for (; change->next < change->steps.size(); ++change->next) {
    auto& step = change->steps[change->next];
    const auto end = step.va + step.bytes;
    if (!step.map) {
      table_->unmap(std::move(change->unmaps[change->next_unmap++]), *update);
      pieces_.erase(step.va, end, [&](MappingMap::Interval&& piece) {
        removed->push_back(std::move(piece.value));
      });
      if (change->unmap_all != nullptr) missing_.assign(step.va, end, change->missing);
      continue;
    }
    if (update->stale.overlaps(step.va, end)) break;
    auto mapping = std::make_shared<Mapping>(step.buffer, step.rights, step.on_fault, step.window,
                                             next_generation_++);
    for (auto* chunk : step.buffer->host_chunks(step.offset, step.bytes))
      mapping->dma_uses.emplace_back(*chunk);
    if (!step.on_fault) table_->map(std::move(change->maps[change->next_map++]), *update);
    missing_.erase(step.va, end);
    pieces_.insert(step.va, end, MappedPiece{std::move(mapping), step.offset});
  }
  // `removed` lives until the flush is acknowledged: with its last piece a buffer's memory may go
  // to somebody else.
  context_.gpu.table_writer().write(
      *update, [this, change, update, removed](base::Result<void> written) {
        if (!written) return finish(change, std::move(written));
        const auto go_on = [this, change, update, removed](base::Result<void> flushed) {
          if (!flushed) return finish(change, std::move(flushed));
          table_->flushed(std::move(*update));
          removed->clear();
          if (change->next < change->steps.size()) return write_group(change);
          finish(change, {});
        };
        if (!update->needs_flush()) return go_on({});
        context_.gpu.flushes().submit(FlushTarget::client(binding_.vmid), FlushType::kHeavy,
                                      update->stale, go_on);
      });
}

void Vm::finish(std::shared_ptr<Change> change, base::Result<void> result) {
  auto done = std::move(change->done);
  change->steps.clear();
  --pending_;
  const auto self = self_;
  done(std::move(result));
  if (*self == nullptr) return;
  start_next();
  end_if_quiet();
}

// ---- what the fault pipeline asks ----

std::optional<Vm::Found> Vm::find(base::GpuVa va) const {
  Found found;
  const auto* piece = pieces_.find(va, &found.first, &found.end);
  if (piece == nullptr) return std::nullopt;
  found.piece = *piece;
  return found;
}

base::Errc Vm::missing_reason(base::GpuVa va) const {
  const auto* why = missing_.find(va);
  return why != nullptr ? *why : base::Errc::kFault;
}

bool Vm::mapped(base::GpuVa va, bool write) const {
  const auto leaf = table_->lookup(va);
  if (!leaf) return false;
  return write ? leaf->entry.get<PTE::WRITEABLE>() : leaf->entry.get<PTE::READABLE>();
}

void Vm::map_window(const std::shared_ptr<Mapping>& mapping, base::GpuVa first, base::GpuVa end,
                    Done done) {
  if (const auto gone = mapping->buffer->gone()) return done(base::fail(*gone, "buffer"));
  std::vector<PageTable::MapPlan> plans;
  for (auto at = first; at < end;) {
    const auto found = find(at);
    if (!found || found->piece.mapping != mapping)
      return done(base::fail(base::Errc::kNotFound, "mapping went away"));
    const auto limit = std::min(end, found->end);
    if (const auto leaf = table_->lookup(at)) {
      at = std::min(leaf->first + leaf->bytes, end);
      continue;
    }
    auto stop = at + base::kPageSize;
    while (stop < limit && !table_->lookup(stop)) stop += base::kPageSize;
    const auto offset = found->piece.offset + (at - found->first);
    auto plan = table_->plan_map(at, mapping->buffer->runs(offset, stop - at), mapping->rights);
    if (!plan) return done(std::unexpected(plan.error()));
    plans.push_back(std::move(*plan));
    at = stop;
  }
  auto update = std::make_shared<TableUpdate>();
  for (auto& plan : plans) table_->map(std::move(plan), *update);
  ++pending_;
  ++windows_;
  auto end_window = [this, mapping, done = std::move(done)](base::Result<void> result) mutable {
    --pending_;
    --windows_;
    done(std::move(result));
    end_if_quiet();
  };
  context_.gpu.table_writer().write(*update, [this, update, end_window = std::move(end_window)](
                                                 base::Result<void> written) mutable {
    // Absent pages need no flush, but a table that became full was merged into one leaf of its
    // parent, and hubs may still go through the table.
    if (!written || !update->needs_flush()) return end_window(std::move(written));
    context_.gpu.flushes().submit(
        FlushTarget::client(binding_.vmid), FlushType::kHeavy, update->stale,
        [this, update, end_window = std::move(end_window)](base::Result<void> flushed) mutable {
          if (flushed) table_->flushed(std::move(*update));
          end_window(std::move(flushed));
        });
  });
}

std::uint64_t Vm::mapped_bytes() const {
  std::uint64_t bytes = 0;
  pieces_.for_each(
      [&](base::GpuVa first, base::GpuVa end, const MappedPiece&) { bytes += end - first; });
  return bytes;
}

// ---- the end ----

void Vm::kill(base::Errc why, std::move_only_function<void()> out_of_reach) {
  if (dead_) {
    if (out_of_reach) out_of_reach();
    return;
  }
  dead_ = why;
  context_.gpu.vmids().replace_root(
      binding_.vmid, dead_table_->root(),
      [out_of_reach = std::move(out_of_reach)](base::Result<void>) mutable {
        // A hub that does not answer has lost the device, and nothing is reached any more.
        if (out_of_reach) out_of_reach();
      });
  context_.scheduler.kill_vm(*work_, why, [this] {
    drained_ = true;
    end_if_quiet();
  });
}

void Vm::end(std::move_only_function<void()> done) {
  assert(!ended_);
  ended_ = true;
  end_done_ = std::move(done);
  for (auto& change : std::exchange(changes_, {})) {
    if (change->unmap_all != nullptr)
      unmaps_at_end_.push_back(std::move(change->done));
    else
      change->done(base::fail(base::Errc::kNotFound, "the VM is going"));
  }
  kill(base::Errc::kNotFound, {});
  context_.gpu.reactor().post([this, self = self_] {
    if (*self != nullptr) end_if_quiet();
  });
}

void Vm::end_if_quiet() {
  if (!ended_ || !drained_ || pending_ > 0 || !end_done_) return;
  release(std::exchange(end_done_, nullptr));
}

void Vm::release(std::move_only_function<void()> done) {
  context_.gpu.vmids().release(binding_,
                               [this, done = std::move(done)](base::Result<void> flushed) mutable {
                                 context_.scheduler.remove_vm(*work_);
                                 work_ = nullptr;
                                 pieces_.clear();
                                 for (auto& unmapped : std::exchange(unmaps_at_end_, {}))
                                   unmapped(flushed);
                                 done();
                               });
}

}  // namespace gpuumd
