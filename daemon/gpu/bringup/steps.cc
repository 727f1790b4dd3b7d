#include "daemon/gpu/bringup/steps.h"

#include <string>
#include <utility>

#include "daemon/gpu/bringup/nbio_setup.h"
#include "daemon/gpu/bringup/table_reader.h"
#include "daemon/gpu/registers/describe.h"
#include "daemon/gpu/registers/mp0.h"

namespace gpuumd {
namespace {

using std::chrono::milliseconds;

// Absolute, fixed on every part (docs/hardware/discovery.md).
constexpr std::uint32_t kMemorySize = 0x0DE3;  // RCC_CONFIG_MEMSIZE

using BootLoader = base::Value<mp0::C2PMSG_33>;

BootLoader boot_loader(BootState& boot) {
  return BootLoader(boot.io->read(mp0::C2PMSG_33::kBeforeDiscovery));
}

base::Result<bool> poll_boot_loader(BootState& boot) {
  // All ones is no answer: bit 31 of a device that is not there is set as well.
  const auto word = boot_loader(boot);
  if (!word.get<mp0::C2PMSG_33::COMPLETE>() || word.raw() == ~0u) return false;
  const auto mib = boot.io->read(kMemorySize);
  if (mib == ~0u) return base::fail(base::Errc::kDeviceLost, reads("RCC_CONFIG_MEMSIZE", mib));
  if (mib == 0)
    return base::fail(base::Errc::kUnsupported, reads("RCC_CONFIG_MEMSIZE", mib) + ", no VRAM");
  boot.vram_size = mib * base::kMiB;
  return true;
}

// The table once it has been read: parsed, and made into register blocks.
base::Result<void> understand(BootState& boot, std::span<const std::byte> bytes) {
  auto table = discovery::parse(bytes);
  if (!table) return std::unexpected(std::move(table.error()));
  auto topology = make_topology(*table, *boot.io);
  if (!topology) return std::unexpected(std::move(topology.error()));
  if (auto laid = read_memory_layout(*topology, boot.vram_size); !laid) return laid;
  boot.table = std::move(*table);
  boot.topology = std::move(*topology);
  return {};
}

}  // namespace

Step pci_step(vfio::PciDevice& device, BootState& boot) {
  Step step{.name = step_name::kPci, .deadline = milliseconds(1000), .up = {}, .down = {}};
  step.up.start = [&device, &boot]() -> base::Result<void> {
    auto bars = set_up_pci(device);
    if (!bars) return std::unexpected(std::move(bars.error()));
    boot.bars = std::move(*bars);
    if (const auto& remark = device.identity().backend_remark; !remark.empty())
      boot.remarks.push_back(remark);
    if (boot.io != nullptr) return {};
    auto bus = RegisterBus::open(device);
    if (!bus) return std::unexpected(std::move(bus.error()));
    boot.bus = std::move(*bus);
    boot.io = boot.bus.get();
    return {};
  };
  step.down.start = [&device] { return set_bus_master(device, false); };
  return step;
}

Step boot_loader_step(BootState& boot) {
  Step step{.name = step_name::kBootLoader, .deadline = milliseconds(2000), .up = {}, .down = {}};
  step.up.poll = [&boot] { return poll_boot_loader(boot); };
  step.up.waiting_for = [&boot] {
    return reads("C2PMSG_33", boot_loader(boot).raw()) + ", bit 31 expected";
  };
  step.up.every = milliseconds(5);
  return step;
}

Step discovery_step(BootState& boot) {
  Step step{.name = step_name::kDiscovery, .deadline = milliseconds(5000), .up = {}, .down = {}};
  auto reader = std::make_shared<std::unique_ptr<TableReader>>();
  step.up.start = [&boot, reader]() -> base::Result<void> {
    *reader = std::make_unique<TableReader>(*boot.io, *boot.bars.vram, boot.vram_size);
    return {};
  };
  step.up.poll = [&boot, reader]() -> base::Result<bool> {
    auto whole = (*reader)->step();
    if (!whole || !*whole) return whole;
    auto understood = understand(boot, (*reader)->bytes());
    if (!understood) return std::unexpected(std::move(understood.error()));
    return true;
  };
  step.up.waiting_for = [reader] { return (*reader)->where(); };
  return step;
}

Step nbio_step(BootState& boot) {
  Step step{.name = step_name::kNbio, .deadline = milliseconds(1000), .up = {}, .down = {}};
  step.up.start = [&boot]() -> base::Result<void> {
    const auto& nbio = boot.topology.nbio;
    enable_frame_buffer(nbio, true);
    enable_doorbells(nbio, boot.bars.doorbell_address);
    return route_sdma_doorbells(nbio, boot.topology.sdma_engines());
  };
  step.down.start = [&boot]() -> base::Result<void> {
    disable_doorbells(boot.topology.nbio);
    return {};
  };
  return step;
}

}  // namespace gpuumd
