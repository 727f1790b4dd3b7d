// The fault pipeline: retry faults of clients' VMs, from the interrupt ring to a freed CAM entry
// (FH-1, FH-2, FH-5). Device thread.
//
// Stages: drain, de-duplicate, resolve, populate (allocate and clear), write entries, acknowledge.
// An absent page that becomes present needs no flush, since invalid entries are never cached
// (docs/hardware/choices.md D15, D22); Vm::map_window() flushes when a table was merged. Each fault
// ends with its CAM entry freed, on every path (errata C3).
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "daemon/gpu/device/gpu.h"
#include "daemon/reactor/log_limit.h"
#include "daemon/session/histogram.h"
#include "daemon/session/vm.h"

namespace gpuumd {

enum class FaultStage : std::uint8_t {
  kDrain,        // in the soft ring -> taken out of it
  kResolve,      // -> VM, mapping and rights known, joined with others of its window
  kPopulate,     // -> memory is there and zeroed
  kWrite,        // -> entries are in memory
  kAcknowledge,  // -> CAM entry freed
  kTotal,
};
inline constexpr std::size_t kFaultStages = 6;

struct FaultCounters {
  std::uint64_t taken = 0;
  std::uint64_t serviced = 0;  // a page that was absent is there
  std::uint64_t joined = 0;    // of a window that was being serviced
  std::uint64_t present = 0;   // the page was there already
  std::uint64_t windows = 0;   // made present
  std::uint64_t pages = 0;     // made present
  std::uint64_t fatal = 0;
  std::uint64_t stray = 0;     // PASID of nobody, or of a VM that has another VMID; logged
  std::uint64_t timeouts = 0;  // not serviced by the deadline: fatal
};

class FaultPipeline {
 public:
  static constexpr unsigned kBatch = 256;     // faults a pass
  static constexpr unsigned kJobsPerVm = 16;  // windows in service; more wait behind other VMs'
  static constexpr unsigned kNoProgress =
      1000;  // faults on a page that is there: the device is off

  struct Fatal {
    base::GpuVa va;
    bool write = false;
    bool atomic = false;
    base::Errc reason = base::Errc::kFault;
  };

  // `find_vm` gives the VM of a PASID, alive or dead, or null. `fatal` is called after the VM was
  // killed. All must outlive this.
  FaultPipeline(Gpu& gpu, BufferStore& buffers, std::function<Vm*(base::Pasid)> find_vm,
                std::move_only_function<void(Vm&, const Fatal&)> fatal);
  ~FaultPipeline();

  void set_deadline(Duration deadline) { deadline_ = deadline; }

  // The soft ring has something.
  void arrived() {
    if (!arrived_) arrived_ = gpu_.reactor().now();
  }
  // From the device's poller. True when there was work.
  bool poll();
  // A final fault: fatal for its VM.
  void access_failed(const PageFault& fault);
  // Kills a VM for an access and tells its owner.
  void kill(Vm& vm, const Fatal& fatal);
  // Its faults are acknowledged unserviced; the VM is going away.
  void forget(Vm& vm);

  const FaultCounters& counters() const { return counters_; }
  const Histogram& stage(FaultStage stage) const {
    return stages_[static_cast<std::size_t>(stage)];
  }
  std::size_t in_service() const { return jobs_.size(); }

 private:
  struct Job;
  using JobRef = std::shared_ptr<Job>;

  void drain();
  // The VM that a fault is of; null, counted and logged, for a fault that is nobody's.
  Vm* owner(const PageFault& fault);
  bool start_waiting();
  void resolve(Vm& vm, RetryFault fault, TimePoint taken);
  void populate(JobRef job);
  void write(JobRef job);
  void finish(const JobRef& job, const base::Result<void>& result);
  void expire();
  void record(FaultStage stage, Duration took) {
    stages_[static_cast<std::size_t>(stage)].add(took);
  }

  struct Waiting {
    std::deque<std::pair<RetryFault, TimePoint>> faults;
    unsigned jobs = 0;
    base::GpuVa last_present;
    unsigned repeats = 0;
  };

  Gpu& gpu_;
  BufferStore& buffers_;
  std::function<Vm*(base::Pasid)> find_vm_;
  std::move_only_function<void(Vm&, const Fatal&)> fatal_;
  Duration deadline_ = std::chrono::seconds(1);
  std::optional<TimePoint> arrived_;
  std::map<Vm*, Waiting> waiting_;
  std::list<JobRef> jobs_;
  FaultCounters counters_;
  LogLimit stray_log_;
  std::array<Histogram, kFaultStages> stages_;
};

}  // namespace gpuumd
