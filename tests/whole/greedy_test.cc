// Clients and peers that wait for ever, never answer, or take all there is.
#include <gtest/gtest.h>

#include "tests/whole/child.h"
#include "tests/whole/neighbour.h"
#include "tests/whole/raw_queue.h"

namespace whole {
namespace {

using namespace gpuumd;

constexpr std::uint64_t kSize = 4 << 20;

class Greedy : public WithNeighbours {};

// ---- waits ----

TEST_F(Greedy, TimeoutsOfEveryLengthAreTaken) {
  start({.gpus = 2, .model = {}, .daemon = {"--no-same-host"}});
  (void)control(R"({"command": "nht.mute", "gpu": 1})");
  RawQueue raw(runtime_dir(0));
  auto& session = *raw.session;
  wire::CreateFence create{};
  const auto fence = session.call(wire::RequestType::kCreateFence, create);
  ASSERT_TRUE(fence);
  for (const std::uint64_t timeout :
       {std::uint64_t{INT64_MAX}, std::uint64_t{INT64_MAX} - 1'000'000'000, UINT64_MAX,
        std::uint64_t{1} << 63}) {
    wire::Import import{};
    import.handle_lo = 0x1000 | 6;  // of the other accelerator
    import.timeout_ns = timeout;
    session.send(wire::RequestType::kImport, import);
    wire::WaitFence wait{};
    wait.fence = fence->body.object;
    wait.point = UINT64_MAX;
    wait.timeout_ns = timeout;
    session.send(wire::RequestType::kWaitFence, wait);
  }
  // They wait; what comes behind them does not.
  wire::Import soon{};
  soon.handle_lo = 0x1000 | 6;
  soon.timeout_ns = 1'000'000;
  const auto answer = session.call(wire::RequestType::kImport, soon);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->header.id, session.next_id - 1) << "a long wait was over at once";
  EXPECT_EQ(answer->header.status, GPUUMD_TIMEOUT);
}

// ---- clients that stop ----

TEST_F(Greedy, AStoppedClientCostsOnlyItself) {
  start();
  const auto dir = runtime_dir(0);
  Child stopped([&](const Child::Say& say) {
    auto client = must(Client::connect(dir, "stopped", 20s));
    auto device = must(client.open_device(0u));
    auto space = Space::make(device, GPUUMD_VM_FAULTS);
    auto buffer = vram(device, 16 << 20);
    space.map_on_fault(kVa, buffer, 16 << 20, 64 << 10);
    for (bool first = true;; first = false) {
      for (int n = 0; n < 50; ++n) must(space.queue.fill(kVa, 16 << 20, 7));
      must(space.queue.signal(space.fence, ++space.point));
      must(space.queue.submit());
      if (first) say("busy");
      must(space.fence.wait(space.point, Wait(60s)));
      say("round");
    }
    return 0;
  });
  Neighbour neighbour(dir);  // has a thread: after the fork
  ASSERT_TRUE(stopped.line());
  ::kill(stopped.pid(), SIGSTOP);
  EXPECT_TRUE(neighbour.works());
  {  // others come and go
    auto client = connect();
    auto device = open(client);
    must(device.ping());
  }
  ::kill(stopped.pid(), SIGCONT);
  for (int n = 0; n < 2; ++n) EXPECT_EQ(stopped.line(), "round");
  ::kill(stopped.pid(), SIGSTOP);
  stopped.kill();
  EXPECT_TRUE(neighbour.works());
  EXPECT_TRUE(eventually([&] { return count({"sessions"}) == 1; }));
}

TEST_F(Greedy, AClientThatNeverReadsCostsOnlyItself) {
  start();
  Neighbour neighbour(runtime_dir(0));
  RawQueue raw(runtime_dir(0));
  auto& session = *raw.session;
  // Requests until the reply ring is full, then until the request ring is.
  const auto slots = session.info.layout.request_slots;
  std::uint32_t sent = 0;
  for (; sent < 4 * slots; ++sent) {
    if (!eventually([&] {
          const auto room = session.requests.room();
          return room && *room > 0;
        }) ||
        session.over())
      break;
    session.send(wire::RequestType::kNop, wire::Nop{});
    if (sent >= slots + session.info.layout.reply_slots - 2) break;
  }
  // And queries whose answers stay in the socket.
  for (std::uint64_t n = 0; n < 200; ++n) {
    wire::Query query{};
    query.header = {wire::MessageType::kQuery, sizeof(query), 100 + n};
    query.kind = GPUUMD_QUERY_STATUS;
    if (!raw.client.send_bytes(base::as_bytes(query), {}, MSG_DONTWAIT)) break;
  }
  EXPECT_TRUE(neighbour.works());
  raw.client.hang_up();
  EXPECT_TRUE(eventually([&] { return count({"sessions"}) == 1; }));
}

TEST_F(Greedy, APeerThatNeverAnswersEndsTheImportByItsDeadline) {
  start({.gpus = 2, .model = {}, .daemon = {"--no-same-host"}});
  Neighbour neighbour(runtime_dir(0));
  auto client_a = connect(1), client_b = connect(0);
  auto a = open(client_a), b = open(client_b);
  auto buffer = vram(a, kSize);
  const auto handle = must(buffer.export_handle());
  (void)control(R"({"command": "nht.mute", "gpu": 1})");
  const auto begun = std::chrono::steady_clock::now();
  const auto import = b.import_handle(handle, Wait(1s));
  ASSERT_FALSE(import);
  EXPECT_TRUE(import.error().status == GPUUMD_TIMEOUT || import.error().status == GPUUMD_PEER_LOST)
      << import.error().text;
  EXPECT_LT(std::chrono::steady_clock::now() - begun, 10s);
  EXPECT_TRUE(neighbour.works());
  must(b.ping());
  // The protocol's own deadlines, with all the time in the world.
  const auto patient = b.import_handle(handle, Wait(60s));
  ASSERT_FALSE(patient);
  EXPECT_TRUE(patient.error().status == GPUUMD_TIMEOUT ||
              patient.error().status == GPUUMD_PEER_LOST)
      << patient.error().text;
  // When it speaks again the import works.
  (void)control(R"({"command": "nht.mute", "gpu": 1, "on": false})");
  EXPECT_TRUE(eventually([&] { return b.import_handle(handle, Wait(5s)).has_value(); }));
}

// ---- limits ----

TEST_F(Greedy, MoreVmsThanVmidsAreALimitAndComeBack) {
  start();
  auto first = connect(), second = connect();
  auto device = open(first), other = open(second);
  for (int round = 0; round < 3; ++round) {
    std::vector<Vm> vms;
    for (auto* from : {&device, &other})
      while (auto vm = from->create_vm(0, Wait(10s))) vms.push_back(std::move(*vm));
    EXPECT_EQ(vms.size(), 13u);
    const auto more = other.create_vm();
    ASSERT_FALSE(more);
    EXPECT_EQ(more.error().status, GPUUMD_LIMIT) << more.error().text;
    vms.pop_back();
    vms.push_back(must(other.create_vm()));
    EXPECT_FALSE(device.create_vm());
  }
  EXPECT_TRUE(eventually([&] { return count({"vmids_free"}) == 13; }));
}

TEST_F(Greedy, SharedDescriptorsAndHostBuffersOfOneUserAreBounded) {
  start();
  auto client = connect();
  auto device = open(client);
  const auto before = daemon(0).descriptors();
  auto buffer = vram(device, 4096);
  std::vector<base::UniqueFd> held;
  gpuumd_status ended = GPUUMD_OK;
  for (int n = 0; n < 6000 && ended == GPUUMD_OK; ++n) {
    const auto shared = buffer.share();
    if (shared)
      held.emplace_back(*shared);
    else
      ended = shared.error().status;
  }
  EXPECT_EQ(ended, GPUUMD_LIMIT) << held.size();
  must(connect().device_count());  // others still get in
  held.clear();
  EXPECT_TRUE(eventually([&] { return daemon(0).descriptors() <= before + 1; }));
  base::UniqueFd again(must(buffer.share()));
}

TEST_F(Greedy, AHostBufferLargerThanMemoryIsRefused) {
  start();
  auto client = connect();
  auto device = open(client);
  for (const std::uint64_t bytes :
       {std::uint64_t{1} << 40, std::uint64_t{1} << 55, std::uint64_t{1} << 62}) {
    const auto made = device.create_buffer(GPUUMD_BUFFER_HOST, bytes, 0, Wait(10s));
    ASSERT_FALSE(made);
    EXPECT_TRUE(made.error().status == GPUUMD_NO_MEMORY ||
                made.error().status == GPUUMD_INVALID_ARGUMENT)
        << made.error().text;
  }
  must(device.ping());
}

TEST_F(Greedy, WhoTakesAllVramLeavesOthersWhatTheyHaveAndItComesBack) {
  start({.gpus = 1, .model = {{"vram", "256M"}, {"bar0", "64M"}}, .daemon = {}});
  // A neighbour whose memory is reserved, and not there yet.
  auto client = connect();
  auto device = open(client);
  auto space = Space::make(device, GPUUMD_VM_FAULTS);
  constexpr std::uint64_t kMine = 16 << 20;
  auto mine = vram(device, kMine);
  space.map_on_fault(kVa, mine, kMine, 64 << 10);
  const auto reserved = count({"vram_reserved_bytes"});
  const auto dir = runtime_dir(0);
  Child hog([&](const Child::Say& say) {
    auto client = must(Client::connect(dir, "hog", 20s));
    auto device = must(client.open_device(0u));
    auto vm = must(device.create_vm());
    std::vector<Buffer> taken;
    std::uint64_t va = kVa;
    for (std::uint64_t size = 8 << 20; size >= 4096; size /= 2)
      while (auto buffer = device.create_buffer(GPUUMD_BUFFER_VRAM, size)) {
        must(vm.map(va, *buffer, 0, size, kReadWrite, Wait(20s)));
        taken.push_back(std::move(*buffer));
        va += size;
      }
    say("full");
    ::pause();
    return 0;
  });
  ASSERT_EQ(hog.line(), "full");
  const auto more = device.create_buffer(GPUUMD_BUFFER_VRAM, 4096);
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().status, GPUUMD_NO_SPACE) << more.error().text;
  EXPECT_NE(more.error().text.find("VRAM: 4096 bytes wanted, 0 free"), std::string::npos)
      << more.error().text;
  // What was reserved comes when it is touched.
  const auto data = random_bytes(kMine, 52);
  must(space.staging.upload(kVa, data, Wait(30s)));
  EXPECT_TRUE(space.read(kVa, kMine) == data);

  hog.kill();
  EXPECT_TRUE(eventually([&] { return count({"vram_reserved_bytes"}) == reserved; }));
  auto all = vram(device, count({"vram_usable_bytes"}) - reserved);
  EXPECT_TRUE(space.read(kVa, kMine) == data);
}

TEST_F(Greedy, TwoHundredLivesLeaveNothingBehind) {
  start({.gpus = 1, .model = {{"pod", "default"}}, .daemon = {}});
  auto watcher = connect(0, "watcher");
  const auto life = [&](int n) {
    auto client = connect();
    auto device = open(client);
    auto vm = must(device.create_vm(GPUUMD_VM_FAULTS));
    auto queue = must(vm.create_queue());
    auto fence = must(device.create_fence());
    auto memory = vram(device, 64 << 10);
    auto host = must(device.create_buffer(GPUUMD_BUFFER_HOST, 64 << 10));
    must(vm.map(kVa, host, 0, 64 << 10, kReadWrite));
    must(vm.map(2 * kVa, memory, 0, 64 << 10, kReadWrite | GPUUMD_BIND_ON_FAULT));
    must(queue.copy(2 * kVa, kVa, 64 << 10));
    must(queue.signal(fence, 1));
    must(queue.submit());
    if (n % 2 == 0) must(fence.wait(1, Wait(10s)));  // every other one leaves in the middle
    base::UniqueFd shared(must(memory.share()));
    auto twin = must(device.open_shared(shared.get()));
    (void)must(memory.export_handle());
    if (n % 3 != 0) return;
    must(vm.unmap(kVa, 64 << 10));
    must(host.cpu_view());
  };
  const auto settled = [&] {
    return eventually([&] {
      return count({"sessions"}) == 0 && count({"vmids_free"}) == 13 &&
             count({"vram_reserved_bytes"}) == 0 && count({"buffers", "host_bytes"}) == 0;
    });
  };
  for (int n = 0; n < 10; ++n) life(n);  // pools and caches fill
  ASSERT_TRUE(settled());
  const auto descriptors = daemon(0).descriptors();
  const auto mapped = count({"dma", "mapped_bytes"});
  const auto open_maps = count({"dma", "maps"}) - count({"dma", "unmaps"});
  for (int n = 0; n < 200; ++n) life(n);
  ASSERT_TRUE(settled());
  EXPECT_TRUE(eventually([&] { return daemon(0).descriptors() <= descriptors; }))
      << daemon(0).descriptors() << " descriptors, before " << descriptors;
  EXPECT_TRUE(eventually([&] { return count({"dma", "mapped_bytes"}) <= mapped; }))
      << count({"dma", "mapped_bytes"}) << " bytes mapped, before " << mapped;
  EXPECT_LE(count({"dma", "maps"}) - count({"dma", "unmaps"}), open_maps);
  EXPECT_EQ(count({"work", "in_flight"}), 0u);
}

}  // namespace
}  // namespace whole
