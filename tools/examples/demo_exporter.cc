// Node A of the demo: puts its standard input into GPU memory, exports that memory, and takes it
// away again while another node copies it.
//
//   demo_exporter --runtime-dir DIR --control FIFO < data
//
// Prints "handle ..." when others may import. Reads "free" from the FIFO to free the memory, and
// "end" to end.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstring>
#include <random>
#include <thread>

#include "tools/examples/example.h"

namespace {

using namespace example;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

constexpr seconds kToldDeadline{300};  // until the other node has done its part
constexpr seconds kReuseDeadline{10};
constexpr std::uint64_t kStagingBytes = 4 << 20;
constexpr std::uint64_t kFillerBytes = 16 << 20;
constexpr std::uint64_t kGap = 1 << 30;  // between what lies in the address space

struct Node {
  gpuumd::Client client;
  gpuumd::Device device;
  gpuumd::Vm vm;
  gpuumd::Queue queue;
  gpuumd::Fence fence;
  std::uint64_t next_va;
  std::uint64_t next_point = 1;

  std::uint64_t take_va(std::uint64_t bytes) {
    return std::exchange(next_va, next_va + round_up(bytes, kGap));
  }
};

Node open_node(const std::string& runtime_dir) {
  auto client = need("connect", gpuumd::Client::connect(runtime_dir, "demo_exporter", seconds(60)));
  auto device = need("open the GPU", client.open_device(0));
  auto vm = need("address space", device.create_vm(GPUUMD_VM_FAULTS));
  auto queue = need("queue", vm.create_queue());
  auto fence = need("fence", device.create_fence());
  const auto first_va = round_up(device.info().va_first, kGap);
  return {std::move(client), std::move(device), std::move(vm),
          std::move(queue),  std::move(fence),  first_va};
}

// Fills GPU memory that is mapped at `va` and waits for it.
void fill(Node& node, std::uint64_t va, std::uint64_t bytes, std::uint32_t pattern) {
  const auto point = node.next_point++;
  need("fill", node.queue.fill(va, bytes, pattern));
  need("fill", node.queue.signal(node.fence, point));
  need("fill", node.queue.submit());
  need("fill", node.fence.wait(point));
}

// Takes what VRAM is left, and really: bound at once, not on fault. A buffer as large as the
// exported one can then only be had from the exported one's own memory.
std::vector<gpuumd::Buffer> take_the_rest(Node& node, std::uint64_t leave_less_than) {
  std::vector<gpuumd::Buffer> fillers;
  for (auto size = kFillerBytes;
       size >= std::min(leave_less_than, kFillerBytes) / 2 && size >= 4096; size /= 2) {
    for (;;) {
      auto filler = node.device.create_buffer(GPUUMD_BUFFER_VRAM, size);
      if (!filler && filler.error().status == GPUUMD_NO_SPACE) break;
      auto buffer = need("filler", std::move(filler));
      need("filler",
           node.vm.map(node.take_va(size), buffer, 0, size, GPUUMD_BIND_READ | GPUUMD_BIND_WRITE));
      fillers.push_back(std::move(buffer));
    }
  }
  const auto more = node.device.create_buffer(GPUUMD_BUFFER_VRAM, leave_less_than);
  if (more || more.error().status != GPUUMD_NO_SPACE)
    die("VRAM has room for a second buffer, so a reuse of the first would prove nothing");
  return fillers;
}

// A buffer of that size: NO_SPACE until the freed memory is out of every importer's reach.
gpuumd::Buffer wait_for_memory(Node& node, std::uint64_t bytes) {
  const auto start = Clock::now();
  for (;;) {
    auto buffer = node.device.create_buffer(GPUUMD_BUFFER_VRAM, bytes);
    if (buffer) return std::move(*buffer);
    if (buffer.error().status != GPUUMD_NO_SPACE || Clock::now() - start > kReuseDeadline)
      die("a new buffer after the old one was freed: " + buffer.error().text);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Uploads through memory whose pages do not exist yet: the GPU faults on them as it goes.
void upload_on_fault(Node& node, std::uint64_t va, const gpuumd::Buffer& buffer,
                     std::span<const std::byte> data) {
  map_on_fault(node.vm, va, buffer, buffer.bytes());
  const auto start = Clock::now();
  auto staging = need(
      "staging", gpuumd::Staging::create(node.queue, node.take_va(kStagingBytes), kStagingBytes));
  need("upload", staging.upload(va, data));
  say("uploaded",
      std::to_string(data.size()) + " bytes in " + std::to_string(seconds_since(start)) + " s");
  const auto expected = windows(buffer.bytes());
  say("windows",
      std::to_string(expected.big) + " of 2 MiB, " + std::to_string(expected.small) + " of 4 KiB");
}

// Frees the exported buffer and gets its memory again, with other contents.
void free_and_reuse(Node& node, std::optional<gpuumd::Buffer> exported, std::uint64_t va) {
  const auto bytes = exported->bytes();
  const auto start = Clock::now();
  need("unmap", node.vm.unmap(va, bytes));
  exported.reset();  // the last reference: revokes the export
  auto next = wait_for_memory(node, bytes);
  say("reused", "a new buffer of this size after " + std::to_string(seconds_since(start)) + " s");
  const auto at = node.take_va(bytes);
  need("map", node.vm.map(at, next, 0, bytes, GPUUMD_BIND_READ | GPUUMD_BIND_WRITE));
  const std::uint32_t secret = std::random_device{}();
  fill(node, at, bytes, secret);
  std::array<std::byte, 4> check{};
  {
    auto staging = need(
        "staging", gpuumd::Staging::create(node.queue, node.take_va(kStagingBytes), kStagingBytes));
    need("read back", staging.download(check, at + bytes - check.size()));
  }
  if (std::memcmp(check.data(), &secret, sizeof(secret)) != 0) die("the new buffer was not filled");
  say("secret", "the new buffer is full of a secret");
}

void run(const std::string& runtime_dir, const std::string& control) {
  const auto data = read_all(STDIN_FILENO);
  if (data.empty()) die("nothing on standard input");
  auto node = open_node(runtime_dir);

  const std::uint64_t bytes = round_up(data.size(), 4096);
  const auto va = node.take_va(bytes);
  auto buffer = need("buffer", node.device.create_buffer(GPUUMD_BUFFER_VRAM, bytes));
  upload_on_fault(node, va, buffer, data);
  const auto handle = need("export", buffer.export_handle());
  const auto fillers = take_the_rest(node, bytes);
  say("full", "VRAM has no room for a second buffer of this size");
  say("handle", handle.text());

  if (wait_for_line(control, kToldDeadline) != "free") die("expected the word \"free\"");
  free_and_reuse(node, std::move(buffer), va);
  if (wait_for_line(control, kToldDeadline) != "end") die("expected the word \"end\"");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"demo_exporter: exports GPU memory that holds its standard input"};
  std::string runtime_dir, control;
  app.add_option("--runtime-dir", runtime_dir, "of this node's gpuumd");
  app.add_option("--control", control, "FIFO with the words \"free\" and \"end\"")->required();
  CLI11_PARSE(app, argc, argv);
  run(runtime_dir, control);
}
