// A modelled GPU with two of everything at bases from a seed, and the daemon's view of it: topology
// from the discovery table, registers through RegisterIo, VRAM as VMID 0 sees it.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>

#include "base/bytes.h"
#include "daemon/gpu/bringup/discovery.h"
#include "daemon/gpu/bringup/topology.h"
#include "daemon/gpu/engine/engine_memory.h"
#include "daemon/gpu/registers/iv.h"
#include "daemon/gpu/registers/nbio.h"
#include "daemon/gpu/registers/osssys.h"
#include "daemon/gpu/registers/vm_hub.h"
#include "tests/gpusim_blocks/fakes.h"
#include "tools/gpusim/model/discovery_table.h"
#include "tools/gpusim/model/gpu.h"

namespace contract {

constexpr std::uint32_t lo(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
constexpr std::uint32_t hi(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }

// The daemon's register access, straight to the model's registers.
class ModelRegisters : public gpuumd::RegisterIo {
 public:
  explicit ModelRegisters(gpusim::RegisterFile& file) : file_(file) {}
  std::uint32_t read(std::uint32_t dword) override { return file_.read(dword); }
  void write(std::uint32_t dword, std::uint32_t value) override { file_.write(dword, value); }
  bool lost() const override { return false; }

 private:
  gpusim::RegisterFile& file_;
};

// The fabric: writes go to memory by their offset in the sender's window.
struct RecordPort : gpusim::FabricPort {
  gpusim::Outcome access(gpusim::RemoteAccess& access) override {
    if (access.kind != gpusim::RemoteAccess::Kind::kWrite) return gpusim::Outcome::kRefused;
    last_target = access.npa >> 41 & 0x3FF;
    const auto offset = access.npa & ((std::uint64_t{1} << 41) - 1);
    if (!base::fits(offset, access.write_from.size(), memory.size() * 8))
      return gpusim::Outcome::kRefused;
    std::memcpy(bytes() + offset, access.write_from.data(), access.write_from.size());
    return gpusim::Outcome::kOk;
  }
  std::span<const std::byte> source(std::uint64_t, std::uint64_t) override { return {}; }
  std::span<std::byte> target(std::uint64_t, std::uint64_t) override { return {}; }
  void stored(std::uint64_t, std::uint64_t) override {}
  std::byte* bytes() { return reinterpret_cast<std::byte*>(memory.data()); }

  std::vector<std::uint64_t> memory = std::vector<std::uint64_t>((16 << 20) / 8);
  std::uint64_t last_target = ~0ull;
};

struct Rig {
  static constexpr std::uint64_t kVram = 64 << 20;
  static constexpr std::uint64_t kHost = 0x5'0000'0000;  // IOVA of 1 MiB of host memory
  static constexpr std::size_t kHostBytes = 1 << 20;
  static constexpr std::uint64_t kRing0 = kHost, kRing1 = kHost + 0x10000,
                                 kWriteBack = kHost + 0x20000;

  explicit Rig(std::uint64_t bases_seed = 7) {
    gpusim::GpuOptions options;
    options.index = 1;
    options.vram_bytes = kVram;
    options.bar0_bytes = 0;
    options.bases_seed = bases_seed;
    options.hdp = gpusim::HdpMode::kRelaxed;
    options.pod.config.accel_id = 5;
    options.pod.config.ppod_size = 16;
    auto made = gpusim::Gpu::create(options, {.clock = clock, .fabric = &port});
    if (!made) throw std::runtime_error(made.error().message());
    gpu = std::move(*made);
    gpu->attach(bus);
    io = std::make_unique<ModelRegisters>(gpu->registers());
    const auto at = gpusim::discovery_offset(gpu->options());
    auto table = gpuumd::discovery::parse(
        gpu->vram().cpu_view().subspan(at, gpuumd::discovery::kDefaultBytes));
    if (!table) throw std::runtime_error(table.error().message());
    auto parsed = gpuumd::make_topology(*table, *io);
    if (!parsed) throw std::runtime_error(parsed.error().message());
    topology = std::move(*parsed);
    if (auto read = gpuumd::read_memory_layout(topology, kVram); !read)
      throw std::runtime_error(read.error().message());
    open_aperture();
  }

  // VMID 0 sees all of VRAM, in every hub.
  void open_aperture() {
    using namespace gpuumd::vm_hub;
    const auto first = topology.fb_base.value() >> 18;
    const auto last = topology.fb_top.value() >> 18;
    for (const auto& hub : hubs()) {
      hub.registers.write(base::Value<SYSTEM_APERTURE_LOW_ADDR_LO32>(lo(first)));
      hub.registers.write(base::Value<SYSTEM_APERTURE_LOW_ADDR_HI32>(hi(first)));
      hub.registers.write(base::Value<SYSTEM_APERTURE_HIGH_ADDR_LO32>(lo(last)));
      hub.registers.write(base::Value<SYSTEM_APERTURE_HIGH_ADDR_HI32>(hi(last)));
    }
  }
  std::vector<gpuumd::VmHub> hubs() const {
    auto all = topology.mmhubs;
    for (const auto& xcc : topology.xccs) all.push_back(xcc.hub);
    return all;
  }
  gpusim::VmHub& model_hub(const gpuumd::VmHub& hub) {
    return hub.kind == gpuumd::HubKind::kGfxhub ? gpu->gfxhub(hub.instance)
                                                : gpu->mmhub(hub.instance);
  }

  // A piece of VRAM, zeroed.
  gpuumd::EngineMemory allocate(std::size_t bytes) {
    next_ = base::align_up(next_, base::kPageSize);
    auto* cpu = gpu->vram().cpu_view().data() + next_;
    std::memset(cpu, 0, bytes);
    gpuumd::EngineMemory memory{cpu, topology.fb_base + next_, bytes};
    next_ += bytes;
    return memory;
  }
  std::uint64_t physical(const gpuumd::EngineMemory& memory) const {
    return topology.vram_base.value() + (memory.at - topology.fb_base);
  }

  void settle() {
    while (gpu->step()) {
    }
  }

  // --- interrupts, with the daemon's registers, in host memory ---
  void start_interrupts() {
    using namespace gpuumd::osssys;
    const auto& ih = topology.osssys;
    for (const unsigned ring : {0u, 1u}) {
      const auto at = ring == 0 ? kRing0 : kRing1;
      ih.write(base::Value<IH_RB_BASE>(lo(at >> 8)), ring);
      ih.write(base::Value<IH_RB_BASE_HI>(hi(at >> 8)), ring);
    }
    ih.write(base::Value<IH_RB_WPTR_ADDR_LO>(lo(kWriteBack)));
    ih.write(base::Value<IH_RB_WPTR_ADDR_HI>(hi(kWriteBack)));
    ih.write(base::Value<IH_RETRY_INT_CAM_CNTL>()
                 .with<IH_RETRY_INT_CAM_CNTL::CAM_SIZE>(IH_RETRY_INT_CAM_CNTL::kLargest)
                 .with<IH_RETRY_INT_CAM_CNTL::ENABLE>(true));
    const auto common = base::Value<IH_RB_CNTL>()
                            .with<IH_RB_CNTL::RB_ENABLE>(true)
                            .with<IH_RB_CNTL::RB_SIZE>(12)
                            .with<IH_RB_CNTL::MC_SPACE>(McSpace::kBus);
    ih.write(common.with<IH_RB_CNTL::WPTR_WRITEBACK_ENABLE>(true)
                 .with<IH_RB_CNTL::WPTR_OVERFLOW_ENABLE>(true)
                 .with<IH_RB_CNTL::ENABLE_INTR>(true),
             0);
    ih.write(common.with<IH_RB_CNTL::RB_FULL_DRAIN_ENABLE>(true), 1);
    ih.write(base::Value<IH_CNTL2>().with<IH_CNTL2::SELF_IV_FORCE_WPTR_UPDATE_ENABLE>(true));
  }
  // The next vector of a ring, or none. Ring 0 by its write-back word, ring 1 by its register.
  std::optional<gpuumd::InterruptVector> vector(unsigned ring = 0) {
    settle();
    const auto wptr = ring == 0 ? bus.word(kWriteBack)
                                : topology.osssys.read<gpuumd::osssys::IH_RB_WPTR>(1).raw();
    if (read_[ring] == wptr) return {};
    gpuumd::InterruptVector vector;
    for (unsigned i = 0; i < 8; ++i)
      vector.dwords[i] = bus.word((ring == 0 ? kRing0 : kRing1) + read_[ring] + 4 * i);
    read_[ring] += gpuumd::InterruptVector::kBytes;
    topology.osssys.write(base::Value<gpuumd::osssys::IH_RB_RPTR>(read_[ring]), ring);
    return vector;
  }

  gpusim::FakeClock clock;
  gpusim::FakeBus bus{kHost, kHostBytes};
  RecordPort port;
  std::unique_ptr<gpusim::Gpu> gpu;
  std::unique_ptr<ModelRegisters> io;
  gpuumd::GpuTopology topology;

 private:
  std::uint64_t next_ = 1 << 20;
  std::array<std::uint32_t, 2> read_{};
};

}  // namespace contract
