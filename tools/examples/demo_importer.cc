// Node B of the demo: copies the memory behind a handle over the fabric with its own GPU, reads it
// back from there, and goes on copying until the exporter takes it away.
//
//   demo_importer --runtime-dir DIR --control FIFO --handle H --bytes N --output FILE
//
// The output is what this node's GPU holds. Prints "looping" while it copies on; after the end of
// that it reads "look" from the FIFO and has one more look at its memory.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "tools/examples/example.h"

namespace {

using namespace example;
using std::chrono::seconds;
using Clock = std::chrono::steady_clock;

constexpr seconds kLoopDeadline{120};
constexpr seconds kToldDeadline{120};
constexpr seconds kEventDeadline{5};
constexpr std::uint64_t kStagingBytes = 4 << 20;
constexpr std::uint64_t kGap = 1 << 30;  // between what lies in an address space
constexpr std::uint64_t kOtherBytes = 1 << 20;
constexpr std::uint64_t kRoundsAfter = 100;  // of the other work, after the revoke

struct Arguments {
  std::string runtime_dir, control, handle, output;
  std::uint64_t bytes = 0;
};

// An address space with what it takes to work in it.
struct Space {
  gpuumd::Vm vm;
  gpuumd::Queue queue;
  gpuumd::Fence fence;
  std::uint64_t next_va;
  std::uint64_t point = 0;

  Space(gpuumd::Device& device, std::uint32_t flags)
      : vm(need("address space", device.create_vm(flags))),
        queue(need("queue", vm.create_queue())),
        fence(need("fence", device.create_fence())),
        next_va(round_up(device.info().va_first, kGap)) {}
  std::uint64_t take_va(std::uint64_t bytes) {
    return std::exchange(next_va, next_va + round_up(bytes, kGap));
  }
  // Copies and waits for the end.
  gpuumd::Outcome<void> copy(std::uint64_t to, std::uint64_t from, std::uint64_t bytes) {
    auto done = queue.copy(to, from, bytes);
    if (done) done = queue.signal(fence, ++point);
    if (done) done = queue.submit();
    if (done) done = fence.wait(point);
    return done;
  }
};

// Work of this node that has nothing to do with the import, in an address space of its own: fills,
// copies, reads back and compares, again and again.
class OtherWork {
 public:
  explicit OtherWork(gpuumd::Device& device)
      : space_(device, 0),
        buffer_(need("buffer", device.create_buffer(GPUUMD_BUFFER_VRAM, 2 * kOtherBytes))),
        va_(space_.take_va(2 * kOtherBytes)) {
    need("map",
         space_.vm.map(va_, buffer_, 0, 2 * kOtherBytes, GPUUMD_BIND_READ | GPUUMD_BIND_WRITE));
    staging_.emplace(
        need("staging",
             gpuumd::Staging::create(space_.queue, space_.take_va(kStagingBytes), kStagingBytes)));
    thread_ = std::jthread([this](const std::stop_token& stop) {
      while (!stop.stop_requested()) round();
    });
  }
  std::uint64_t rounds() const { return rounds_.load(); }
  // Ends it; then the address space is the caller's to use.
  void stop() {
    thread_.request_stop();
    thread_.join();
  }
  Space& space() { return space_; }
  gpuumd::Staging& staging() { return *staging_; }

 private:
  void round() {
    const auto pattern = static_cast<std::uint32_t>(0xB0000000 + rounds_.load());
    need("other work: fill", space_.queue.fill(va_, kOtherBytes, pattern));
    need("other work: copy", space_.copy(va_ + kOtherBytes, va_, kOtherBytes));
    std::vector<std::byte> back(kOtherBytes);
    need("other work: download", staging_->download(back, va_ + kOtherBytes));
    for (std::uint64_t at = 0; at < kOtherBytes; at += sizeof(pattern))
      if (std::memcmp(back.data() + at, &pattern, sizeof(pattern)) != 0)
        die("other work: wrong data at byte " + std::to_string(at));
    ++rounds_;
  }

  Space space_;
  gpuumd::Buffer buffer_;
  std::uint64_t va_;
  std::optional<gpuumd::Staging> staging_;
  std::atomic<std::uint64_t> rounds_{0};
  std::jthread thread_;  // last: it uses the others
};

// Copies until that fails. Dies unless it fails because the memory was revoked.
void copy_until_revoked(Space& space, std::uint64_t to, std::uint64_t from, std::uint64_t bytes) {
  const auto start = Clock::now();
  std::uint64_t copies = 0;
  for (;;) {
    const auto done = space.copy(to, from, bytes);
    if (!done && done.error().status == GPUUMD_REVOKED) break;
    need("copy " + std::to_string(copies), done);
    if (++copies == 1) say("looping", "copies again and again");
    if (Clock::now() - start > kLoopDeadline) die("nobody revoked the memory");
  }
  const double seconds = seconds_since(start);
  say("copies", std::to_string(copies) + " more of " + std::to_string(bytes) + " bytes in " +
                    std::to_string(seconds) + " s");
  say("revoked", "the loop ended with: " + std::string(gpuumd_status_text(GPUUMD_REVOKED)));
}

void expect_event(gpuumd::Client& client, std::uint64_t import) {
  const auto start = Clock::now();
  for (;;) {
    const auto event = client.next_event();
    if (event && event->kind == GPUUMD_EVENT_REVOKED && event->object == import) break;
    if (!event && event.error().status != GPUUMD_AGAIN) die("events: " + event.error().text);
    if (Clock::now() - start > kEventDeadline) die("no event says that the import was revoked");
    if (!event) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  say("event", "revoked, for the import");
}

std::vector<std::byte> download(gpuumd::Staging& staging, std::uint64_t from, std::uint64_t bytes) {
  std::vector<std::byte> data(bytes);
  need("download", staging.download(data, from));
  return data;
}

// The import and the memory that it is copied to, both in one address space.
struct Target {
  gpuumd::Buffer import;
  gpuumd::Buffer local;
  std::uint64_t remote_va, local_va;
};

Target make_target(gpuumd::Device& device, Space& space, const Arguments& arguments) {
  const auto handle = need("handle", gpuumd::Handle::parse(arguments.handle));
  auto import = need("import", device.import_handle(handle));
  const auto bytes = import.bytes();
  if (arguments.bytes == 0 || arguments.bytes > bytes)
    die("the import has " + std::to_string(bytes) + " bytes, which does not fit --bytes " +
        std::to_string(arguments.bytes));
  say("imported", std::to_string(bytes) + " bytes");
  auto local = need("buffer", device.create_buffer(GPUUMD_BUFFER_VRAM, bytes));
  Target target{std::move(import), std::move(local), space.take_va(bytes), space.take_va(bytes)};
  need("map the import", space.vm.map(target.remote_va, target.import, 0, bytes, GPUUMD_BIND_READ));
  map_on_fault(space.vm, target.local_va, target.local, bytes);
  return target;
}

// The first copy: the pages of the local buffer come by page fault as the copy reaches them.
std::vector<std::byte> copy_and_read(Space& space, const Target& target, std::uint64_t bytes) {
  const auto start = Clock::now();
  need("copy over the fabric", space.copy(target.local_va, target.remote_va, target.local.bytes()));
  say("copied", std::to_string(target.local.bytes()) + " bytes in " +
                    std::to_string(seconds_since(start)) + " s");
  const auto expected = windows(target.local.bytes());
  say("windows",
      std::to_string(expected.big) + " of 2 MiB, " + std::to_string(expected.small) + " of 4 KiB");
  auto staging = need(
      "staging", gpuumd::Staging::create(space.queue, space.take_va(kStagingBytes), kStagingBytes));
  return download(staging, target.local_va, bytes);
}

// What can still be reached of revoked memory: nothing. And what was copied before is as it was.
void look_again(OtherWork& other, const Target& target, std::span<const std::byte> before) {
  auto& space = other.space();
  const auto again = space.vm.map(space.take_va(target.import.bytes()), target.import, 0,
                                  target.import.bytes(), GPUUMD_BIND_READ);
  if (again || again.error().status != GPUUMD_REVOKED) die("a revoked import could be mapped");
  const auto va = space.take_va(target.local.bytes());
  need("map", space.vm.map(va, target.local, 0, target.local.bytes(), GPUUMD_BIND_READ));
  const auto now = download(other.staging(), va, before.size());
  if (!std::ranges::equal(now, before)) die("bytes that the exporter never exported came across");
  say("looked", "every byte here is one that was exported");
}

void run(const Arguments& arguments) {
  auto client =
      need("connect", gpuumd::Client::connect(arguments.runtime_dir, "demo_importer", seconds(60)));
  auto device = need("open the GPU", client.open_device(0));
  Space space(device, GPUUMD_VM_FAULTS);
  const auto target = make_target(device, space, arguments);
  const auto data = copy_and_read(space, target, arguments.bytes);
  write_file(arguments.output, data);
  say("written", std::to_string(data.size()) + " bytes");

  OtherWork other(device);
  copy_until_revoked(space, target.local_va, target.remote_va, target.local.bytes());
  const auto rounds = other.rounds();
  expect_event(client, target.import.id());
  if (wait_for_line(arguments.control, kToldDeadline) != "look") die("expected the word \"look\"");
  while (other.rounds() < rounds + kRoundsAfter)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  other.stop();
  say("other", std::to_string(rounds) + " rounds of other work before the revoke, " +
                   std::to_string(other.rounds() - rounds) + " after it, all right");
  look_again(other, target, data);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"demo_importer: copies memory of another node over the fabric"};
  Arguments arguments;
  app.add_option("--runtime-dir", arguments.runtime_dir, "of this node's gpuumd");
  app.add_option("--control", arguments.control, "FIFO with the word \"look\"")->required();
  app.add_option("--handle", arguments.handle, "32 hexadecimal digits")->required();
  app.add_option("--bytes", arguments.bytes, "to read and write out")->required();
  app.add_option("--output", arguments.output, "where what was read goes")->required();
  CLI11_PARSE(app, argc, argv);
  run(arguments);
}
