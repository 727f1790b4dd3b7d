// Clients that write where they must not: fences, reserved addresses, rings.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <random>

#include "tests/whole/neighbour.h"
#include "tests/whole/raw_queue.h"

namespace whole {
namespace {

using namespace gpuumd;

constexpr std::uint64_t kSize = 4 << 20;
// What the daemon keeps above the addresses of binds: the IBs, read-only, and the fence page.
constexpr std::uint64_t kFenceWindow = 4 << 20;

class Hostile : public WithNeighbours {};

// ---- fences and reserved addresses ----

TEST_F(Hostile, AForgedFencePageFreesNothingEarly) {
  start({.gpus = 1, .model = {{"vram", "128M"}, {"bar0", "64M"}}, .daemon = {}});
  auto attacker = connect(0, "attacker"), neighbour = connect(0, "neighbour");
  auto bad = open(attacker), good = open(neighbour);
  auto space = Space::make(bad);
  auto other_queue = must(space.vm.create_queue());
  constexpr std::uint64_t kBytes = 32 << 20;
  auto source = std::make_optional(vram(bad, kBytes)),
       target = std::make_optional(vram(bad, kBytes));
  must(space.vm.map(kVa, *source, 0, kBytes, kReadWrite));
  must(space.vm.map(2 * kVa, *target, 0, kBytes, kReadWrite));
  must(space.queue.fill(kVa, kBytes, 0x0BAD'0BAD));
  must(space.queue.signal(space.fence, 1));
  must(space.queue.submit());
  must(space.fence.wait(1, Wait(20s)));
  // A long stream of copies into the buffer, behind it the honest signal; the second queue writes
  // the fence's slot (the first of the page) itself, far ahead of them.
  (void)control(R"({"command": "sdma0.0.slow", "us": 2000})");
  for (int n = 0; n < 20; ++n) must(space.queue.copy(2 * kVa, kVa, kBytes));
  must(space.queue.signal(space.fence, 2));
  must(space.queue.submit());
  const std::uint64_t forged = 1000;
  must(other_queue.write(bad.info().va_end + kFenceWindow, std::as_bytes(std::span(&forged, 1))));
  must(other_queue.submit());
  ASSERT_TRUE(eventually([&] { return must(space.fence.value()) >= forged; }));
  EXPECT_GT(count({"work", "in_flight"}), 0u) << "the copies ended too soon for this test";

  // It believes itself, and frees what its copies are writing.
  must(space.vm.unmap(2 * kVa, kBytes, Wait(15s)));
  target.reset();
  // The neighbour takes all memory there is, so that too, and puts canaries into it.
  auto home = Space::make(good);
  std::vector<Buffer> taken;
  std::uint64_t va = kVa;
  for (std::uint64_t size : {8 << 20, 1 << 20})
    while (auto buffer = good.create_buffer(GPUUMD_BUFFER_VRAM, size)) {
      must(home.vm.map(va, *buffer, 0, size, kReadWrite, Wait(15s)));
      must(home.queue.fill(va, size, 0xCA'11'AB'1E));
      taken.push_back(std::move(*buffer));
      va += size;
    }
  ASSERT_GE(va - kVa, kBytes);
  must(home.queue.signal(home.fence, ++home.point));
  must(home.queue.submit());
  must(home.fence.wait(home.point, Wait(30s)));
  ASSERT_TRUE(eventually([&] { return must(space.vm.state()) == GPUUMD_FAULT; }));
  ASSERT_TRUE(eventually([&] { return count({"work", "in_flight"}) == 0; }));
  const std::uint32_t canary = 0xCA'11'AB'1E;
  std::uint64_t wrong = 0;
  const auto seen = home.read(kVa, va - kVa);
  for (std::size_t at = 0; at < seen.size(); at += 4)
    wrong += std::memcmp(&seen[at], &canary, 4) != 0;
  EXPECT_EQ(wrong, 0u);
}

TEST_F(Hostile, TheFencePageCannotBeMadeWritable) {
  start();
  fake::RawClient raw(runtime_dir(0));
  ASSERT_TRUE(raw.shake_hands());
  fake::RawSession session(std::move(*raw.open_session()));
  const int fences = session.descriptors.at(1).get();
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fences, 0), MAP_FAILED);
  void* view = ::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, fences, 0);
  ASSERT_NE(view, MAP_FAILED);
  EXPECT_NE(::mprotect(view, 4096, PROT_READ | PROT_WRITE), 0);
  ::munmap(view, 4096);
  const char byte = 1;
  EXPECT_LT(::pwrite(fences, &byte, 1, 0), 0);
  EXPECT_NE(::ftruncate(fences, 0), 0);
  EXPECT_NE(::fallocate(fences, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  base::UniqueFd again(::open(("/proc/self/fd/" + std::to_string(fences)).c_str(), O_RDWR));
  if (again) {
    EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, again.get(), 0),
              MAP_FAILED);
  }
  // The rings are writable, which they must be, but keep their size.
  EXPECT_NE(::ftruncate(session.descriptors.at(0).get(), 0), 0);
}

TEST_F(Hostile, NoGpuCommandReachesTheIndirectBuffers) {
  start();
  Neighbour neighbour(runtime_dir(0));
  auto client = connect();
  auto device = open(client);
  const auto reserved = device.info().va_end;
  struct {
    const char* what;
    std::uint64_t to, from;
  } const kCases[] = {
      {"write over the IBs", reserved, kStagingVa},
      {"write past the fence page", reserved + 2 * kFenceWindow, kStagingVa},
      {"the last page", (std::uint64_t{1} << 57) - 4096, kStagingVa},
      {"past the address space", (std::uint64_t{1} << 57) + kStagingVa, kStagingVa},
      {"far past the address space", (std::uint64_t{1} << 63) + kStagingVa, kStagingVa},
      {"read past the address space", kStagingVa, (std::uint64_t{1} << 57) + kStagingVa},
      {"page 0", 0, kStagingVa},
  };
  for (const auto& one : kCases) {
    for (const std::uint32_t mode : {0u, static_cast<std::uint32_t>(GPUUMD_VM_FAULTS)}) {
      auto space = Space::make(device, mode);
      const auto done = space.copy(one.to, one.from, 4096);
      ASSERT_FALSE(done) << one.what;
      EXPECT_TRUE(done.error().status == GPUUMD_FAULT || done.error().status == GPUUMD_PERMISSION)
          << one.what << ": " << done.error().text;
      EXPECT_NE(must(space.vm.state()), GPUUMD_OK) << one.what;
      auto after = space.vm.map(kVa, vram(device, 4096), 0, 4096, kReadWrite);
      EXPECT_FALSE(after) << "a dead VM takes binds: " << one.what;
    }
  }
  EXPECT_TRUE(neighbour.works());
}

TEST_F(Hostile, FenceWritesOfItsOwnDeceiveOnlyTheWriter) {
  start();
  Neighbour neighbour(runtime_dir(0));
  auto client = connect();
  auto device = open(client);
  auto space = Space::make(device);
  must(space.queue.fill(device.info().va_end + kFenceWindow, 16 << 10, 0xFFFF'FFFF));
  must(space.queue.submit());
  EXPECT_TRUE(eventually([&] { return must(space.fence.value()) > 1; }));
  EXPECT_TRUE(neighbour.works());
  // The daemon's own view of that fence is another one.
  EXPECT_TRUE(eventually([&] { return count({"work", "in_flight"}) <= 2; }));
}

TEST_F(Hostile, ReservedAddressesTakeNoBinds) {
  start();
  auto client = connect();
  auto device = open(client);
  auto vm = must(device.create_vm());
  auto buffer = vram(device, kSize);
  const auto end = device.info().va_end, first = device.info().va_first;
  for (const std::uint64_t va :
       {end, end - 4096, end + kFenceWindow, first - 4096, std::uint64_t{0},
        (std::uint64_t{1} << 57) - 8192, std::uint64_t{1} << 57, std::uint64_t{1} << 63}) {
    const auto bound = vm.map(va, buffer, 0, 8192, kReadWrite);
    ASSERT_FALSE(bound) << va;
    EXPECT_EQ(bound.error().status, GPUUMD_OUT_OF_RANGE) << bound.error().text;
    EXPECT_FALSE(vm.unmap(va, 8192)) << va;
  }
  must(vm.map(end - 8192, buffer, 0, 8192, kReadWrite));
  must(vm.map(first, buffer, 0, 8192, kReadWrite));
}

// ---- rings ----

TEST_F(Hostile, ScribblingOverItsRingsEndsThatSessionOnly) {
  start();
  Neighbour neighbour(runtime_dir(0));
  std::mt19937 random(51);
  for (int round = 0; round < 8; ++round) {
    RawQueue raw(runtime_dir(0));
    const auto scribble = [&](base::Mapping& memory) {
      for (std::size_t at = 0; at + 4 <= memory.size(); at += 4) {
        const auto word = static_cast<std::uint32_t>(random());
        store_release(*memory.at<std::uint32_t>(at), word);
      }
    };
    for (int n = 0; n < 50 && !raw.session->over(); ++n) {
      if (round % 2 == 0) scribble(raw.session->control);
      scribble(raw.ring);
      raw.session->ring();
    }
    EXPECT_TRUE(eventually([&] { return raw.session->over(); })) << round;
  }
  EXPECT_TRUE(neighbour.works());
  EXPECT_TRUE(neighbour.end());
  EXPECT_TRUE(eventually([&] { return count({"sessions"}) == 1; }));
  EXPECT_TRUE(eventually([&] { return count({"vmids_free"}) == 12; }));
}

TEST_F(Hostile, VMB_16_ReservedBitsAndUnknownFlagsAreRefused) {
  start();
  auto client = connect();
  auto device = open(client);
  const auto refused = [](auto outcome, const char* what) {
    ASSERT_FALSE(outcome) << what;
    EXPECT_EQ(outcome.error().status, GPUUMD_INVALID_ARGUMENT) << what;
  };
  refused(device.create_vm(0x80), "VM flags");
  auto vm = must(device.create_vm());
  refused(vm.create_queue(0x80), "queue flags");
  refused(vm.create_queue(0, 17), "queue slots");
  refused(vm.create_queue(0, 0, 9), "queue priority");
  refused(device.create_buffer(GPUUMD_BUFFER_IMPORT, 4096), "buffer kind");
  refused(device.create_buffer(GPUUMD_BUFFER_VRAM, 4096, 3), "alignment");
  for (const auto kind : {GPUUMD_BUFFER_VRAM, GPUUMD_BUFFER_HOST}) {
    const auto coarse = device.create_buffer(kind, 8 << 20, 4 << 20);
    ASSERT_FALSE(coarse);
    EXPECT_EQ(coarse.error().status, GPUUMD_UNSUPPORTED);
  }
  auto buffer = vram(device, kSize);
  refused(vm.map(kVa, buffer, 0, 4096, kReadWrite | 0x80), "bind flags");
  refused(vm.map(kVa, buffer, 0, 4096, 0), "bind without a right");

  // By hand, where the library would not let it through.
  RawQueue raw(runtime_dir(0));
  wire::CreateBuffer create{};
  create.kind = GPUUMD_BUFFER_VRAM;
  create.bytes = 4096;
  create.flags = 1;
  auto answer = raw.session->call(wire::RequestType::kCreateBuffer, create);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->header.status, GPUUMD_INVALID_ARGUMENT);
  wire::Nop nop{};
  nop.header.reserved = 1;
  answer = raw.session->call(wire::RequestType::kNop, nop);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->header.status, GPUUMD_INVALID_ARGUMENT);
  answer = raw.session->call(static_cast<wire::RequestType>(99), wire::Nop{});
  ASSERT_TRUE(answer);
  EXPECT_NE(answer->header.status, GPUUMD_OK);
  // A request is refused; a bad command ends the session.
  wire::CopyCommand copy{};
  copy.header = {wire::Operation::kCopy, 1, 0};
  copy.to = kVa;
  copy.from = 2 * kVa;
  copy.bytes = 4096;
  copy.reserved[3] = 1;
  wire::CommandSlot slot;
  std::memcpy(&slot, &copy, sizeof(slot));
  raw.put(slot);
  EXPECT_TRUE(eventually([&] { return raw.session->over(); }));
  must(device.ping());
}

}  // namespace
}  // namespace whole
