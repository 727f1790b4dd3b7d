#include <filesystem>

#include "tools/bench/bench.h"

namespace bench {
namespace {

using namespace std::chrono_literals;

Program start_daemon(const Context& context, const std::string& device, const std::string& name,
                     int core) {
  return must(Program::start(context.bin + "/gpuumd",
                             {"--device", device, "--runtime-dir", context.directory + "/" + name,
                              "--no-same-host", "--log-level", "warn"},
                             core, "gpuumd: ready", context.directory + "/" + name + ".log"));
}

Program start_model(const Context& context) {
  const auto directory = context.directory + "/sim";
  std::filesystem::create_directories(directory);
  return must(Program::start(context.bin + "/gpusim", {"--dir", directory, "--gpus", "2"},
                             kServerCore, "ready", context.directory + "/gpusim.log"));
}

gpuumd::Client connect(const Context& context, const std::string& name) {
  return must(gpuumd::Client::connect(context.directory + "/" + name, "bench", 20s));
}

}  // namespace

InlineDaemon::InlineDaemon(const Context& context, const std::string& model_options)
    : daemon(start_daemon(
          context, context.devices.empty() ? "sim:inline" + model_options : context.devices[0],
          "inline", kServerCore)),
      client(connect(context, "inline")),
      device(must(client.open_device(0u))) {}

std::string InlineDaemon::placement(const Context& context) {
  return (context.devices.empty() ? "model in line" : context.devices[0]) +
         "; threads: client on core 0, reactor on core 1";
}

Pod::Pod(const Context& context) {
  auto names = context.devices;
  if (names.empty()) {
    model = start_model(context);
    for (int i = 0; i < 2; ++i)
      names.push_back("vfio-user:" + context.directory + "/sim/gpu" + std::to_string(i) + ".sock");
  }
  if (names.size() < 2) throw Failed("import and copy need two devices of one pod");
  for (int i = 0; i < 2; ++i) {
    const auto name = "node" + std::to_string(i);
    daemons.push_back(start_daemon(context, names[i], name, kClientCore));
    clients.push_back(connect(context, name));
    devices.push_back(must(clients.back().open_device(0u)));
  }
}

std::string Pod::placement(const Context& context) {
  return (context.devices.empty() ? "one gpusim with both GPUs on core 1"
                                  : context.devices[0] + " and " + context.devices[1]) +
         "; both daemons and the client on core 0";
}

Work::Work(gpuumd::Device& device, std::uint32_t vm_flags)
    : vm(must(device.create_vm(vm_flags))),
      queue(must(vm.create_queue(GPUUMD_QUEUE_SINGLE_THREAD))),
      fence(must(device.create_fence())) {}

void Work::copy(std::uint64_t to, std::uint64_t from, std::uint64_t bytes,
                const gpuumd::Wait& wait) {
  must(queue.copy(to, from, bytes));
  must(queue.signal(fence, ++point));
  must(queue.submit());
  must(fence.wait(point, wait));
}

}  // namespace bench
