#include "daemon/gpu/device/gpu.h"

#include <cassert>
#include <string>
#include <utility>

#include "daemon/gpu/bringup/nbio_setup.h"
#include "daemon/gpu/bringup/reset.h"
#include "daemon/gpu/engine/sdma_packets.h"
#include "daemon/gpu/registers/describe.h"
#include "daemon/gpu/registers/hdp.h"
#include "daemon/gpu/registers/mp0.h"

namespace gpuumd {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// INTERRUPT_CNTL2 holds bits 39:8 of the page for the interrupt's dummy read
// (docs/hardware/pci.md); 1 TiB of bus addresses is enough for everything else as well.
constexpr unsigned kBusBits = 40;

// A step that ends when a callback says so.
class Async {
 public:
  Done done() {
    auto state = state_;
    return [state](base::Result<void> result) { *state = std::move(result); };
  }
  void again() { state_->reset(); }
  base::Result<bool> poll() const {
    if (!*state_) return false;
    if (!**state_) return std::unexpected((*state_)->error());
    return true;
  }

 private:
  std::shared_ptr<std::optional<base::Result<void>>> state_ =
      std::make_shared<std::optional<base::Result<void>>>();
};

// A step of a part that is made only when its turn comes.
Step defer(const char* name, Duration deadline,
           std::move_only_function<base::Result<Step>()> make) {
  auto inner = std::make_shared<std::optional<Step>>();
  Step step;
  step.name = name;
  step.deadline = deadline;
  step.up.start = [inner, make = std::move(make)]() mutable -> base::Result<void> {
    auto made = make();
    if (!made) return std::unexpected(made.error());
    *inner = std::move(*made);
    return (*inner)->up.start ? (*inner)->up.start() : base::Result<void>();
  };
  step.up.poll = [inner]() -> base::Result<bool> {
    return (*inner)->up.poll ? (*inner)->up.poll() : base::Result<bool>(true);
  };
  step.up.waiting_for = [inner] {
    return *inner && (*inner)->up.waiting_for ? (*inner)->up.waiting_for() : std::string();
  };
  step.down.start = [inner]() -> base::Result<void> {
    return *inner && (*inner)->down.start ? (*inner)->down.start() : base::Result<void>();
  };
  step.down.poll = [inner]() -> base::Result<bool> {
    return *inner && (*inner)->down.poll ? (*inner)->down.poll() : base::Result<bool>(true);
  };
  return step;
}

std::array<std::uint32_t, 4> source_data(const InterruptVector& vector) {
  return {vector.source_data(0), vector.source_data(1), vector.source_data(2),
          vector.source_data(3)};
}

}  // namespace

class Gpu::SdmaTableEngine final : public TableEngine {
 public:
  explicit SdmaTableEngine(CopyEngine& engine) : engine_(engine) {}
  void write(std::vector<EngineWrite> writes, Done done) override {
    packets_.clear();
    sdma::PacketWriter out(packets_);
    auto last = std::make_shared<Done>(std::move(done));
    for (std::size_t i = 0; i < writes.size(); ++i) {
      const auto& write = writes[i];
      // Value and step say everything; nothing is OR-ed in.
      sdma::pte_pde_generate(out, write.at.value(), 0, write.value,
                             static_cast<std::uint32_t>(write.step), write.count);
      const bool full = packets_.size() + 32 > CopyEngine::kMaxJobDwords;
      if (i + 1 == writes.size())
        engine_.submit(packets_, [last](base::Result<void> result) { (*last)(std::move(result)); });
      else if (full)
        engine_.submit(packets_,
                       [](const base::Result<void>&) {});  // its failure fails the last one too
      if (full) packets_.clear();
    }
  }

 private:
  CopyEngine& engine_;
  std::vector<std::uint32_t> packets_;
};

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

std::vector<Step> Gpu::steps() {
  std::vector<Step> steps;
  steps.push_back(reset_step(*device_, boot_));
  steps.push_back(pci_step(*device_, boot_));
  steps.push_back(mode1_reset_step(*device_, boot_));
  steps.push_back(boot_loader_step(boot_));
  steps.push_back(discovery_step(boot_));
  steps.push_back(memory_step());
  steps.push_back(permanent_step());
  steps.push_back(gart_step());
  steps.push_back(interrupt_step());
  steps.push_back(defer(step_name::kPsp, seconds(10), [this]() -> base::Result<Step> {
    const auto piece = permanent_->take(PspMemory::kBytes, base::kPageSize);
    psp_.emplace(reactor_, boot_.topology.mp0, PspMemory{piece.cpu, permanent_->engine(piece).at});
    interrupts_->handle(IvClient::kMp0, iv::kPspRequest, [this](const InterruptVector& vector) {
      if (const auto request = psp_->on_interrupt(vector))
        reactor_.post([this, request = *request] { events_.security_request(request); });
    });
    return psp_->step();
  }));
  steps.push_back(engine_step());
  return steps;
}

base::Result<void> Gpu::start_memory() {
  const auto& topology = boot_.topology;
  const auto visible = std::min(boot_.bars.vram->size(), topology.vram_size);
  auto map = read_vram_map(topology.mmhubs.front(), topology.vram_size, visible);
  if (!map) return std::unexpected(map.error());
  vram_map_.emplace(*map);
  auto iova = IovaSpace::create(device_->iova_limits(), options_.seed, kBusBits);
  if (!iova) return std::unexpected(iova.error());
  iova_.emplace(std::move(*iova));
  // The discovery table keeps its place in the last 64 KiB.
  constexpr std::uint64_t kTable = 64 * base::kKiB;
  auto vram = Vram::create(topology.vram_size, visible,
                           {{base::VramOffset(topology.vram_size - kTable), kTable}});
  if (!vram) return std::unexpected(vram.error());
  vram_.emplace(std::move(*vram));
  dma_.emplace(*device_, *iova_, worker_);
  table_writer_.emplace(*vram_map_, *boot_.bars.vram, topology.nbio, nullptr);

  auto hubs = topology.mmhubs;
  for (const auto& xcc : topology.xccs) hubs.push_back(xcc.hub);
  flushes_.emplace(reactor_, std::move(hubs), FlushQueue::Options{},
                   [this](const base::Error& error) { lose(error); });
  table_pool_.emplace(
      reactor_, *vram_, host_memory_, *dma_,
      TablePool::Options{.low = options_.table_pages / 4, .target = options_.table_pages});

  // VRAM may hold anything after a reset; faults that go to the default page must read zeros.
  auto page = vram_->allocate(base::kPageSize, VramZone::kVisible);
  if (!page) return base::fail_within("default page", page.error());
  const std::vector<std::byte> zeros(base::kPageSize);
  enable_frame_buffer(topology.nbio, true);
  if (auto wrote = boot_.bars.vram->write(page->offset().value(), zeros); !wrote)
    return base::fail_within("default page", wrote.error());
  flush_hdp(topology.nbio);
  default_page_ = std::move(*page);
  return {};
}

Step Gpu::memory_step() {
  Step step;
  step.name = step_name::kMemory;
  step.deadline = seconds(5);
  step.up.start = [this] { return start_memory(); };
  step.down.start = [this]() -> base::Result<void> {
    table_pool_.reset();
    flushes_.reset();
    table_writer_.reset();
    default_page_ = {};
    return {};
  };
  // Unmaps of DMA memory are the worker's, and its answers are posted.
  step.down.poll = [this]() -> base::Result<bool> { return worker_.pending() == 0; };
  step.down.waiting_for = [] { return std::string("DMA unmaps"); };
  return step;
}

Step Gpu::permanent_step() {
  Step step;
  step.name = "PermanentMemory";
  step.deadline = seconds(10);
  Async ready;
  step.up.start = [this, ready]() mutable -> base::Result<void> {
    HostMemory::Request request{"gpuumd-permanent", PermanentMemory::kBytes, true};
    host_memory_.create(request,
                        [this, done = ready.done()](base::Result<HostBuffer> buffer) mutable {
                          if (!buffer) return done(std::unexpected(buffer.error()));
                          map_permanent(*buffer, std::move(done));
                        });
    return {};
  };
  step.up.poll = [ready] { return ready.poll(); };
  step.up.waiting_for = [] { return std::string("2 MiB of host memory, DMA-mapped"); };
  step.down.start = [this]() -> base::Result<void> {
    permanent_.reset();
    return {};
  };
  return step;
}

void Gpu::map_permanent(const HostBuffer& buffer, Done done) {
  host_memory_.map_cpu(
      buffer, [this, buffer, done = std::move(done)](base::Result<base::Mapping> cpu) mutable {
        if (!cpu) return done(std::unexpected(cpu.error()));
        dma_->map_all(buffer, vfio::Rights::kReadWrite,
                      [this, cpu = std::move(*cpu), done = std::move(done)](
                          base::Result<std::vector<HostChunk>> chunks) mutable {
                        if (!chunks) return done(std::unexpected(chunks.error()));
                        assert(chunks->size() == 1);
                        permanent_ = std::make_unique<PermanentMemory>(std::move(cpu),
                                                                       std::move(chunks->front()));
                        done({});
                      });
      });
}

void Gpu::set_up_hubs() {
  const HubSetup setup{*vram_map_,   gart_->root(),          Gart::first(),
                       Gart::kBytes, default_page_.offset(), true};
  for (const auto& hub : boot_.topology.mmhubs) bring_up_hub(hub, setup);
  for (const auto& xcc : boot_.topology.xccs) bring_up_hub(xcc.hub, setup);
}

Step Gpu::gart_step() {
  Step step;
  step.name = "Gart";
  step.deadline = seconds(10);
  Async ready, unmapped;
  step.up.start = [this, ready]() mutable -> base::Result<void> {
    auto gart = Gart::create(pte_format(), *vram_, *table_writer_, *flushes_, [](const auto&) {});
    if (!gart) return std::unexpected(gart.error());
    gart_ = std::move(*gart);
    set_up_hubs();
    if (boot_.io->lost()) return base::fail(base::Errc::kDeviceLost, "VM hubs");
    // Table writes are done in order, so the flush below finds the whole table in memory.
    const PhysRun run = permanent_->chunk().run();
    auto range =
        gart_->map({&run, 1}, PteFlags{.read = true, .write = true},
                   [this, done = ready.done()](base::Result<void> mapped) mutable {
                     if (!mapped) return done(std::move(mapped));
                     flushes_->submit(FlushTarget::vmid0(), FlushType::kHeavy, {}, std::move(done));
                   });
    if (!range) return std::unexpected(range.error());
    permanent_->set_range(std::move(*range));
    return {};
  };
  step.up.poll = [ready] { return ready.poll(); };
  step.up.waiting_for = [] { return std::string("the first flush of VMID 0 on every hub"); };
  step.down.start = [this, unmapped]() mutable -> base::Result<void> {
    auto range = permanent_ ? permanent_->take_range() : GartRange();
    if (range)
      range.unmap(unmapped.done());
    else
      unmapped.done()({});
    return {};
  };
  step.down.poll = [this, unmapped]() -> base::Result<bool> {
    auto answer = unmapped.poll();
    if (!answer || *answer) gart_.reset();
    return answer;
  };
  return step;
}

Step Gpu::interrupt_step() {
  return defer(step_name::kInterrupts, seconds(5), [this]() -> base::Result<Step> {
    auto& memory = *permanent_;
    const auto place = [&](std::size_t bytes, std::size_t alignment) {
      const auto piece = memory.take(bytes, alignment);
      return DeviceMemory{piece.cpu, memory.iova(piece).value()};
    };
    InterruptMemory rings;
    rings.space = osssys::McSpace::kBus;
    rings.ring0 = place(kInterruptRingBytes, base::kPageSize);
    rings.ring1 = place(kInterruptRingBytes, base::kPageSize);
    rings.write_back = place(InterruptMemory::kWriteBackBytes, InterruptMemory::kWriteBackBytes);
    rings.dummy_page = memory.iova(memory.take(base::kPageSize, base::kPageSize));

    enable_doorbells(boot_.topology.nbio, boot_.bars.doorbell_address);
    interrupts_.emplace(boot_.topology.osssys, boot_.topology.nbio, *boot_.bars.doorbells, rings,
                        boot_.topology.hubs());
    handle_interrupts();
    auto armed = line_.arm([this] {
      if (interrupts_) interrupts_->poll();
    });
    if (!armed) return std::unexpected(armed.error());
    if (!line_.fallback().empty()) boot_.remarks.push_back(line_.fallback());
    interrupt_poller_ = reactor_.add_poller(interrupts_->poller());

    std::vector<VmHub> gfxhubs;
    for (const auto& xcc : boot_.topology.xccs) gfxhubs.push_back(xcc.hub);
    vmids_.emplace(std::move(gfxhubs), *interrupts_, *flushes_);

    auto step = interrupts_->step(*device_);
    step.down.start = [this, inner = std::move(step.down.start)]() mutable -> base::Result<void> {
      base::Result<void> result = inner ? inner() : base::Result<void>();
      interrupt_poller_.cancel();
      if (auto disarmed = line_.disarm(); !disarmed && result) result = disarmed;
      disable_doorbells(boot_.topology.nbio);
      return result;
    };
    return step;
  });
}

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

Step Gpu::engine_step() {
  Step step;
  step.name = step_name::kEngines;
  step.deadline = seconds(5);
  Async proven;
  step.up.start = [this, proven]() mutable -> base::Result<void> {
    auto set = EngineSet::create(boot_.topology, *boot_.bars.doorbells, *permanent_);
    if (!set) return std::unexpected(set.error());
    engines_.emplace(std::move(*set));
    const auto engines =
        static_cast<unsigned>(boot_.topology.xccs.size()) * boot_.topology.sdma_per_xcc();
    if (auto routed = route_sdma_doorbells(boot_.topology.nbio, engines); !routed) return routed;
    for (auto& engine : engines_->lane_engines) engine.instance.start();
    for (auto& instance : engines_->own) instance.start();
    copy_engine_.emplace(reactor_, engines_->own_queue, engines_->own_fence);
    copy_engine_->start();
    table_engine_ = std::make_unique<SdmaTableEngine>(*copy_engine_);
    table_writer_->set_engine(table_engine_.get());
    lsdma_.emplace(reactor_, boot_.topology.lsdma);
    if (auto started = lsdma_->start(); !started) return started;
    poller_ = reactor_.add_poller({"gpu", [this] { return poll(); },
                                   [this](bool sleeping) {
                                     if (sleeping && copy_engine_) copy_engine_->request_wake();
                                   }});
    // The proof: the engine writes a word and the fence behind it arrives.
    const auto word = permanent_->engine(permanent_->take(64, 64));
    std::vector<std::uint32_t> packets;
    sdma::PacketWriter out(packets);
    const std::uint32_t magic = 0xDEADBEEF;
    sdma::write_linear(out, word.at.value(), {&magic, 1});
    copy_engine_->submit(packets, [word, done = proven.done()](base::Result<void> result) mutable {
      if (result && word.word().load(std::memory_order_acquire) != 0xDEADBEEF)
        result = base::fail(base::Errc::kDeviceError, "SDMA WRITE of 0xDEADBEEF did not arrive");
      done(std::move(result));
    });
    return {};
  };
  step.up.poll = [proven] { return proven.poll(); };
  step.up.waiting_for = [] { return std::string("the fence of a WRITE on the daemon's engine"); };
  step.down.start = [this]() -> base::Result<void> {
    poller_.cancel();
    if (engines_) {
      for (auto& instance : engines_->own) instance.halt();
      for (const auto& xcc : boot_.topology.xccs)
        SdmaInstance(xcc.sdma[EngineSet::kLaneInstance], "").halt();
    }
    end_work();
    if (table_writer_) table_writer_->set_engine(nullptr);
    return {};
  };
  return step;
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
  bring_up_ = std::make_unique<BringUp>(reactor_, [this] { return left_the_bus(); }, steps());
  bring_up_->start([this, done = std::move(done)](base::Result<void> result) mutable {
    ready_ = result.has_value();
    if (!result && result.error().code == base::Errc::kDeviceLost && device_->lost())
      result.error().step += ": " + device_->lost_why();
    done(std::move(result));
  });
}

void Gpu::shut_down(BringUp::Done done) {
  ready_ = false;
  if (!bring_up_) return done({});
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
  if (lost_->code != base::Errc::kDeviceLost && has_gone()) lost_->code = base::Errc::kDeviceLost;
  reactor_.post([this] {
    if (copy_engine_) copy_engine_->fail(*lost_);
    if (lsdma_) lsdma_->fail(*lost_);
    if (table_pool_) table_pool_->device_lost();
    if (ready_) events_.device_lost(*lost_);
    if (left_the_bus()) let_go();
  });
}

}  // namespace gpuumd
