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
    : daemon(start_daemon(context, "sim:inline" + model_options, "inline", kServerCore)),
      client(connect(context, "inline")),
      device(must(client.open_device(0u))) {}

Pod::Pod(const Context& context) : model(start_model(context)) {
  for (int i = 0; i < 2; ++i) {
    const auto name = "node" + std::to_string(i);
    daemons.push_back(start_daemon(
        context, "vfio-user:" + context.directory + "/sim/gpu" + std::to_string(i) + ".sock", name,
        kClientCore));
    clients.push_back(connect(context, name));
    devices.push_back(must(clients.back().open_device(0u)));
  }
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
