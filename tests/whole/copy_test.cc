// One client: data into VRAM, copied inside it, and back.
#include <gtest/gtest.h>

#include "tests/whole/system.h"

namespace whole {
namespace {

using namespace gpuumd;

class GuestCopy : public System {};

constexpr std::uint64_t kVa = 0x10'0000'0000;
constexpr std::uint64_t kSize = 8 << 20;

TEST_F(GuestCopy, DataGoesIntoVramIsCopiedInsideAndComesBackEqual) {
  start();
  auto client = connect();
  auto device = open(client);
  auto vm = must(device.create_vm());
  auto source = must(device.create_buffer(GPUUMD_BUFFER_VRAM, kSize));
  auto target = must(device.create_buffer(GPUUMD_BUFFER_VRAM, kSize));
  must(vm.map(kVa, source, 0, kSize, GPUUMD_BIND_READ | GPUUMD_BIND_WRITE));
  must(vm.map(2 * kVa, target, 0, kSize, GPUUMD_BIND_READ | GPUUMD_BIND_WRITE));
  auto queue = must(vm.create_queue());
  auto staging = must(Staging::create(queue, 3 * kVa));

  const auto data = random_bytes(kSize, 1);
  must(staging.upload(kVa, data));
  auto fence = must(device.create_fence());
  must(queue.copy(2 * kVa, kVa, kSize));
  must(queue.signal(fence, 1));
  must(queue.submit());
  must(fence.wait(1, Wait(20s)));
  std::vector<std::byte> back(kSize);
  must(staging.download(back, 2 * kVa));
  EXPECT_TRUE(back == data);
}

TEST_F(GuestCopy, FH_6_PagesAppearWhenTheGpuTouchesThem) {
  start();
  auto client = connect();
  auto device = open(client);
  auto vm = must(device.create_vm(GPUUMD_VM_FAULTS));
  auto buffer = must(device.create_buffer(GPUUMD_BUFFER_VRAM, kSize));
  gpuumd_bind_op op{};
  op.kind = GPUUMD_BIND_MAP;
  op.flags = GPUUMD_BIND_READ | GPUUMD_BIND_WRITE | GPUUMD_BIND_ON_FAULT;
  op.va = kVa;
  op.bytes = kSize;
  op.buffer = buffer.raw();
  op.fault_window = 64 << 10;
  must(vm.bind({&op, 1}));
  auto queue = must(vm.create_queue());
  auto staging = must(Staging::create(queue, 3 * kVa));
  const auto data = random_bytes(kSize, 2);
  must(staging.upload(kVa, data));
  std::vector<std::byte> back(kSize);
  must(staging.download(back, kVa));
  EXPECT_TRUE(back == data);
  EXPECT_EQ(number(0, GPUUMD_QUERY_FAULTS, {"windows"}), kSize / op.fault_window);
  EXPECT_EQ(number(0, GPUUMD_QUERY_FAULTS, {"fatal"}), 0u);
}

}  // namespace
}  // namespace whole
