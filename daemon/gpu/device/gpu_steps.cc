// How a GPU is brought up and taken down: the steps of Gpu, in their order.
#include <cassert>
#include <string>
#include <utility>

#include "daemon/gpu/bringup/nbio_setup.h"
#include "daemon/gpu/bringup/reset.h"
#include "daemon/gpu/device/gpu.h"
#include "daemon/gpu/device/sdma_table_engine.h"
#include "daemon/gpu/engine/sdma_packets.h"
#include "daemon/gpu/registers/hdp.h"

namespace gpuumd {
namespace {

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

}  // namespace

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
    copy_engine_.emplace(reactor_, engines_->own_queue, engines_->own_fence,
                         [this](const base::Error& error) { lose(error); });
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

}  // namespace gpuumd
