#include "daemon/session/npa_space.h"

#include <memory>
#include <utility>

namespace gpuumd {
namespace {

constexpr base::Vmid kNpaVmid{vm_hub::kNpaContext};

base::GpuVa address_of(const fabric::NpaRange& range) {
  return base::GpuVa(range.page * base::kPageSize);
}

}  // namespace

void NpaSpace::set_roots(Pde root) {
  for (const auto& hub : gpu_.topology().mmhubs) {
    set_fault_mode(hub, kNpaVmid, false);  // a peer's access is answered, never held
    set_root(hub, kNpaVmid, root);
  }
}

void NpaSpace::enable(bool on, Done done) {
  if (!on) {
    set_roots(Pde(0));
    gpu_.flushes().submit(FlushTarget::npa(), FlushType::kHeavy, {},
                          [this, done = std::move(done)](base::Result<void> flushed) mutable {
                            if (flushed) table_.reset();
                            done(std::move(flushed));
                          });
    return;
  }
  auto update = std::make_shared<TableUpdate>();
  auto table =
      PageTable::create(gpu_.pte_format(), gpu_.table_pages(), Unmapped::kNoRetry, *update);
  if (!table) return done(std::unexpected(table.error()));
  table_.emplace(std::move(*table));
  gpu_.table_writer().write(
      *update, [this, update, done = std::move(done)](base::Result<void> written) mutable {
        if (!written) return done(std::move(written));
        set_roots(table_->root());
        gpu_.flushes().submit(FlushTarget::npa(), FlushType::kHeavy, {}, std::move(done));
      });
}

void NpaSpace::update(const fabric::UpdateNpa& what, Done done) {
  jobs_.push_back({what, std::move(done)});
  next();
}

base::Result<void> NpaSpace::change(const fabric::UpdateNpa& what, TableUpdate& update) {
  if (!table_) return base::fail(base::Errc::kUnsupported, "NPA space is off");
  const auto at = address_of(what.range);
  const auto bytes = what.range.pages * base::kPageSize;
  if (what.entry == fabric::NpaEntry::kGone) {
    auto plan = table_->plan_unmap(at, bytes);
    if (!plan) return std::unexpected(plan.error());
    table_->unmap(std::move(*plan), update);
    return {};
  }
  std::vector<PhysRun> runs;
  for (const auto& run : what.runs) runs.push_back(PhysRun::vram(run.at, run.pages));
  // X is "answer retry" in this VM.
  const PteFlags flags{
      .read = true, .write = true, .execute = what.entry == fabric::NpaEntry::kRetry};
  auto plan = table_->plan_map(at, std::move(runs), flags);
  if (!plan) return std::unexpected(plan.error());
  table_->map(std::move(*plan), update);
  return {};
}

void NpaSpace::next() {
  if (busy_ || jobs_.empty()) return;
  busy_ = true;
  auto update = std::make_shared<TableUpdate>();
  if (auto changed = change(jobs_.front().what, *update); !changed) {
    if (changed.error().code != base::Errc::kAgain) return finish(std::move(changed));
    gpu_.table_pages().when_ready(16, [this](base::Result<void> ready) {
      if (!ready) return finish(std::move(ready));
      busy_ = false;
      next();
    });
    return;
  }
  gpu_.table_writer().write(*update, [this, update](base::Result<void> written) {
    if (!written) return finish(std::move(written));
    const auto asked = jobs_.front().what.flush;
    if (asked == fabric::NpaFlush::kNone && !update->needs_flush()) return finish({});
    const auto type = asked == fabric::NpaFlush::kLight ? FlushType::kLight : FlushType::kHeavy;
    gpu_.flushes().submit(FlushTarget::npa(), type, update->stale,
                          [this, update](base::Result<void> flushed) {
                            if (flushed && table_) table_->flushed(std::move(*update));
                            finish(std::move(flushed));
                          });
  });
}

void NpaSpace::finish(base::Result<void> result) {
  auto job = std::move(jobs_.front());
  jobs_.pop_front();
  busy_ = false;
  job.done(std::move(result));
  next();
}

}  // namespace gpuumd
