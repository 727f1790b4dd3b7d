// One page fault of 4 KiB, from the GPU's access to its end.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tools/bench/bench.h"

namespace bench {
namespace {

constexpr std::uint64_t kVa = std::uint64_t{1} << 40;
constexpr std::uint64_t kSourceVa = std::uint64_t{1} << 41;
constexpr std::uint64_t kPage = 4096;

void print_stages(gpuumd::Client& client) {
  auto faults = nlohmann::json::parse(must(client.query(GPUUMD_QUERY_FAULTS, 0)));
  if (faults.is_array()) faults = faults.at(0);
  std::printf("  the daemon's stages of %llu faults serviced (median and p99, to 19 %%)\n",
              static_cast<unsigned long long>(faults.at("serviced").get<std::uint64_t>()));
  for (const char* stage : {"drain", "resolve", "populate", "write", "acknowledge", "total"}) {
    const auto& one = faults.at("stages").at(stage);
    std::printf("    %-12s %10.2f us %10.2f us\n", stage, one.at("p50_ns").get<double>() / 1000,
                one.at("p99_ns").get<double>() / 1000);
  }
}

}  // namespace

void run_fault(Context& context) {
  InlineDaemon system(context);
  const Section section(context, "one page fault of 4 KiB",
                        InlineDaemon::placement(context) + "; polled");
  // Enough untouched pages for all blocks.
  constexpr unsigned kFaultsABlock = 20;
  const std::uint64_t pages = (context.pairs() + 1) * kFaultsABlock;
  Work work(system.device, GPUUMD_VM_FAULTS);
  const auto buffer = must(system.device.create_buffer(GPUUMD_BUFFER_VRAM, pages * kPage));
  const auto source = must(system.device.create_buffer(GPUUMD_BUFFER_VRAM, kPage));
  gpuumd_bind_op bind{};
  bind.kind = GPUUMD_BIND_MAP;
  bind.flags = kReadWrite | GPUUMD_BIND_ON_FAULT;
  bind.va = kVa;
  bind.bytes = pages * kPage;
  bind.buffer = buffer.raw();
  bind.fault_window = kPage;
  must(work.vm.bind({&bind, 1}));
  must(work.vm.map(kSourceVa, source, 0, kPage, kReadWrite));

  std::uint64_t next = 0;
  const auto faulting =
      timed(kFaultsABlock, [&] { work.copy(kVa + next++ * kPage, kSourceVa, 64); });
  const auto present = timed(kFaultsABlock, [&] { work.copy(kSourceVa + 64, kSourceVa, 64); });
  const auto pairs = measure(context.pairs(), context.time(), faulting, present);
  print_pairs("copy of 64 bytes to an absent page", "to a present page", pairs);
  const double extra = pairs.one.median - pairs.other.median;
  print_cost("a fault as the client sees it", {extra, extra, extra});
  print_stages(system.client);
}

}  // namespace bench
