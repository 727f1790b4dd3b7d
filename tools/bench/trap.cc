// What vfio/ costs by itself, on any device of ours: accesses that are trapped and that are mapped,
// DMA mappings of 2 MiB.
#include <filesystem>

#include "base/shared_memory.h"
#include "tools/bench/bench.h"
#include "vfio/pci_device.h"

namespace bench {
namespace {

constexpr std::uint64_t kBytes = 2 << 20;
constexpr std::uint64_t kTrapped = 0;  // of BAR 5: MM_INDEX, whose page is never mapped

Program start_model(const Context& context) {
  const auto directory = context.directory + "/trap";
  std::filesystem::create_directories(directory);
  return must(Program::start(context.bin + "/gpusim", {"--dir", directory}, kServerCore, "ready",
                             context.directory + "/trap.log"));
}

// Where the backend can map 2 MiB.
base::Iova first_iova(vfio::PciDevice& device) {
  for (const auto& range : device.iova_limits().usable) {
    const auto at = (range.first.value() + kBytes - 1) & ~(kBytes - 1);
    if (at >= range.first.value() && at + kBytes - 1 <= range.last.value()) return base::Iova(at);
  }
  throw Failed("the device has no IOVAs for 2 MiB");
}

void print_accesses(Context& context, vfio::PciDevice& device) {
  const auto registers = must(device.open_bar(vfio::BarIndex::k5));
  const auto vram = must(device.open_bar(vfio::BarIndex::k0));
  const auto trapped = timed(100, [&] { (void)registers->read32(kTrapped); });
  if (vram->mapped().empty()) {
    print_cost("read of a trapped register",
               measure(context.pairs(), context.time(), trapped, trapped).one);
  } else {
    const auto mapped = timed(1000, [&] { (void)vram->read32(0); });
    print_pairs("read of a trapped register", "read of mapped VRAM",
                measure(context.pairs(), context.time(), trapped, mapped));
  }
  const auto write = timed(100, [&] { registers->write32(kTrapped, 0); });
  const auto config = timed(100, [&] { must(device.read_config(0, 4)); });
  print_pairs("write of a trapped register", "read of the same",
              measure(context.pairs(), context.time(), write, trapped));
  print_pairs("read of configuration space", "read of a trapped register",
              measure(context.pairs(), context.time(), config, trapped));
}

void print_mappings(Context& context, vfio::PciDevice& device) {
  const auto memory = must(base::make_memfd("gpuumd-bench", kBytes));
  auto view = must(base::Mapping::map(memory.get(), 0, kBytes, PROT_READ | PROT_WRITE));
  std::fill(view.data(), view.data() + kBytes, std::byte{1});  // its pages are there
  const auto at = first_iova(device);
  bool mapped = false;
  const auto unmap = [&] {
    if (std::exchange(mapped, false)) must(device.unmap_dma(at, kBytes));
  };
  const auto map = [&] {
    if (std::exchange(mapped, true)) return;
    must(device.map_dma(memory.get(), 0, kBytes, at, vfio::Rights::kReadWrite));
  };
  print_pairs("DMA map of 2 MiB in pages of 4 KiB", "unmap",
              measure(context.pairs(), context.time(), timed(5, map, unmap), timed(5, unmap, map)));
  unmap();
}

}  // namespace

void run_trap(Context& context) {
  std::optional<Program> model;
  if (context.devices.empty()) model = start_model(context);
  const auto name = context.devices.empty() ? "vfio-user:" + context.directory + "/trap/gpu0.sock"
                                            : context.devices[0];
  const auto device = must(vfio::open_device(name));
  const Section section(context, "vfio/ alone",
                        name + (model ? "; driver on core 0, gpusim on core 1" : ""));
  print_accesses(context, *device);
  print_mappings(context, *device);
  if (device->lost()) throw Failed("the device was lost");
}

}  // namespace bench
