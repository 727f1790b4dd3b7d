#include "tools/gpuctl/demo.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <vector>

#include "tools/gpuctl/table.h"

namespace gpuctl {
namespace {

using nlohmann::json;

constexpr std::uint64_t kWindow = 64 << 10;  // of a page fault
constexpr std::uint64_t kRange = 2 << 20;    // the buffers start at multiples of it
constexpr std::uint64_t kStagingBytes = 4 << 20;

std::vector<std::byte> random_bytes(std::uint64_t bytes) {
  std::mt19937_64 engine(std::random_device{}());
  std::vector<std::byte> data(bytes);
  for (std::uint64_t at = 0; at < bytes; at += sizeof(std::uint64_t)) {
    const std::uint64_t word = engine();
    std::memcpy(data.data() + at, &word, sizeof(word));
  }
  return data;
}

std::uint64_t align_up(std::uint64_t value) { return (value + kRange - 1) / kRange * kRange; }

using Clock = std::chrono::steady_clock;

// The objects of the demo. The order of the members is that of their making: they go in reverse.
struct Objects {
  gpuumd::Device device;
  gpuumd::Vm vm;
  gpuumd::Buffer source;
  gpuumd::Buffer target;
  gpuumd::Fence fence;
  gpuumd::Queue queue;
};

// The value, or a gpuctl failure that says at which step.
template <class T>
Outcome<T> at_step(const char* step, gpuumd::Outcome<T> result) {
  if (!result) return std::unexpected(failure(result.error(), step));
  if constexpr (!std::is_void_v<T>)
    return std::move(*result);
  else
    return {};
}

Outcome<Objects> make_objects(Daemon& daemon, std::uint64_t bytes, const gpuumd::Wait& wait) {
  auto device = at_step("open", daemon.client.open_device(daemon.devices.front().index, wait));
  if (!device) return std::unexpected(device.error());
  auto vm = at_step("address space", device->create_vm(GPUUMD_VM_FAULTS, wait));
  if (!vm) return std::unexpected(vm.error());
  auto source = at_step("source", device->create_buffer(GPUUMD_BUFFER_VRAM, bytes, 0, wait));
  if (!source) return std::unexpected(source.error());
  auto target = at_step("target", device->create_buffer(GPUUMD_BUFFER_VRAM, bytes, 0, wait));
  if (!target) return std::unexpected(target.error());
  auto fence = at_step("fence", device->create_fence(wait));
  if (!fence) return std::unexpected(fence.error());
  auto queue = at_step("queue", vm->create_queue(GPUUMD_QUEUE_SINGLE_THREAD, 0, 0, wait));
  if (!queue) return std::unexpected(queue.error());
  return Objects{std::move(*device), std::move(*vm),    std::move(*source),
                 std::move(*target), std::move(*fence), std::move(*queue)};
}

// Where the two buffers and the staging buffer lie in the address space.
struct Places {
  std::uint64_t source, target, staging;
};

Places places(const gpuumd_device_info& info, std::uint64_t bytes) {
  const auto first = align_up(info.va_first);
  return {first, first + align_up(bytes), first + 2 * align_up(bytes)};
}

Outcome<void> map_on_fault(Objects& objects, const Places& at, std::uint64_t bytes,
                           const gpuumd::Wait& wait) {
  gpuumd_bind_op map{};
  map.kind = GPUUMD_BIND_MAP;
  map.flags = GPUUMD_BIND_READ | GPUUMD_BIND_WRITE | GPUUMD_BIND_ON_FAULT;
  map.bytes = bytes;
  map.fault_window = kWindow;
  gpuumd_bind_op both[] = {map, map};
  both[0].va = at.source;
  both[0].buffer = objects.source.raw();
  both[1].va = at.target;
  both[1].buffer = objects.target.raw();
  return at_step("map", objects.vm.bind(both, wait));
}

// How long the GPU took.
Outcome<double> copy(Objects& objects, const Places& at, std::uint64_t bytes,
                     const gpuumd::Wait& wait) {
  const auto start = Clock::now();
  auto done = at_step("copy", objects.queue.copy(at.target, at.source, bytes, wait));
  if (done) done = at_step("signal", objects.queue.signal(objects.fence, 1, wait));
  if (done) done = at_step("submit", objects.queue.submit());
  if (done) done = at_step("copy", objects.fence.wait(1, wait));
  if (!done) return std::unexpected(done.error());
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Page faults that the device has had serviced so far.
Outcome<std::uint64_t> serviced(Daemon& daemon, const gpuumd::Wait& wait) {
  auto text = at_step("faults",
                      daemon.client.query(GPUUMD_QUERY_FAULTS, daemon.devices.front().index, wait));
  if (!text) return std::unexpected(text.error());
  const auto answer = json::parse(*text, nullptr, false);
  if (!answer.is_object()) return std::unexpected(Failure{kFailed, "faults: no JSON object"});
  return answer.value("serviced", std::uint64_t{0});
}

struct Result {
  double copy_seconds = 0;
  std::uint64_t faults = 0;
  bool equal = false;
};

Outcome<Result> prove(Daemon& daemon, const Deadline& deadline, std::uint64_t bytes) {
  const auto before = serviced(daemon, deadline.wait());
  if (!before) return std::unexpected(before.error());
  auto objects = make_objects(daemon, bytes, deadline.wait());
  if (!objects) return std::unexpected(objects.error());
  const auto at = places(daemon.devices.front(), bytes);
  if (auto done = map_on_fault(*objects, at, bytes, deadline.wait()); !done)
    return std::unexpected(done.error());
  auto staging = at_step("staging", gpuumd::Staging::create(objects->queue, at.staging,
                                                            kStagingBytes, deadline.wait()));
  if (!staging) return std::unexpected(staging.error());

  const auto data = random_bytes(bytes);
  if (auto done = at_step("upload", staging->upload(at.source, data, deadline.wait())); !done)
    return std::unexpected(done.error());
  const auto seconds = copy(*objects, at, bytes, deadline.wait());
  if (!seconds) return std::unexpected(seconds.error());
  std::vector<std::byte> back(bytes);
  if (auto done = at_step("download", staging->download(back, at.target, deadline.wait())); !done)
    return std::unexpected(done.error());
  const auto after = serviced(daemon, deadline.wait());
  if (!after) return std::unexpected(after.error());
  return Result{*seconds, *after - *before, data == back};
}

}  // namespace

Outcome<json> run_demo(const Target& target, std::uint64_t bytes) {
  const Deadline deadline(target.timeout);
  auto daemon = open_daemon(target, deadline);
  if (!daemon) return std::unexpected(daemon.error());
  if (daemon->devices.empty()) return std::unexpected(Failure{kNotFound, "daemon has no device"});
  const auto result = prove(*daemon, deadline, bytes);
  if (!result) return std::unexpected(result.error());
  if (!result->equal)
    return std::unexpected(Failure{kFailed, "what came back from the GPU is not what went there"});

  json entry = device_head(daemon->devices.front());
  entry["bytes"] = bytes;
  entry["copy_seconds"] = result->copy_seconds;
  entry["faults_serviced"] = result->faults;
  entry["equal"] = true;
  entry["steps"] = {
      "uploaded " + bytes_text(bytes) + " of random data into memory that appears on page faults",
      "copied it to another buffer on the GPU, page faults included: " +
          rate_text(bytes, result->copy_seconds),
      std::to_string(result->faults) + " page faults serviced", "downloaded: equal"};
  return json{
      {"verb", "demo"}, {"runtime_dir", shown_dir(target)}, {"devices", json::array({entry})}};
}

}  // namespace gpuctl
