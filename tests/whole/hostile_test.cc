// Clients that mean harm, with a neighbour that must not notice.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/ipc/raw_client.h"
#include "tests/whole/child.h"
#include "tests/whole/client.h"

namespace whole {
namespace {

using namespace gpuumd;

constexpr std::uint64_t kSize = 4 << 20;
// What the daemon keeps above the addresses of binds: the IBs, read-only, and the fence page.
constexpr std::uint64_t kFenceWindow = 4 << 20;

class Hostile : public System {
 protected:
  std::uint64_t count(const std::vector<std::string>& path) {
    return number(0, GPUUMD_QUERY_STATUS, path);
  }
  std::size_t daemon_descriptors() {
    const std::filesystem::directory_iterator list("/proc/" + std::to_string(daemon(0).pid()) +
                                                   "/fd");
    return static_cast<std::size_t>(std::distance(begin(list), end(list)));
  }
};

// Somebody who works all the time, in a thread and a session of its own; every byte is checked.
class Neighbour {
 public:
  explicit Neighbour(const std::string& runtime_dir)
      : client_(must(Client::connect(runtime_dir, "neighbour", 20s))),
        device_(must(client_.open_device(0u))),
        space_(Space::make(device_, GPUUMD_VM_FAULTS)),
        buffer_(vram(device_, kSize)),
        data_(random_bytes(kSize, 50)) {
    space_.map_on_fault(kVa, buffer_, kSize, 256 << 10);
    must(space_.staging.upload(kVa, data_, Wait(30s)));
    thread_ = std::thread([this] {
      while (!ended_.load()) {
        std::vector<std::byte> back(kSize);
        const auto read = space_.staging.download(back, kVa, Wait(15s));
        if (!read || back != data_) {
          bad_.fetch_add(1);
          return;
        }
        rounds_.fetch_add(1);
      }
    });
  }
  ~Neighbour() { end(); }
  // Whether it goes on from here.
  bool works() {
    const int before = rounds_.load();
    return eventually([&] { return bad_.load() != 0 || rounds_.load() >= before + 2; }) &&
           bad_.load() == 0;
  }
  bool end() {
    ended_ = true;
    if (thread_.joinable()) thread_.join();
    return bad_.load() == 0;
  }

 private:
  Client client_;
  Device device_;
  Space space_;
  Buffer buffer_;
  std::vector<std::byte> data_;
  std::atomic<bool> ended_{false};
  std::atomic<int> rounds_{0}, bad_{0};
  std::thread thread_;
};

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

// A session by hand with a VM and a queue.
struct RawQueue {
  fake::RawClient client;
  std::optional<fake::RawSession> session;
  base::UniqueFd memory;
  base::Mapping ring;

  explicit RawQueue(const std::string& dir) : client(dir) {
    EXPECT_TRUE(client.shake_hands());
    session.emplace(std::move(*client.open_session()));
    const auto vm = session->call(wire::RequestType::kCreateVm, wire::CreateVm{});
    EXPECT_TRUE(vm && vm->header.status == 0);
    wire::CreateQueue request{};
    request.vm = vm->body.object;
    request.slots = 64;
    session->send(wire::RequestType::kCreateQueue, request);
    auto message = client.receive();  // the ring's descriptor comes before the reply
    EXPECT_TRUE(message && message->descriptors.size() == 1);
    const auto queue = session->receive();
    EXPECT_TRUE(queue && queue->header.status == 0);
    memory = std::move(message->descriptors.at(0));
    ring = std::move(base::Mapping::map(memory.get(), 0,
                                        wire::kQueueSlotsOffset + 64 * sizeof(wire::CommandSlot),
                                        PROT_READ | PROT_WRITE)
                         .value());
  }
  void put(const wire::CommandSlot& slot) {
    auto* page = ring.at<wire::QueuePage>();
    auto* slots = ring.at<wire::CommandSlot>(wire::kQueueSlotsOffset);
    store_shared(&slots[tail_ % 64], &slot, sizeof(slot));
    store_release(page->ring.tail, ++tail_);
    session->ring();
  }

 private:
  std::uint32_t tail_ = 0;
};

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

TEST_F(Hostile, TimeoutsOfEveryLengthAreTaken) {
  start({.gpus = 2, .model = {}, .daemon = {"--no-same-host"}});
  (void)control(R"({"command": "nht.mute", "gpu": 1})");
  RawQueue raw(runtime_dir(0));
  auto& session = *raw.session;
  wire::CreateFence create{};
  const auto fence = session.call(wire::RequestType::kCreateFence, create);
  ASSERT_TRUE(fence);
  std::uint64_t asked = 0;
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
    ++asked;
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

TEST_F(Hostile, AStoppedClientCostsOnlyItself) {
  start();
  Neighbour neighbour(runtime_dir(0));
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

TEST_F(Hostile, AClientThatNeverReadsCostsOnlyItself) {
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

TEST_F(Hostile, APeerThatNeverAnswersEndsTheImportByItsDeadline) {
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

TEST_F(Hostile, MoreVmsThanVmidsAreALimitAndComeBack) {
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

TEST_F(Hostile, SharedDescriptorsAndHostBuffersOfOneUserAreBounded) {
  start();
  auto client = connect();
  auto device = open(client);
  const auto before = daemon_descriptors();
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
  EXPECT_TRUE(eventually([&] { return daemon_descriptors() <= before + 1; }));
  base::UniqueFd again(must(buffer.share()));
}

TEST_F(Hostile, AHostBufferLargerThanMemoryIsRefused) {
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

TEST_F(Hostile, TwoHundredLivesLeaveNothingBehind) {
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
  const auto descriptors = daemon_descriptors();
  const auto mapped = count({"dma", "mapped_bytes"});
  const auto open_maps = count({"dma", "maps"}) - count({"dma", "unmaps"});
  for (int n = 0; n < 200; ++n) life(n);
  ASSERT_TRUE(settled());
  EXPECT_TRUE(eventually([&] { return daemon_descriptors() <= descriptors; }))
      << daemon_descriptors() << " descriptors, before " << descriptors;
  EXPECT_TRUE(eventually([&] { return count({"dma", "mapped_bytes"}) <= mapped; }))
      << count({"dma", "mapped_bytes"}) << " bytes mapped, before " << mapped;
  EXPECT_LE(count({"dma", "maps"}) - count({"dma", "unmaps"}), open_maps);
  EXPECT_EQ(count({"work", "in_flight"}), 0u);
}

}  // namespace
}  // namespace whole
