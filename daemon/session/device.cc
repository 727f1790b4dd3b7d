#include "daemon/session/device.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "daemon/ipc/channel.h"
#include "daemon/ipc/status.h"
#include "daemon/session/join.h"

namespace gpuumd {
namespace {

// While work is in flight something must look at deadlines even if the reactor sleeps.
constexpr Duration kHousekeeping = std::chrono::milliseconds(20);
// Work may take as long as it likes: whether there still is anybody who does it is asked this
// often.
constexpr Duration kResetWatch = std::chrono::seconds(1);

// The daemon's end of the pair, as long as anybody holds the other.
constexpr HostUse kSharedUse{0, 1};

// What a device name says about itself; nothing below this layer asks.
bool simulated(const std::string& name) {
  return name.starts_with("sim") || name.starts_with("vfio-user:");
}

}  // namespace

Device::Device(Reactor& reactor, MemoryWorker& worker, std::unique_ptr<vfio::PciDevice> device,
               const DeviceOptions& options,
               std::move_only_function<void(const wire::DeviceInfo&)> changed)
    : options_(options),
      changed_(std::move(changed)),
      next_object_(options.first_object_id),
      gpu_(reactor, worker, std::move(device), options.gpu, *this),
      buffers_(gpu_),
      faults_(
          gpu_, buffers_, [this](base::Pasid pasid) { return vm_of(pasid); },
          [this](Vm& vm, const FaultPipeline::Fatal& what) { fatal(vm, what); }) {
  faults_.set_deadline(options.fault_deadline);
}

Device::~Device() = default;

// ---- life ----

void Device::start(Done done) {
  gpu_.start([this, done = std::move(done)](base::Result<void> up) mutable {
    if (!up) return done(std::move(up));
    ready();
    exports_->start([this, done = std::move(done)](base::Result<void> joined) mutable {
      changed_(info());
      if (!joined) joined = std::unexpected(gpu_.explained(std::move(joined.error())));
      done(std::move(joined));
    });
  });
}

void Device::ready() {
  spdlog::info("{}: opened by {}", gpu_.identity().name, gpu_.identity().backend);
  for (const auto& remark : gpu_.boot().remarks)
    spdlog::warn("{}: {}", gpu_.identity().name, remark);
  auto& reactor = gpu_.reactor();
  started_ = reactor.now();
  std::vector<Scheduler::Engine> engines;
  for (auto& hardware : gpu_.take_lane_engines()) {
    Scheduler::Engine engine{std::move(hardware.instance), {}};
    for (auto& queue : hardware.queues)
      engine.lanes.emplace_back(std::move(queue.queue), queue.fence);
    engines.push_back(std::move(engine));
  }
  scheduler_ = std::make_unique<Scheduler>(reactor, std::move(engines));
  scheduler_->on_completion([this] {
    while (gpu_.interrupts().poll()) {
    }
  });
  scheduler_->on_queue_reset([this](VmWork& work, ObjectId queue) {
    if (auto* vm = vm_of(work.id()))
      tell(*vm, {GPUUMD_EVENT_RESET, queue.value(), 0, 0, to_status(base::Errc::kReset)});
  });
  scheduler_->start();
  exports_ = std::make_unique<Exports>(gpu_, buffers_, *this, options_.exports);
  buffers_.on_last_reference([this](Buffer& buffer, std::move_only_function<void()> free) {
    exports_->last_reference(buffer, std::move(free));
  });
  if (auto table = ShareTable::create(reactor, [this](ShareKey key) { unshare(key); }))
    shares_ = std::move(*table);
  poller_ = reactor.add_poller({"device", [this] { return poll(); },
                                [this](bool sleeping) {
                                  if (sleeping) scheduler_->request_wake();
                                }});
}

void Device::shut_down(Done done) {
  shared_.clear();
  if (!exports_) return gpu_.shut_down(std::move(done));
  exports_->stop([this, done = std::move(done)](base::Result<void>) mutable {
    poller_.cancel();
    housekeeping_.cancel();
    gpu_.shut_down(std::move(done));
  });
}

bool Device::poll() {
  bool any = faults_.poll();
  any |= scheduler_->poll();
  any |= exports_->poll();
  if (!housekeeping_ && (scheduler_->in_flight() > 0 || faults_.in_service() > 0)) housekeep();
  return any;
}

void Device::housekeep() {
  housekeeping_ = gpu_.reactor().after(kHousekeeping, "housekeeping", [this] {
    housekeeping_.cancel();
    if (const auto now = gpu_.reactor().now(); now >= next_look_) {
      next_look_ = now + kResetWatch;
      gpu_.look_for_reset();
    }
    poll();
  });
}

wire::DeviceInfo Device::info() const {
  wire::DeviceInfo info{};
  const auto& identity = gpu_.identity();
  info.index = options_.index;
  info.flags = GPUUMD_DEVICE_FAULTS;
  if (simulated(identity.name)) info.flags |= GPUUMD_DEVICE_SIMULATED;
  info.state = gpu_.lost()    ? GPUUMD_DEVICE_IS_LOST
               : gpu_.ready() ? GPUUMD_DEVICE_READY
                              : GPUUMD_DEVICE_STARTING;
  info.pci_id = std::uint32_t{identity.device} << 16 | identity.vendor;
  info.accelerator_id = UINT32_MAX;
  if (exports_ && exports_->node() != nullptr) {
    const auto& pod = exports_->node()->pod();
    if (exports_->node()->state() == fabric::AccelState::kActive)
      info.flags |= GPUUMD_DEVICE_FABRIC;
    info.accelerator_id = pod.accel_id;
    std::memcpy(&info.pod_id, pod.ppod_id.data(), sizeof(info.pod_id));
    info.vpod_id = pod.has_virtual_pod() ? pod.vpod_id : 0;
  }
  info.max_vms = Session::kMaxVms;
  info.vram_bytes = gpu_.topology().vram_size;
  info.va_first = kFirstVa.value();
  info.va_end = kEndVa.value();
  info.page_sizes = base::kPageSize | 2 * base::kMiB | base::kGiB;
  info.bind_alignment = base::kPageSize;
  info.max_queue_slots = wire::kMaxQueueSlots;
  info.timestamp_hz = 100'000'000;
  identity.name.copy(info.name, sizeof(info.name) - 1);
  return info;
}

// ---- sessions ----

void Device::open_session(SessionId id, const ClientIdentity& client, Channel& channel,
                          std::move_only_function<void(base::Result<OpenedSession>)> done) {
  if (gpu_.lost())
    return done(base::fail(base::Errc::kDeviceLost, std::string(gpu_.identity().name)));
  if (!gpu_.ready() || !scheduler_)
    return done(
        base::fail(base::Errc::kAgain, "device is not ready: " + std::string(gpu_.state())));
  FenceSlots::create(gpu_, [this, id, client, &channel, done = std::move(done)](
                               base::Result<std::unique_ptr<FenceSlots>> slots) mutable {
    if (!slots) return done(std::unexpected(slots.error()));
    auto descriptor = (*slots)->descriptor();
    if (!descriptor) return done(std::unexpected(descriptor.error()));
    auto session = std::make_unique<Session>(*this, id, client, channel, std::move(*slots));
    sessions_.emplace(id.value(), session.get());
    done(OpenedSession{std::move(session), std::move(*descriptor), FenceSlots::kSlots});
  });
}

void Device::remove_session(Session& session) { sessions_.erase(session.id().value()); }

void Device::add_vm(Vm& vm, Session& session) {
  vms_.emplace(vm.pasid().value(), VmOwner{&vm, &session});
}

void Device::remove_vm(Vm& vm) { vms_.erase(vm.pasid().value()); }

Vm* Device::vm_of(base::Pasid pasid) const {
  const auto it = vms_.find(pasid.value());
  return it == vms_.end() ? nullptr : it->second.vm;
}

Vm* Device::vm_of(ObjectId id) const {
  const auto it =
      std::ranges::find_if(vms_, [id](const auto& entry) { return entry.second.vm->id() == id; });
  return it == vms_.end() ? nullptr : it->second.vm;
}

base::Result<base::UniqueFd> Device::share(BufferRef buffer, uid_t uid) {
  if (!shares_) return base::fail(base::Errc::kNoMemory, "descriptors to share buffers");
  if (auto taken = buffers_.host_quota().take(uid, kSharedUse); !taken)
    return std::unexpected(taken.error());
  auto pair = shares_->make();
  if (!pair) {
    buffers_.host_quota().give_back(uid, kSharedUse);
    return std::unexpected(pair.error());
  }
  shared_.emplace(pair->first.value(), SharedBuffer{std::move(buffer), uid});
  return std::move(pair->second);
}

void Device::unshare(ShareKey key) {
  const auto node = shared_.extract(key.value());
  if (!node.empty()) buffers_.host_quota().give_back(node.mapped().uid, kSharedUse);
}

base::Result<BufferRef> Device::open_shared(ShareKey key) {
  const auto it = shared_.find(key.value());
  if (it == shared_.end())
    return base::fail(base::Errc::kNotFound, "descriptor is no buffer of this device");
  return it->second.buffer;
}

// ---- what the hardware tells ----

void Device::retry_faults_arrived() { faults_.arrived(); }

void Device::access_failed(const PageFault& fault) { faults_.access_failed(fault); }

void Device::queue_stopped(const QueueStop& stop) {
  auto* work = scheduler_->vm_on(stop.engine, stop.queue);
  auto* vm = work != nullptr ? vm_of(work->id()) : nullptr;
  const auto end = [this, stop](Vm* dying, base::Errc why) {
    if (dying != nullptr) faults_.kill(*dying, {base::GpuVa(), false, false, why});
    scheduler_->queue_stopped(stop.engine, stop.queue);
  };
  if (stop.bus_error) {
    ++bus_errors_.count;
    bus_errors_.last = base::Iova(stop.page << 12);
    if (const auto more = refusals_.admit(gpu_.reactor().now()))
      spdlog::warn("{}: engine {} queue {}: the IOMMU refused IOVA {:#x} ({} more before)",
                   gpu_.identity().name, stop.engine, stop.queue, bus_errors_.last.value(), *more);
  }
  const bool remote = stop.reason == base::Errc::kRefused || stop.reason == base::Errc::kPeerLost;
  if (vm == nullptr || !remote) return end(vm, stop.reason);
  exports_->explain_refusal(stop.page, stop.reason,
                            [this, stop, end, id = vm->id()](base::Errc why) {
                              // The VM may have died of something else meanwhile: then the lane was
                              // reset, and may carry somebody else's work.
                              const auto* work = scheduler_->vm_on(stop.engine, stop.queue);
                              if (work != nullptr && work->id() == id) end(vm_of(id), why);
                            });
}

void Device::fabric_message(std::uint32_t sender, const std::array<std::uint32_t, 4>& dwords) {
  exports_->message(sender, dwords);
}

void Device::security_request(const psp::Request& request) { exports_->security_request(request); }

void Device::device_lost(const base::Error& why) {
  spdlog::error("{}: lost: {}", gpu_.identity().name, why.message());
  scheduler_->fail_all(base::Errc::kDeviceLost);
  exports_->device_lost();
  tell_all({GPUUMD_EVENT_DEVICE_LOST, 0, 0, 0, to_status(base::Errc::kDeviceLost)});
  changed_(info());
}

void Device::fatal(Vm& vm, const FaultPipeline::Fatal& what) {
  const std::uint32_t access = what.atomic  ? GPUUMD_ACCESS_ATOMIC
                               : what.write ? GPUUMD_ACCESS_WRITE
                                            : GPUUMD_ACCESS_READ;
  if (const auto more = deaths_.admit(gpu_.reactor().now()))
    spdlog::warn("{}: VM {} (VMID {}, PASID {}) has died: {} at {:#x}, {} ({} more before)",
                 gpu_.identity().name, vm.id().value(), vm.vmid().value(), vm.pasid().value(),
                 what.atomic  ? "atomic"
                 : what.write ? "write"
                              : "read",
                 what.va.value(), base::to_string(what.reason), *more);
  tell(vm, {GPUUMD_EVENT_FATAL_FAULT, vm.id().value(), what.va.value(), access,
            to_status(what.reason)});
}

void Device::tell(Vm& vm, const Event& event) {
  const auto it = vms_.find(vm.pasid().value());
  if (it != vms_.end()) it->second.session->channel().event(event);
}

void Device::tell_all(const Event& event) {
  for (auto& [id, session] : sessions_) session->channel().event(event);
}

// ---- what the fabric asks ----

void Device::detach_import(Buffer& buffer, base::Errc why, Done done) {
  buffers_.mark_gone(buffer, why);
  for (auto& [id, session] : sessions_)
    if (session->uses(buffer))
      session->channel().event({GPUUMD_EVENT_REVOKED, buffer.id().value(), 0, 0, to_status(why)});
  Join all(std::move(done));
  for (auto& [pasid, owner] : vms_) owner.vm->unmap_buffer(buffer, why, all.part());
  all.end();
}

void Device::peer_changed(base::AccelId peer, bool up) {
  tell_all({static_cast<std::uint32_t>(up ? GPUUMD_EVENT_PEER_UP : GPUUMD_EVENT_PEER_DOWN),
            peer.value(), 0, 0, 0});
}

}  // namespace gpuumd
