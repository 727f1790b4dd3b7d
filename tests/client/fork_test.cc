// A forked child that uses its parent's objects gets an error, and does no harm.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/client/app.h"

namespace gpuumd::fake {
namespace {

TEST_F(App, EveryCallInAForkedChildIsTheWrongProcess) {
  gpuumd_vm* vm = nullptr;
  ASSERT_EQ(gpuumd_vm_create(device, nullptr, nullptr, &vm), GPUUMD_OK);
  gpuumd_buffer* buffer = make_buffer(device, GPUUMD_BUFFER_HOST, 4096);
  void* view = nullptr;
  ASSERT_EQ(gpuumd_buffer_cpu_view(buffer, &view), GPUUMD_OK);
  gpuumd_queue* queue = nullptr;
  ASSERT_EQ(gpuumd_queue_create(vm, nullptr, nullptr, &queue), GPUUMD_OK);
  gpuumd_fence* fence = nullptr;
  ASSERT_EQ(gpuumd_fence_create(device, nullptr, &fence), GPUUMD_OK);

  const pid_t pid = ::fork();
  if (pid == 0) {
    int step = 0;
    const auto check = [&](gpuumd_status status) {
      ++step;
      if (status != GPUUMD_WRONG_PROCESS) ::_exit(step);
    };
    gpuumd_event event{};
    event.size = sizeof(event);
    gpuumd_device_info info{};
    info.size = sizeof(info);
    gpuumd_handle handle{};
    std::uint64_t value;
    std::uint32_t count;
    int fd;
    char* json;
    gpuumd_device* other;
    check(gpuumd_device_ping(device, nullptr));
    check(gpuumd_device_count(client, nullptr, &count));
    check(gpuumd_device_open(client, nullptr, 0, nullptr, &other));
    check(gpuumd_device_get_info(device, &info));
    check(gpuumd_query(client, 1, 0, nullptr, &json));
    check(gpuumd_event_next(client, &event));
    check(gpuumd_event_fd(client, &fd));
    check(gpuumd_vm_unmap(vm, 0, 4096, nullptr));
    check(gpuumd_buffer_cpu_view(buffer, &view));
    check(gpuumd_export(buffer, nullptr, &handle));
    check(gpuumd_buffer_share(buffer, nullptr, &fd));
    check(gpuumd_queue_fill(queue, 0, 4, 0, nullptr));
    check(gpuumd_queue_submit(queue));
    check(gpuumd_fence_query(fence, &value, nullptr, nullptr));
    check(gpuumd_fence_wait(fence, 1, nullptr));
    check(gpuumd_fence_destroy(fence, nullptr));
    check(gpuumd_queue_destroy(queue, nullptr));
    check(gpuumd_buffer_destroy(buffer, nullptr));
    check(gpuumd_vm_destroy(vm, nullptr));
    gpuumd_device_close(device);
    gpuumd_disconnect(client);
    // The host buffer is not there.
    unsigned char present = 0;
    if (::mincore(view, 4096, &present) == 0) ::_exit(100);
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "step of the child that gave something else";
  EXPECT_EQ(gpuumd_device_ping(device, nullptr), GPUUMD_OK) << "the parent goes on";
  EXPECT_EQ(gpuumd_fence_destroy(fence, nullptr), GPUUMD_OK);
  EXPECT_EQ(gpuumd_queue_destroy(queue, nullptr), GPUUMD_OK);
  EXPECT_EQ(gpuumd_buffer_destroy(buffer, nullptr), GPUUMD_OK);
  EXPECT_EQ(gpuumd_vm_destroy(vm, nullptr), GPUUMD_OK);
}

}  // namespace
}  // namespace gpuumd::fake
