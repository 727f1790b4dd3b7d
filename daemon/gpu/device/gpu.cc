#include "daemon/gpu/device/gpu.h"

#include <string>
#include <utility>

#include "daemon/gpu/bringup/reset.h"
#include "daemon/gpu/device/sdma_table_engine.h"
#include "daemon/gpu/registers/describe.h"
#include "daemon/gpu/registers/mp0.h"

namespace gpuumd {
namespace {

constexpr const char* kResetByOthers = "somebody else has reset the device";

std::array<std::uint32_t, 4> source_data(const InterruptVector& vector) {
  return {vector.source_data(0), vector.source_data(1), vector.source_data(2),
          vector.source_data(3)};
}

}  // namespace

Gpu::Gpu(Reactor& reactor, MemoryWorker& worker, std::unique_ptr<vfio::PciDevice> device,
         const GpuOptions& options, GpuEvents& events)
    : reactor_(reactor),
      device_(std::move(device)),
      worker_end_{worker},
      options_(options),
      events_(events),
      worker_(worker),
      host_memory_(worker_),
      line_(reactor_, *device_) {}

Gpu::~Gpu() = default;

void Gpu::handle_interrupts() {
  // Faults and stopped queues are told at once: whoever drains the ring before it believes a fence
  // relies on it.
  interrupts_->on_fault([this](const PageFault& fault) {
    if (!ready_) return;
    fault.retry ? events_.retry_faults_arrived() : events_.access_failed(fault);
  });
  interrupts_->handle(IvClient::kNht, iv::kRemote, [this](const InterruptVector& vector) {
    reactor_.post(
        [this, sender = std::uint32_t{vector.pasid().value()}, data = source_data(vector)] {
          if (ready_) events_.fabric_message(sender, data);
        });
  });
  for (const auto source : {iv::kSdmaTrap, iv::kSdmaPageNull, iv::kSdmaPageFault,
                            iv::kSdmaPageRetryTimeout, iv::kSdmaVmHole, iv::kSdmaQueueHang,
                            iv::kSdmaWptrBehind, iv::kSdmaBadCommand, iv::kRemoteError})
    interrupts_->handle(IvClient::kGfx, source,
                        [this](const InterruptVector& vector) { sdma_vector(vector); });
}

// ring_id names queue and instance, the node the XCC. A trap only wakes: fences are looked at on
// every turn. Everything else says that the queue has stopped.
void Gpu::sdma_vector(const InterruptVector& vector) {
  if (vector.source() == iv::kSdmaTrap) return;
  const auto xcc = xcc_of_node(vector.node());
  if (!xcc || *xcc >= boot_.topology.xccs.size()) return;
  const unsigned instance = vector.ring_id() >> 4;
  QueueStop stop;
  stop.engine = *xcc;
  stop.queue = vector.ring_id() & 0xF;
  const auto data = source_data(vector);
  stop.page = data[1] | std::uint64_t{data[2]} << 32;
  switch (vector.source()) {
    case iv::kRemoteError:
      stop.reason = data[3] == 1 ? base::Errc::kPeerLost : base::Errc::kRefused;
      break;
    case iv::kSdmaPageFault:
    case iv::kSdmaVmHole:
    case iv::kSdmaPageRetryTimeout:
      stop.reason = base::Errc::kFault;
      break;
    default:
      stop.reason = base::Errc::kDeviceError;
      stop.bus_error = vector.source() == iv::kSdmaPageNull;
  }
  if (instance == EngineSet::kLaneInstance) {
    if (ready_) events_.queue_stopped(stop);
    return;
  }
  lose({base::Errc::kDeviceError, 0,
        "the daemon's engine SDMA " + std::to_string(*xcc) + "." + std::to_string(instance) +
            (stop.bus_error ? ": the IOMMU refused IOVA " + hex(stop.page << 12, 16)
                            : " stopped, source " + hex(vector.source(), 2))});
}

// Whoever waits for the daemon's engines is told while he is there: the engines live longer.
void Gpu::end_work() {
  const base::Error off{base::Errc::kDeviceLost, 0, "the device is being shut down"};
  if (copy_engine_) {
    copy_engine_->fail(off);
    while (copy_engine_->poll()) {  // until no answer has asked for more
    }
  }
  if (lsdma_) {
    lsdma_->fail(off);
    lsdma_->poll();
  }
}

bool Gpu::poll() {
  look_for_it();
  bool any = copy_engine_->poll();
  any |= lsdma_->poll();
  any |= vmids_->poll();
  return any;
}

void Gpu::start(BringUp::Done done) {
  if (const int fd = device_->event_fd(); fd >= 0)
    device_watch_ = reactor_.watch(fd, "device", false, [this] {
      device_->handle_events();
      look_for_it();
    });
  bring_up_ =
      std::make_unique<BringUp>(reactor_, [this] { return cut_off_ || left_the_bus(); }, steps());
  bring_up_->start([this, done = std::move(done)](base::Result<void> result) mutable {
    ready_ = result.has_value();
    if (!result) result = std::unexpected(explained(std::move(result.error())));
    done(std::move(result));
  });
}

base::Error Gpu::explained(base::Error error) const {
  if (error.code != base::Errc::kDeviceLost) return error;
  // The backend's reason for a device that was let go of is just that.
  const auto why = lost_ ? lost_->step : device_->lost_why();
  if (!why.empty() && why != error.step) error.step += ": " + why;
  return error;
}

void Gpu::shut_down(BringUp::Done done) {
  ready_ = false;
  if (!bring_up_) return done({});
  // A device that was found broken need not answer. It is kept from memory first, so that nothing
  // has to be waited for.
  if (lost_ && !left_the_bus()) cut_off_ = set_bus_master(*device_, false).has_value();
  bring_up_->shut_down(std::move(done));
}

std::string_view Gpu::state() const {
  if (lost_) return "lost";
  if (ready_) return "ready";
  return bring_up_ ? bring_up_->current_step() : "closed";
}

bool Gpu::left_the_bus() const {
  return device_->lost() || (boot_.io != nullptr && boot_.io->lost());
}

bool Gpu::has_gone() {
  if (!left_the_bus() && boot_.io != nullptr)
    (void)boot_.io->read(mp0::C2PMSG_33::kBeforeDiscovery);  // all ones: RegisterBus looks closer
  return left_the_bus();
}

void Gpu::look_for_reset() {
  if (ready_ && !lost_ && !has_gone() && reset_since(boot_))
    lose({base::Errc::kDeviceError, 0, kResetByOthers});
}

// A device that was found broken is still there, and is kept: it can be left quiet. It may go
// later.
void Gpu::look_for_it() {
  if (!left_the_bus() || let_go_) return;
  if (lost_) return let_go();
  device_watch_.cancel();
  lose({base::Errc::kDeviceLost, 0,
        device_->lost() ? device_->lost_why() : "registers and configuration space read all ones"});
}

// A kernel that takes the device away waits for this, and everybody who reads sysfs with it.
void Gpu::let_go() {
  let_go_ = true;
  device_watch_.cancel();
  device_->release();
}

void Gpu::lose(base::Error why) {
  if (lost_) return;
  lost_ = std::move(why);
  // Nothing is as likely to be broken as what is not there any more.
  if (lost_->code != base::Errc::kDeviceLost) {
    if (has_gone())
      lost_->code = base::Errc::kDeviceLost;
    else if (ready_ && lost_->step != kResetByOthers && reset_since(boot_))
      lost_->step += std::string("; ") + kResetByOthers;
  }
  reactor_.post([this] {
    const base::Error end{base::Errc::kDeviceLost, lost_->sys, lost_->step};
    if (copy_engine_) copy_engine_->fail(end);
    if (lsdma_) lsdma_->fail(end);
    if (table_pool_) table_pool_->device_lost();
    if (ready_) events_.device_lost(*lost_);
    if (left_the_bus()) let_go();
  });
}

}  // namespace gpuumd
