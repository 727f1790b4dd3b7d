// Many threads on one client at once (under TSan too).
#include <thread>
#include <vector>

#include "tests/client/app.h"

namespace gpuumd::fake {
namespace {

TEST_F(App, EightThreadsOnOneSession) {
  gpuumd_vm* vm = nullptr;
  ASSERT_EQ(gpuumd_vm_create(device, nullptr, nullptr, &vm), GPUUMD_OK);
  gpuumd_buffer* target = make_buffer(device, GPUUMD_BUFFER_VRAM, 1 << 20);
  ASSERT_EQ(gpuumd_vm_map(vm, 0x100000, target, 0, 1 << 20, GPUUMD_BIND_READ | GPUUMD_BIND_WRITE,
                          nullptr),
            GPUUMD_OK);
  gpuumd_queue* queue = nullptr;  // with its lock: all threads use it
  gpuumd_queue_options options{sizeof(options), 0, 32, 0};
  ASSERT_EQ(gpuumd_queue_create(vm, &options, nullptr, &queue), GPUUMD_OK);
  std::vector<std::thread> threads;
  for (std::uint32_t i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      const gpuumd_wait wait = wait_for(60'000, i % 3);
      gpuumd_fence* fence = nullptr;
      ASSERT_EQ(gpuumd_fence_create(device, &wait, &fence), GPUUMD_OK) << gpuumd_last_error();
      for (std::uint64_t round = 1; round <= 60; ++round) {
        ASSERT_EQ(gpuumd_device_ping(device, &wait), GPUUMD_OK) << gpuumd_last_error();
        if (round % 10 == 0) {
          gpuumd_buffer_options host{sizeof(host), GPUUMD_BUFFER_HOST, 0, 0, 4096, 0};
          gpuumd_buffer* buffer = nullptr;
          ASSERT_EQ(gpuumd_buffer_create(device, &host, &wait, &buffer), GPUUMD_OK)
              << gpuumd_last_error();
          void* view = nullptr;
          ASSERT_EQ(gpuumd_buffer_cpu_view(buffer, &view), GPUUMD_OK);
          ASSERT_EQ(gpuumd_buffer_destroy(buffer, &wait), GPUUMD_OK) << gpuumd_last_error();
          std::uint32_t count = 0;
          ASSERT_EQ(gpuumd_device_count(client, &wait, &count), GPUUMD_OK) << gpuumd_last_error();
        }
        ASSERT_EQ(gpuumd_queue_fill(queue, 0x100000 + i * 4096, 4096, i, &wait), GPUUMD_OK);
        ASSERT_EQ(gpuumd_queue_signal(queue, fence, round, &wait), GPUUMD_OK);
        ASSERT_EQ(gpuumd_queue_submit(queue), GPUUMD_OK);
        ASSERT_EQ(gpuumd_fence_wait(fence, round, &wait), GPUUMD_OK) << gpuumd_last_error();
      }
      ASSERT_EQ(gpuumd_fence_destroy(fence, &wait), GPUUMD_OK);
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(daemon.host().knobs.commands, 8 * 60 * 2);
  EXPECT_EQ(gpuumd_queue_destroy(queue, nullptr), GPUUMD_OK);
  EXPECT_EQ(gpuumd_vm_destroy(vm, nullptr), GPUUMD_OK);
  EXPECT_EQ(gpuumd_buffer_destroy(target, nullptr), GPUUMD_OK);
  EXPECT_EQ(daemon.host().knobs.objects, 0);
}

// More sleeping waits than the session has places for: the rest nap, and all come home.
TEST_F(App, FortyThreadsAsleepOnOneFence) {
  gpuumd_fence* fence = nullptr;
  ASSERT_EQ(gpuumd_fence_create(device, nullptr, &fence), GPUUMD_OK);
  std::atomic<int> reached{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 40; ++i)
    threads.emplace_back([&] {
      const gpuumd_wait wait = wait_for(60'000, GPUUMD_WAIT_SLEEP);
      if (gpuumd_fence_wait(fence, 5, &wait) == GPUUMD_OK) ++reached;
    });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(reached, 0);
  EXPECT_EQ(gpuumd_device_ping(device, nullptr), GPUUMD_OK) << "others get through";
  daemon.on_reactor([&] { daemon.host().last_session->set_fence(gpuumd_fence_id(fence), 5); });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(reached, 40);
  EXPECT_EQ(gpuumd_fence_destroy(fence, nullptr), GPUUMD_OK);
}

}  // namespace
}  // namespace gpuumd::fake
