// What most tests need of a client: a VM with a queue, a fence and staging.
#pragma once

#include <memory>
#include <optional>
#include <thread>

#include "tests/whole/system.h"

namespace whole {

inline constexpr std::uint64_t kVa = 0x10'0000'0000;
inline constexpr std::uint64_t kStagingVa = 0x70'0000'0000;
inline constexpr std::uint32_t kReadWrite = GPUUMD_BIND_READ | GPUUMD_BIND_WRITE;

struct Space {
  gpuumd::Vm vm;
  gpuumd::Queue queue;
  gpuumd::Fence fence;
  gpuumd::Staging staging;
  std::uint64_t point = 0;

  static Space make(gpuumd::Device& device, std::uint32_t flags = 0) {
    auto vm = must(device.create_vm(flags));
    auto queue = must(vm.create_queue());
    auto fence = must(device.create_fence());
    auto staging = must(gpuumd::Staging::create(queue, kStagingVa));
    return {std::move(vm), std::move(queue), std::move(fence), std::move(staging)};
  }
  // Copies and waits; how the fence ended.
  gpuumd::Outcome<void> copy(std::uint64_t to, std::uint64_t from, std::uint64_t bytes) {
    if (auto put = queue.copy(to, from, bytes, gpuumd::Wait(20s)); !put) return put;
    if (auto put = queue.signal(fence, ++point, gpuumd::Wait(20s)); !put) return put;
    if (auto put = queue.submit(); !put) return put;
    return fence.wait(point, gpuumd::Wait(30s));
  }
  void map_on_fault(std::uint64_t va, const gpuumd::Buffer& buffer, std::uint64_t bytes,
                    std::uint64_t window, std::uint32_t rights = kReadWrite) {
    gpuumd_bind_op op{};
    op.kind = GPUUMD_BIND_MAP;
    op.flags = rights | GPUUMD_BIND_ON_FAULT;
    op.va = va;
    op.bytes = bytes;
    op.buffer = buffer.raw();
    op.fault_window = window;
    must(vm.bind({&op, 1}));
  }
  std::vector<std::byte> read(std::uint64_t va, std::uint64_t bytes) {
    std::vector<std::byte> data(bytes);
    must(staging.download(data, va, gpuumd::Wait(30s)));
    return data;
  }
};

inline gpuumd::Buffer vram(gpuumd::Device& device, std::uint64_t bytes) {
  return must(device.create_buffer(GPUUMD_BUFFER_VRAM, bytes));
}

// The next event of a kind, within the patience of tests.
inline std::optional<gpuumd_event> wait_event(gpuumd::Client& client, std::uint32_t kind) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < end) {
    auto event = client.next_event();
    if (event && event->kind == kind) return *event;
    if (!event && event.error().status != GPUUMD_AGAIN) return std::nullopt;
    if (!event) std::this_thread::sleep_for(1ms);
  }
  return std::nullopt;
}

// Polls until `ready` says so; false when patience ends.
template <class Ready>
bool eventually(Ready ready) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (std::chrono::steady_clock::now() < end) {
    if (ready()) return true;
    std::this_thread::sleep_for(10ms);
  }
  return false;
}

}  // namespace whole
