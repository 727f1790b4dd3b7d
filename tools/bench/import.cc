// Import of another node's buffer.
#include "tools/bench/bench.h"

namespace bench {

using namespace std::chrono_literals;

void run_import(Context& context, Pod& pod) {
  const Section section(context, "import of 2 MiB", Pod::placement(context));
  auto exported = must(pod.devices[0].create_buffer(GPUUMD_BUFFER_VRAM, 2 << 20));
  const auto handle = must(exported.export_handle());
  auto& importer = pod.devices[1];
  const auto import = [&] { return must(importer.import_handle(handle, gpuumd::Wait(20s))); };

  const auto ping = timed(20, [&] { must(importer.ping()); });
  {
    const auto start = ticks();
    const auto first = import();
    const auto took = to_ns(ticks() - start);
    print_cost("import, first of a pair of nodes: they connect", {took, took, took});
  }
  // Cold: nobody on this node holds it, so that the exporter is asked. Freed again before the next.
  std::optional<gpuumd::Buffer> held;
  const auto cold = timed(5, [&] { held = import(); }, [&] { held.reset(); });
  print_pairs("import, cold", "ping", measure(context.pairs(), context.time(), cold, ping));
  held.reset();

  // Warm: another client of this node holds it.
  auto other = must(gpuumd::Client::connect(context.directory + "/node1", "holder", 20s));
  auto other_device = must(other.open_device(0u));
  const auto holder = must(other_device.import_handle(handle, gpuumd::Wait(20s)));
  const auto warm = timed(5, [&] { held = import(); }, [&] { held.reset(); });
  print_pairs("import, warm", "ping", measure(context.pairs(), context.time(), warm, ping));
}

}  // namespace bench
