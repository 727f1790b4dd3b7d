#include "daemon/session/faults.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cassert>
#include <utility>

namespace gpuumd {

// One window of one mapping that is being made present, with all faults in it.
struct FaultPipeline::Job {
  Vm* vm;
  std::shared_ptr<Mapping> mapping;
  base::GpuVa first;
  base::GpuVa end;
  std::uint64_t offset;  // of `first` in the buffer
  std::vector<RetryFault> faults;
  TimePoint taken;
  TimePoint stage;  // when the present stage began
  bool finished = false;
};

FaultPipeline::FaultPipeline(Gpu& gpu, BufferStore& buffers,
                             std::function<Vm*(base::Pasid)> find_vm,
                             std::move_only_function<void(Vm&, const Fatal&)> fatal)
    : gpu_(gpu), buffers_(buffers), find_vm_(std::move(find_vm)), fatal_(std::move(fatal)) {}

FaultPipeline::~FaultPipeline() = default;

bool FaultPipeline::poll() {
  if (gpu_.interrupts().retry_faults().queued() == 0 && waiting_.empty() && jobs_.empty())
    return false;
  drain();
  const bool any = start_waiting();
  expire();
  return any;
}

// Drain and de-duplicate against other spaces: each fault goes to its own VM's line, so that one VM
// with many faults does not hold up the others.
void FaultPipeline::drain() {
  const auto now = gpu_.reactor().now();
  for (unsigned n = 0; n < kBatch; ++n) {
    auto fault = gpu_.interrupts().retry_faults().next();
    if (!fault) break;
    ++counters_.taken;
    Vm* vm = owner(fault->fault());
    if (vm == nullptr) continue;  // acknowledged as it goes
    if (arrived_) record(FaultStage::kDrain, now - *arrived_);
    waiting_[vm].faults.emplace_back(std::move(*fault), now);
  }
  if (gpu_.interrupts().retry_faults().queued() == 0) arrived_.reset();
}

// A fault belongs to its PASID; one that names another VMID is of a time that is over (FH-1).
Vm* FaultPipeline::owner(const PageFault& fault) {
  Vm* vm = fault.hub == HubKind::kGfxhub ? find_vm_(fault.pasid) : nullptr;
  if (vm != nullptr && vm->vmid() == fault.vmid) return vm;
  ++counters_.stray;
  if (const auto held_back = stray_log_.admit(gpu_.reactor().now()))
    spdlog::warn("{}: {} of nobody on {} {}, VMID {}, PASID {}, at {:#x} ({} more before)",
                 gpu_.identity().name, fault.retry ? "retry fault" : "fault",
                 fault.hub == HubKind::kGfxhub ? "GFXHUB" : "MMHUB", fault.instance,
                 fault.vmid.value(), fault.pasid.value(), fault.va.value(), *held_back);
  return nullptr;
}

bool FaultPipeline::start_waiting() {
  bool any = false;
  // One a VM and round, until nobody can go on.
  for (bool more = true; more;) {
    more = false;
    std::vector<Vm*> vms;
    for (auto& [vm, line] : waiting_)
      if (!line.faults.empty() && line.jobs < kJobsPerVm) vms.push_back(vm);
    for (auto* vm : vms) {
      const auto it = waiting_.find(vm);
      if (it == waiting_.end() || it->second.faults.empty()) continue;
      auto [fault, taken] = std::move(it->second.faults.front());
      it->second.faults.pop_front();
      resolve(*vm, std::move(fault), taken);
      any = more = true;
    }
  }
  std::erase_if(waiting_, [](const auto& entry) {
    return entry.second.faults.empty() && entry.second.jobs == 0 && entry.second.repeats == 0;
  });
  return any;
}

void FaultPipeline::resolve(Vm& vm, RetryFault fault, TimePoint taken) {
  if (vm.dead()) return;  // the access runs out against the dead tree
  const auto& what = fault.fault();
  const auto found = vm.find(what.va);
  Fatal fatal{what.va, what.write, what.atomic(), base::Errc::kFault};
  if (!found) {
    fatal.reason = vm.missing_reason(what.va);
    return kill(vm, fatal);
  }
  const auto& mapping = found->piece.mapping;
  const bool allowed = (!what.write || mapping->rights.write) &&
                       (!what.read || mapping->rights.read) && !what.execute;
  if (!allowed) {
    fatal.reason = base::Errc::kPermission;
    return kill(vm, fatal);
  }
  if (const auto gone = mapping->buffer->gone()) {
    fatal.reason = *gone;
    return kill(vm, fatal);
  }
  auto& line = waiting_[&vm];
  if (vm.mapped(what.va, what.write)) {
    // It was made present since; or the device faults on a page that is there, which must not
    // become an endless retry.
    ++counters_.present;
    line.repeats = line.last_present == what.va ? line.repeats + 1 : 1;
    line.last_present = what.va;
    if (line.repeats > kNoProgress) kill(vm, fatal);
    return;
  }
  line.repeats = 0;
  if (!mapping->on_fault) {
    // Bound, and not written yet: the bind under way writes it. Acknowledged; the access tries
    // again.
    return;
  }
  const auto joined = std::ranges::find_if(jobs_, [&](const JobRef& job) {
    return !job->finished && job->vm == &vm && job->mapping == mapping && job->first <= what.va &&
           what.va < job->end;
  });
  if (joined != jobs_.end()) {
    ++counters_.joined;
    (*joined)->faults.push_back(std::move(fault));
    return;
  }
  auto job = std::make_shared<Job>();
  job->vm = &vm;
  job->mapping = mapping;
  // The window, clipped to the mapping (PFH-3). Only the faulting page is mandatory (FH-5), and
  // here all of the window comes from the same place.
  const base::GpuVa start(base::align_down(what.va.value(), mapping->window));
  job->first = std::max(start, found->first);
  job->end = std::min(start + mapping->window, found->end);
  job->offset = found->piece.offset + (job->first - found->first);
  job->faults.push_back(std::move(fault));
  job->taken = taken;
  job->stage = gpu_.reactor().now();
  record(FaultStage::kResolve, job->stage - taken);
  ++line.jobs;
  jobs_.push_back(job);
  populate(std::move(job));
}

void FaultPipeline::populate(JobRef job) {
  const auto buffer = job->mapping->buffer;
  buffers_.make_present(buffer, job->offset, job->end - job->first,
                        [this, job](base::Result<void> result) {
                          if (!result || job->finished) return finish(job, result);
                          const auto now = gpu_.reactor().now();
                          record(FaultStage::kPopulate, now - job->stage);
                          job->stage = now;
                          write(job);
                        });
}

void FaultPipeline::write(JobRef job) {
  if (job->finished) return;
  if (job->vm->dead()) return finish(job, {});
  // map_window() answers from inside when it cannot plan.
  job->vm->map_window(job->mapping, job->first, job->end, [this, job](base::Result<void> result) {
    if (!result && result.error().code == base::Errc::kAgain) {
      gpu_.table_pages().when_ready(
          8, [this, job](base::Result<void> ready) { ready ? write(job) : finish(job, ready); });
      return;
    }
    // Unbound meanwhile: acknowledged, and what faults again finds nothing there.
    if (!result && result.error().code == base::Errc::kNotFound) return finish(job, {});
    if (result) {
      const auto now = gpu_.reactor().now();
      record(FaultStage::kWrite, now - job->stage);
      job->stage = now;
      ++counters_.windows;
      counters_.pages += (job->end - job->first) / base::kPageSize;
      counters_.serviced += job->faults.size();
    }
    finish(job, result);
  });
}

void FaultPipeline::finish(const JobRef& job, const base::Result<void>& result) {
  if (std::exchange(job->finished, true)) return;
  auto faults = std::exchange(job->faults, {});
  const auto va = faults.empty() ? job->first : faults.front().fault().va;
  for (auto& fault : faults) fault.acknowledge();
  const auto now = gpu_.reactor().now();
  record(FaultStage::kAcknowledge, now - job->stage);
  record(FaultStage::kTotal, now - job->taken);
  std::erase(jobs_, job);
  auto* vm = job->vm;
  if (const auto line = waiting_.find(vm); line != waiting_.end()) --line->second.jobs;
  if (!result && !vm->dead()) kill(*vm, {va, false, false, result.error().code});
}

// A fault that is not serviced by its deadline is fatal: a lane must not be held for ever.
void FaultPipeline::expire() {
  const auto now = gpu_.reactor().now();
  std::vector<JobRef> late;
  for (const auto& job : jobs_)
    if (now - job->taken > deadline_) late.push_back(job);
  for (const auto& job : late) {
    if (job->finished) continue;
    ++counters_.timeouts;
    finish(job, base::fail(base::Errc::kTimeout, "page fault not serviced in time"));
  }
}

void FaultPipeline::access_failed(const PageFault& fault) {
  Vm* vm = owner(fault);
  if (vm == nullptr || vm->dead()) return;
  Fatal fatal{fault.va, fault.write, fault.atomic(), base::Errc::kFault};
  const auto found = vm->find(fault.va);
  if (!found)
    fatal.reason = vm->missing_reason(fault.va);
  else if (fault.write && !found->piece.mapping->rights.write)
    fatal.reason = base::Errc::kPermission;
  else if (const auto gone = found->piece.mapping->buffer->gone())
    fatal.reason = *gone;
  kill(*vm, fatal);
}

void FaultPipeline::kill(Vm& vm, const Fatal& fatal) {
  if (vm.dead()) return;
  ++counters_.fatal;
  // What waits in the CAM for this VM is freed when no hub uses its old tree any more: then the
  // accesses end against the dead one instead of faulting again.
  auto held = std::make_shared<std::vector<RetryFault>>();
  if (const auto line = waiting_.find(&vm); line != waiting_.end())
    for (auto& [fault, taken] : std::exchange(line->second.faults, {}))
      held->push_back(std::move(fault));
  for (const auto& job : jobs_)
    if (job->vm == &vm)
      for (auto& fault : std::exchange(job->faults, {})) held->push_back(std::move(fault));
  vm.kill(fatal.reason, [held] { held->clear(); });
  fatal_(vm, fatal);
}

void FaultPipeline::forget(Vm& vm) {
  std::vector<JobRef> mine;
  for (const auto& job : jobs_)
    if (job->vm == &vm) mine.push_back(job);
  for (const auto& job : mine) finish(job, {});
  waiting_.erase(&vm);
}

}  // namespace gpuumd
