// One GPU, brought up: the parts of daemon/gpu put together in one order, with one owner. What is
// above (daemon/session) sees clients and objects; what is here sees hardware. Device thread.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "daemon/gpu/bringup/bring_up.h"
#include "daemon/gpu/bringup/psp.h"
#include "daemon/gpu/bringup/steps.h"
#include "daemon/gpu/device/engine_set.h"
#include "daemon/gpu/device/permanent_memory.h"
#include "daemon/gpu/device/vmid_pool.h"
#include "daemon/gpu/engine/copy_engine.h"
#include "daemon/gpu/engine/lsdma.h"
#include "daemon/gpu/interrupt/interrupt_controller.h"
#include "daemon/gpu/interrupt/interrupt_line.h"
#include "daemon/gpu/memory/flush_queue.h"
#include "daemon/gpu/memory/gart.h"
#include "daemon/gpu/memory/host_memory.h"
#include "daemon/gpu/memory/hub_setup.h"
#include "daemon/gpu/memory/iova_space.h"
#include "daemon/gpu/memory/memory_worker.h"
#include "daemon/gpu/memory/pools.h"
#include "daemon/gpu/memory/table_writer.h"
#include "daemon/gpu/memory/vram.h"
#include "daemon/reactor/reactor.h"
#include "vfio/pci_device.h"

namespace gpuumd {

class SdmaTableEngine;

// Why a hardware queue of a lane stopped by itself (docs/hardware/sdma.md, "Remote accesses";
// docs/hardware/choices.md D14, D21).
struct QueueStop {
  unsigned engine = 0;  // of EngineSet::lane_engines
  unsigned queue = 0;
  base::Errc reason = base::Errc::kDeviceError;  // kFault, kRefused, kPeerLost, kDeviceError
  bool bus_error = false;                        // the host bus, i.e. its IOMMU, refused an access
  std::uint64_t page = 0;  // kRefused, kPeerLost: NPA >> 12; bus error: IOVA >> 12
};

// What the hardware tells those above. The first three are called while the interrupt ring is
// drained (InterruptController::poll()), the others on a turn of their own; none from inside a call
// to Gpu.
class GpuEvents {
 public:
  virtual ~GpuEvents() = default;
  // Gpu::interrupts().retry_faults() has something.
  virtual void retry_faults_arrived() = 0;
  // An access has failed for good; the engine went on against the default page.
  virtual void access_failed(const PageFault& fault) = 0;
  virtual void queue_stopped(const QueueStop& stop) = 0;
  // A message of the fabric: `sender` as the firmware put it into the vector.
  virtual void fabric_message(std::uint32_t sender, const std::array<std::uint32_t, 4>& dwords) = 0;
  virtual void security_request(const psp::Request& request) = 0;
  // Once: the device does not answer, answers nonsense, or a hub or the daemon's engine hangs.
  virtual void device_lost(const base::Error& why) = 0;
};

struct GpuOptions {
  std::uint64_t seed = 0;  // where IOVAs start
  std::size_t table_pages = 256;
  std::size_t host_chunks = 4;
};

class Gpu {
 public:
  // `worker` is the reactor's; it and `events` must outlive this. The device has been opened and
  // touched by nobody else.
  Gpu(Reactor& reactor, MemoryWorker& worker, std::unique_ptr<vfio::PciDevice> device,
      const GpuOptions& options, GpuEvents& events);
  ~Gpu();
  Gpu(const Gpu&) = delete;

  // Named states with deadlines (bringup/steps.h); the error names the step, the register and what
  // was read. Cold: the device is reset first.
  void start(BringUp::Done done);
  // Leaves the device quiet: engines halted, rings off, bus mastering off, nothing mapped.
  void shut_down(BringUp::Done done);
  std::string_view state() const;
  bool ready() const { return ready_; }
  bool lost() const { return lost_.has_value(); }
  // The device does not answer any more; lost() follows, if it has not been said yet.
  bool left_the_bus() const;
  // The same after asking the device: a register is read.
  bool has_gone();
  // Something of it is late, which alone is no loss: loses a device that somebody else has reset.
  // Up to three registers are read.
  void look_for_reset();
  const std::optional<base::Error>& lost_why() const { return lost_; }
  // kDeviceLost gets the reason for which the device is lost.
  base::Error explained(base::Error error) const;
  // Whoever finds the device broken says so here; events follow once.
  void lose(base::Error why);

  const vfio::DeviceIdentity& identity() const { return device_->identity(); }
  Reactor& reactor() { return reactor_; }
  MemoryWorker& worker() { return worker_; }
  const GpuTopology& topology() const { return boot_.topology; }
  const BootState& boot() const { return boot_; }

  // Valid once start() has ended well.
  const VramMap& vram_map() const { return *vram_map_; }
  PteFormat pte_format() const { return {*vram_map_}; }
  Vram& vram() { return *vram_; }
  HostMemory& host_memory() { return host_memory_; }
  DmaMapper& dma() { return *dma_; }
  TableWriter& table_writer() { return *table_writer_; }
  TablePool& table_pages() { return *table_pool_; }
  FlushQueue& flushes() { return *flushes_; }
  Gart& gart() { return *gart_; }
  VmidPool& vmids() { return *vmids_; }
  InterruptController& interrupts() { return *interrupts_; }
  Psp& psp() { return *psp_; }
  CopyEngine& copy_engine() { return *copy_engine_; }
  Lsdma& lsdma() { return *lsdma_; }
  PermanentMemory& permanent() { return *permanent_; }
  // Handed over once, to the scheduler.
  std::vector<LaneEngine> take_lane_engines() { return std::move(engines_->lane_engines); }

 private:
  std::vector<Step> steps();
  Step memory_step();
  Step permanent_step();
  Step gart_step();
  Step interrupt_step();
  Step engine_step();
  base::Result<void> start_memory();
  void map_permanent(const HostBuffer& buffer, Done done);
  void set_up_hubs();
  void handle_interrupts();
  void sdma_vector(const InterruptVector& vector);
  void end_work();
  void look_for_it();
  void let_go();
  bool poll();

  Reactor& reactor_;
  std::unique_ptr<vfio::PciDevice> device_;
  // Goes just before the device: the worker still unmaps what the parts below had mapped.
  struct WorkerEnd {
    MemoryWorker& worker;
    ~WorkerEnd() { worker.finish(); }
  } worker_end_;
  GpuOptions options_;
  GpuEvents& events_;
  bool ready_ = false;
  std::optional<base::Error> lost_;
  bool let_go_ = false;
  bool cut_off_ = false;  // lost, and off the bus by our doing: nothing is waited for

  // In the order of making: each may use those above it, and goes before them.
  BootState boot_;
  MemoryWorker& worker_;
  HostMemory host_memory_;
  std::optional<VramMap> vram_map_;
  std::optional<IovaSpace> iova_;
  std::optional<Vram> vram_;
  std::optional<DmaMapper> dma_;
  VramBlock default_page_;
  std::unique_ptr<SdmaTableEngine> table_engine_;
  std::optional<TableWriter> table_writer_;
  std::optional<FlushQueue> flushes_;
  std::optional<TablePool> table_pool_;
  std::unique_ptr<Gart> gart_;
  std::unique_ptr<PermanentMemory> permanent_;
  std::optional<VmidPool> vmids_;
  InterruptLine line_;
  std::optional<InterruptController> interrupts_;
  std::optional<Psp> psp_;
  std::optional<EngineSet> engines_;
  std::optional<CopyEngine> copy_engine_;
  std::optional<Lsdma> lsdma_;
  std::unique_ptr<BringUp> bring_up_;
  Registration device_watch_;
  Registration poller_;
  Registration interrupt_poller_;
};

}  // namespace gpuumd
