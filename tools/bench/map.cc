// Map and unmap from a client, by page size, beside an empty round trip.
#include <vector>

#include "tools/bench/bench.h"

namespace bench {
namespace {

constexpr std::uint64_t kVa = std::uint64_t{1} << 40;
constexpr std::uint64_t kKiB = 1024, kMiB = 1024 * kKiB, kGiB = 1024 * kMiB;

struct Case {
  const char* name;
  std::uint64_t page;
  std::uint64_t bytes;
  std::uint64_t offset;  // in the buffer: not a multiple of a larger page keeps the leaves small
};

void print_per_page(const char* what, const Case& each, const Spread& cost) {
  const auto pages = static_cast<double>(each.bytes / each.page);
  if (pages > 1)
    print_cost(std::string(what) + " a page",
               {cost.median / pages, cost.low / pages, cost.high / pages});
}

void run_case(Context& context, InlineDaemon& system, gpuumd::Vm& vm, const gpuumd::Buffer& buffer,
              const Case& each) {
  // Long, because the first to map a buffer waits until it is zeroed.
  const gpuumd::Wait wait(std::chrono::seconds(30), GPUUMD_WAIT_POLL);
  const auto map = [&] { must(vm.map(kVa, buffer, each.offset, each.bytes, kReadWrite, wait)); };
  const auto unmap = [&] { must(vm.unmap(kVa, each.bytes, wait)); };
  const auto ping = timed(50, [&] { must(system.device.ping(wait)); });
  bool mapped = false;
  const auto mapping = timed(
      10, [&] { map(), mapped = true; },
      [&] {
        if (std::exchange(mapped, false)) unmap();
      });
  const auto unmapping = timed(
      10, [&] { unmap(), mapped = false; },
      [&] {
        if (!std::exchange(mapped, true)) map();
      });
  const auto maps = measure(context.pairs(), context.time() / 2, mapping, ping);
  print_pairs(std::string("map   ") + each.name, "ping", maps);
  print_per_page("map  ", each, maps.one);
  const auto unmaps = measure(context.pairs(), context.time() / 2, unmapping, ping);
  print_pairs(std::string("unmap ") + each.name, "ping", unmaps);
  print_per_page("unmap", each, unmaps.one);
  if (mapped) unmap();
}

}  // namespace

void run_map(Context& context) {
  InlineDaemon system(context, ",vram=4G");
  const Section section(context, "map and unmap, VRAM, TLBs flushed when it returns",
                        InlineDaemon::placement(context) + "; polled");
  auto vm = must(system.device.create_vm());
  // A given device may have less.
  const bool large_vram = system.device.info().vram_bytes >= 2 * kGiB;
  const std::uint64_t bytes = large_vram ? 256 * kMiB : 64 * kMiB;
  const auto small = must(system.device.create_buffer(GPUUMD_BUFFER_VRAM, bytes, 2 * kMiB,
                                                      gpuumd::Wait(std::chrono::seconds(30))));
  const std::vector<Case> cases = {
      {"one page of 4 KiB", 4 * kKiB, 4 * kKiB, 0},
      {"one page of 2 MiB", 2 * kMiB, 2 * kMiB, 0},
      {"4096 pages of 4 KiB", 4 * kKiB, 16 * kMiB, 4 * kKiB},
      {large_vram ? "128 pages of 2 MiB" : "32 pages of 2 MiB", 2 * kMiB, bytes, 0},
  };
  for (const auto& each : cases) run_case(context, system, vm, small, each);
  if (!large_vram) return;
  // Where the blocks of 2 MiB lie side by side and aligned, as in empty VRAM, it is one entry.
  const auto large = must(system.device.create_buffer(GPUUMD_BUFFER_VRAM, kGiB, 2 * kMiB,
                                                      gpuumd::Wait(std::chrono::seconds(30))));
  run_case(context, system, vm, large, {"1 GiB", kGiB, kGiB, 0});
}

}  // namespace bench
