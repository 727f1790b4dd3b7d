// Every call of gpuumd.h once, with what it gives and how it fails.
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <set>
#include <vector>

#include "tests/client/app.h"

extern "C" int use_from_c(const char* runtime_dir, uint32_t* devices);

namespace gpuumd::fake {
namespace {

constexpr std::uint64_t kVa = 0x100000;
constexpr std::uint32_t kReadWrite = GPUUMD_BIND_READ | GPUUMD_BIND_WRITE;

TEST(Header, ServesACProgram) {
  Daemon daemon({}, 3);
  std::uint32_t devices = 0;
  EXPECT_EQ(use_from_c(daemon.directory.c_str(), &devices), GPUUMD_OK);
  EXPECT_EQ(devices, 3u);
}

TEST(Header, EveryStatusHasATextOfItsOwn) {
  std::set<std::string> texts;
  for (int status = GPUUMD_OK; status <= GPUUMD_WRONG_VERSION; ++status)
    EXPECT_TRUE(texts.insert(gpuumd_status_text(static_cast<gpuumd_status>(status))).second)
        << status;
  EXPECT_EQ(texts.count("unknown status"), 0u);
  EXPECT_STREQ(gpuumd_status_text(static_cast<gpuumd_status>(999)), "unknown status");
}

TEST(Handle, TextBothWays) {
  const gpuumd_handle handle{0x0123456789abcdef, 0xfedcba9876543210};
  char text[GPUUMD_HANDLE_TEXT_BYTES];
  gpuumd_handle_format(&handle, text);
  EXPECT_STREQ(text, "fedcba98765432100123456789abcdef");
  gpuumd_handle back{};
  ASSERT_EQ(gpuumd_handle_parse(text, &back), GPUUMD_OK);
  EXPECT_EQ(back.lo, handle.lo);
  EXPECT_EQ(back.hi, handle.hi);
  for (const char* bad : {"", "123", "fedcba98765432100123456789abcdeg",
                          "fedcba98765432100123456789abcdef0", " edcba98765432100123456789abcdef"})
    EXPECT_EQ(gpuumd_handle_parse(bad, &back), GPUUMD_INVALID_ARGUMENT) << bad;
}

TEST(Connect, NobodyThere) {
  gpuumd_connect_options options{};
  options.size = sizeof(options);
  options.runtime_dir = "/nonexistent";
  gpuumd_client* client = nullptr;
  EXPECT_EQ(gpuumd_connect(&options, nullptr, &client), GPUUMD_NOT_FOUND);
  EXPECT_NE(std::string(gpuumd_last_error()).find("/nonexistent"), std::string::npos);
  EXPECT_EQ(client, nullptr);
}

TEST(Connect, LimitIsToldInTheDaemonsWords) {
  ControlConfig config;
  config.max_connections_per_uid = 1;
  Daemon daemon(config);
  gpuumd_client* first = connect_to(daemon.directory);
  gpuumd_connect_options options{};
  options.size = sizeof(options);
  options.runtime_dir = daemon.directory.c_str();
  gpuumd_client* second = nullptr;
  EXPECT_EQ(gpuumd_connect(&options, nullptr, &second), GPUUMD_LIMIT);
  EXPECT_NE(std::string(gpuumd_last_error()).find("has 1 connections"), std::string::npos)
      << gpuumd_last_error();
  gpuumd_disconnect(first);
}

TEST(Connect, API_5_UnknownFieldsAndFlagsAreRefused) {
  struct {
    gpuumd_connect_options options;
    std::uint64_t later;
  } newer{};
  newer.options.size = sizeof(newer);
  newer.options.runtime_dir = "/nonexistent";
  gpuumd_client* client = nullptr;
  EXPECT_EQ(gpuumd_connect(&newer.options, nullptr, &client), GPUUMD_NOT_FOUND) << "0: accepted";
  newer.later = 1;
  EXPECT_EQ(gpuumd_connect(&newer.options, nullptr, &client), GPUUMD_INVALID_ARGUMENT);
  newer.later = 0;
  newer.options.flags = 1;
  EXPECT_EQ(gpuumd_connect(&newer.options, nullptr, &client), GPUUMD_INVALID_ARGUMENT);
  const gpuumd_wait bad{sizeof(gpuumd_wait), 7, 0};
  newer.options.flags = 0;
  EXPECT_EQ(gpuumd_connect(&newer.options, &bad, &client), GPUUMD_INVALID_ARGUMENT);
}

TEST_F(App, DevicesAndTheirInfo) {
  std::uint32_t count = 0;
  ASSERT_EQ(gpuumd_device_count(client, nullptr, &count), GPUUMD_OK);
  EXPECT_EQ(count, 1u);
  gpuumd_device_info info{};
  info.size = sizeof(info);
  ASSERT_EQ(gpuumd_device_query(client, 0, nullptr, &info), GPUUMD_OK);
  EXPECT_STREQ(info.name, "sim:0");
  EXPECT_EQ(info.flags, GPUUMD_DEVICE_SIMULATED);
  EXPECT_EQ(gpuumd_device_query(client, 5, nullptr, &info), GPUUMD_NOT_FOUND);
  // A caller built against a shorter struct gets what fits and no more.
  gpuumd_device_info old{};
  std::memset(&old, 0xEE, sizeof(old));
  old.size = 16;
  ASSERT_EQ(gpuumd_device_get_info(device, &old), GPUUMD_OK);
  EXPECT_EQ(old.state, GPUUMD_DEVICE_READY);
  EXPECT_EQ(old.pci_id, 0xEEEEEEEEu);
  gpuumd_device* second = nullptr;
  EXPECT_EQ(gpuumd_device_open(client, nullptr, 0, nullptr, &second), GPUUMD_EXISTS);
  EXPECT_EQ(gpuumd_device_open(client, "sim:7", 0, nullptr, &second), GPUUMD_NOT_FOUND);
  EXPECT_EQ(second, nullptr);
  daemon.on_reactor([&] { EXPECT_EQ(daemon.host().last_name, "client_test"); });
}

TEST_F(App, CloseAndOpenAgainAtOnce) {
  for (int i = 0; i < 20; ++i) {
    gpuumd_device_close(device);
    device = nullptr;
    ASSERT_EQ(gpuumd_device_open(client, "sim:0", 0, nullptr, &device), GPUUMD_OK)
        << gpuumd_last_error();
  }
  ASSERT_EQ(gpuumd_device_ping(device, nullptr), GPUUMD_OK);
}

TEST_F(App, EveryWayToWait) {
  for (const std::uint32_t mode : {GPUUMD_WAIT_ADAPTIVE, GPUUMD_WAIT_POLL, GPUUMD_WAIT_SLEEP}) {
    const gpuumd_wait wait = wait_for(30000, mode);
    for (int i = 0; i < 50; ++i)
      ASSERT_EQ(gpuumd_device_ping(device, &wait), GPUUMD_OK) << gpuumd_last_error();
  }
}

TEST_F(App, QueriesGiveJson) {
  char* json = nullptr;
  ASSERT_EQ(gpuumd_query(client, GPUUMD_QUERY_PEERS, GPUUMD_ALL_DEVICES, nullptr, &json),
            GPUUMD_OK);
  EXPECT_STREQ(json, "[{\"kind\":5}]");
  gpuumd_free_text(json);
  EXPECT_EQ(gpuumd_query(client, 77, 0, nullptr, &json), GPUUMD_INVALID_ARGUMENT);
  EXPECT_EQ(json, nullptr);
}

// Every code that the daemon can give comes out as that code, with the text that names the thing.
TEST_F(App, EveryErrcReachesTheCaller) {
  for (int code = 1; code <= static_cast<int>(base::Errc::kSystem); ++code) {
    daemon.host().knobs.refuse_vm = code;
    gpuumd_vm* vm = nullptr;
    const auto status = gpuumd_vm_create(device, nullptr, nullptr, &vm);
    // Nobody but whoever serves the device is busy, and not for ever.
    const auto errc = static_cast<base::Errc>(code);
    EXPECT_EQ(gpuumd_status_text(status),
              base::to_string(errc == base::Errc::kBusy ? base::Errc::kAgain : errc));
    EXPECT_NE(std::string(gpuumd_last_error()).find("VM of the test"), std::string::npos);
    EXPECT_EQ(vm, nullptr);
  }
}

TEST_F(App, HostBufferHasACpuViewAndVramHasNone) {
  gpuumd_buffer* host = make_buffer(device, GPUUMD_BUFFER_HOST, 5000);
  gpuumd_buffer_info info{};
  info.size = sizeof(info);
  ASSERT_EQ(gpuumd_buffer_get_info(host, &info), GPUUMD_OK);
  EXPECT_EQ(info.bytes, 8192u);
  void* data = nullptr;
  void* again = nullptr;
  ASSERT_EQ(gpuumd_buffer_cpu_view(host, &data), GPUUMD_OK);
  ASSERT_EQ(gpuumd_buffer_cpu_view(host, &again), GPUUMD_OK);
  EXPECT_EQ(data, again);
  std::memset(data, 0x5A, info.bytes);
  gpuumd_buffer* vram = make_buffer(device, GPUUMD_BUFFER_VRAM, 4096);
  EXPECT_EQ(gpuumd_buffer_cpu_view(vram, &data), GPUUMD_UNSUPPORTED);
  EXPECT_EQ(gpuumd_buffer_destroy(host, nullptr), GPUUMD_OK);
  EXPECT_EQ(gpuumd_buffer_destroy(vram, nullptr), GPUUMD_OK);
  EXPECT_EQ(gpuumd_buffer_destroy(nullptr, nullptr), GPUUMD_OK);
  gpuumd_buffer_options huge{sizeof(huge), GPUUMD_BUFFER_VRAM, 0, 0, 1ull << 40, 0};
  EXPECT_EQ(gpuumd_buffer_create(device, &huge, nullptr, &vram), GPUUMD_NO_SPACE);
  EXPECT_NE(std::string(gpuumd_last_error()).find("1099511627776"), std::string::npos);
  huge.reserved = 1;
  EXPECT_EQ(gpuumd_buffer_create(device, &huge, nullptr, &vram), GPUUMD_INVALID_ARGUMENT);
  EXPECT_EQ(daemon.host().knobs.objects, 0);
}

struct Engine : App {
  void SetUp() override {
    App::SetUp();
    ASSERT_EQ(gpuumd_vm_create(device, nullptr, nullptr, &vm), GPUUMD_OK);
    vram = make_buffer(device, GPUUMD_BUFFER_VRAM, 1 << 20);
    ASSERT_EQ(gpuumd_vm_map(vm, kVa, vram, 0, 1 << 20, kReadWrite, nullptr), GPUUMD_OK)
        << gpuumd_last_error();
    gpuumd_queue_options options{sizeof(options), 0, 16, 0};
    ASSERT_EQ(gpuumd_queue_create(vm, &options, nullptr, &queue), GPUUMD_OK) << gpuumd_last_error();
    ASSERT_EQ(gpuumd_fence_create(device, nullptr, &fence), GPUUMD_OK);
  }
  void TearDown() override {
    EXPECT_EQ(gpuumd_fence_destroy(fence, nullptr), GPUUMD_OK);
    EXPECT_EQ(gpuumd_queue_destroy(queue, nullptr), GPUUMD_OK);
    EXPECT_EQ(gpuumd_vm_destroy(vm, nullptr), GPUUMD_OK);
    EXPECT_EQ(gpuumd_buffer_destroy(vram, nullptr), GPUUMD_OK);
    App::TearDown();
  }
  gpuumd_status finish(std::uint64_t point, const gpuumd_wait* wait = nullptr) {
    EXPECT_EQ(gpuumd_queue_signal(queue, fence, point, nullptr), GPUUMD_OK);
    EXPECT_EQ(gpuumd_queue_submit(queue), GPUUMD_OK);
    return gpuumd_fence_wait(fence, point, wait);
  }

  gpuumd_vm* vm = nullptr;
  gpuumd_buffer* vram = nullptr;
  gpuumd_queue* queue = nullptr;
  gpuumd_fence* fence = nullptr;
};

TEST_F(Engine, StagingUploadAndDownloadInChunks) {
  gpuumd_staging_options options{sizeof(options), 0, 0x40000000, 16384};
  gpuumd_staging* staging = nullptr;
  ASSERT_EQ(gpuumd_staging_create(queue, &options, nullptr, &staging), GPUUMD_OK)
      << gpuumd_last_error();
  std::vector<unsigned char> in(100'003), out(in.size());
  std::iota(in.begin(), in.end(), 0);
  for (std::size_t i = 0; i < in.size(); i += 251) in[i] ^= 0x80;
  ASSERT_EQ(gpuumd_staging_upload(staging, kVa + 5, in.data(), in.size(), nullptr), GPUUMD_OK)
      << gpuumd_last_error();
  ASSERT_EQ(gpuumd_queue_copy(queue, kVa + 300'000, kVa + 5, in.size(), nullptr), GPUUMD_OK);
  ASSERT_EQ(gpuumd_staging_download(staging, out.data(), kVa + 300'000, out.size(), nullptr),
            GPUUMD_OK)
      << gpuumd_last_error();
  EXPECT_EQ(in, out);
  EXPECT_EQ(gpuumd_staging_upload(staging, kVa, nullptr, 0, nullptr), GPUUMD_OK) << "0 bytes";
  EXPECT_EQ(gpuumd_staging_destroy(staging, nullptr), GPUUMD_OK) << gpuumd_last_error();
  options.bytes = 5000;
  EXPECT_EQ(gpuumd_staging_create(queue, &options, nullptr, &staging), GPUUMD_INVALID_ARGUMENT);
}

TEST_F(Engine, AllCommands) {
  gpuumd_buffer* host = make_buffer(device, GPUUMD_BUFFER_HOST, 4096);
  ASSERT_EQ(gpuumd_vm_map(vm, 0x50000000, host, 0, 4096, kReadWrite, nullptr), GPUUMD_OK);
  void* view = nullptr;
  ASSERT_EQ(gpuumd_buffer_cpu_view(host, &view), GPUUMD_OK);
  const auto* words = static_cast<const std::uint32_t*>(view);
  const std::uint32_t payload[2] = {0xAABBCCDD, 5};
  EXPECT_EQ(gpuumd_queue_fill(queue, 0x50000000, 64, 0x11223344, nullptr), GPUUMD_OK);
  EXPECT_EQ(gpuumd_queue_write(queue, 0x50000040, payload, sizeof(payload), nullptr), GPUUMD_OK);
  EXPECT_EQ(gpuumd_queue_atomic(queue, 0x50000044, GPUUMD_ATOMIC_ADD, 4, 7, 0, nullptr), GPUUMD_OK);
  EXPECT_EQ(gpuumd_queue_timestamp(queue, 0x50000048, nullptr), GPUUMD_OK);
  ASSERT_EQ(finish(1), GPUUMD_OK) << gpuumd_last_error();
  EXPECT_EQ(words[15], 0x11223344u);
  EXPECT_EQ(words[16], 0xAABBCCDDu);
  EXPECT_EQ(words[17], 12u);
  EXPECT_EQ(words[18], 0x11111111u);

  EXPECT_EQ(gpuumd_queue_copy(queue, kVa, kVa, 0, nullptr), GPUUMD_INVALID_ARGUMENT);
  EXPECT_EQ(gpuumd_queue_copy(queue, UINT64_MAX - 1, kVa, 8, nullptr), GPUUMD_INVALID_ARGUMENT);
  EXPECT_EQ(gpuumd_queue_fill(queue, kVa + 2, 8, 0, nullptr), GPUUMD_INVALID_ARGUMENT);
  EXPECT_EQ(gpuumd_queue_write(queue, kVa, payload, 68, nullptr), GPUUMD_INVALID_ARGUMENT);
  EXPECT_EQ(gpuumd_queue_atomic(queue, kVa + 4, GPUUMD_ATOMIC_ADD, 8, 1, 0, nullptr),
            GPUUMD_INVALID_ARGUMENT);
  EXPECT_EQ(gpuumd_queue_timestamp(queue, kVa + 4, nullptr), GPUUMD_INVALID_ARGUMENT);
  EXPECT_EQ(gpuumd_queue_signal(queue, fence, 0, nullptr), GPUUMD_INVALID_ARGUMENT);
  EXPECT_EQ(gpuumd_fence_wait(fence, 0, nullptr), GPUUMD_INVALID_ARGUMENT);
  EXPECT_EQ(gpuumd_buffer_destroy(host, nullptr), GPUUMD_OK);
}

TEST_F(Engine, MoreCommandsThanTheRingHolds) {
  for (const std::uint32_t mode : {GPUUMD_WAIT_ADAPTIVE, GPUUMD_WAIT_POLL, GPUUMD_WAIT_SLEEP}) {
    const gpuumd_wait wait = wait_for(30000, mode);
    for (int i = 0; i < 200; ++i)
      ASSERT_EQ(gpuumd_queue_fill(queue, kVa, 4, 1, &wait), GPUUMD_OK) << gpuumd_last_error();
    ASSERT_EQ(finish(mode + 1, &wait), GPUUMD_OK) << gpuumd_last_error();
  }
  EXPECT_EQ(daemon.host().knobs.commands, 603);
}

TEST_F(Engine, FullQueueEndsAtTheDeadline) {
  daemon.host().knobs.hold_commands = true;
  const gpuumd_wait brief = wait_for(100);
  gpuumd_status status = GPUUMD_OK;
  for (int i = 0; i < 17 && status == GPUUMD_OK; ++i)
    status = gpuumd_queue_fill(queue, kVa, 4, 1, &brief);
  EXPECT_EQ(status, GPUUMD_TIMEOUT) << gpuumd_last_error();
  daemon.host().knobs.hold_commands = false;
  gpuumd_device_ping(device, nullptr);
  EXPECT_EQ(finish(9), GPUUMD_OK);
}

TEST_F(Engine, VMB_17_FencesAreTimelines) {
  std::uint64_t value = 7, failed = 7;
  gpuumd_status error = GPUUMD_FAULT;
  ASSERT_EQ(gpuumd_fence_query(fence, &value, &error, &failed), GPUUMD_OK);
  EXPECT_EQ(value, 0u);
  EXPECT_EQ(error, GPUUMD_OK);
  EXPECT_EQ(failed, 0u);
  for (const std::uint32_t mode : {GPUUMD_WAIT_ADAPTIVE, GPUUMD_WAIT_POLL, GPUUMD_WAIT_SLEEP}) {
    const gpuumd_wait brief = wait_for(20, mode);
    EXPECT_EQ(gpuumd_fence_wait(fence, 1000, &brief), GPUUMD_TIMEOUT) << gpuumd_last_error();
    const gpuumd_wait wait = wait_for(30000, mode);
    EXPECT_EQ(finish(mode * 10 + 5, &wait), GPUUMD_OK) << gpuumd_last_error();
    EXPECT_EQ(gpuumd_fence_wait(fence, mode * 10 + 3, &wait), GPUUMD_OK) << "passed already";
  }
  // Work that failed: the points from the first failed one on give the error, earlier ones do not.
  daemon.on_reactor([&] {
    daemon.host().last_session->fail_fence(gpuumd_fence_id(fence), GPUUMD_REVOKED, 100, 200);
  });
  EXPECT_EQ(gpuumd_fence_wait(fence, 99, nullptr), GPUUMD_OK);
  EXPECT_EQ(gpuumd_fence_wait(fence, 100, nullptr), GPUUMD_REVOKED);
  EXPECT_NE(std::string(gpuumd_last_error()).find("100"), std::string::npos);
  ASSERT_EQ(gpuumd_fence_query(fence, &value, &error, &failed), GPUUMD_OK);
  EXPECT_EQ(error, GPUUMD_REVOKED);
  EXPECT_EQ(failed, 100u);
}

// The GPU writes the low half, then the high half: at a carry the word falls for a moment.
TEST_F(Engine, ValueNeverFallsForOneWhoAsks) {
  const auto set = [&](std::uint64_t to) {
    daemon.on_reactor([&] { daemon.host().last_session->set_fence(gpuumd_fence_id(fence), to); });
    std::uint64_t value = 0;
    EXPECT_EQ(gpuumd_fence_query(fence, &value, nullptr, nullptr), GPUUMD_OK);
    return value;
  };
  EXPECT_EQ(set(0xFFFFFFFF), 0xFFFFFFFFu);
  EXPECT_EQ(set(1), 0xFFFFFFFFu) << "low half of 0x1_0000_0001 written, high half not yet";
  EXPECT_EQ(set(0x100000001), 0x100000001u);
}

TEST_F(Engine, WaitsBetweenQueuesAreTheDaemons) {
  gpuumd_queue* second = nullptr;
  ASSERT_EQ(gpuumd_queue_create(vm, nullptr, nullptr, &second), GPUUMD_OK);
  ASSERT_EQ(gpuumd_queue_wait_fence(second, fence, 1, nullptr), GPUUMD_OK);
  ASSERT_EQ(gpuumd_queue_fill(second, kVa, 4, 9, nullptr), GPUUMD_OK);
  ASSERT_EQ(gpuumd_queue_signal(second, fence, 2, nullptr), GPUUMD_OK);
  ASSERT_EQ(gpuumd_queue_submit(second), GPUUMD_OK);
  const gpuumd_wait brief = wait_for(50);
  EXPECT_EQ(gpuumd_fence_wait(fence, 2, &brief), GPUUMD_TIMEOUT);
  ASSERT_EQ(finish(1), GPUUMD_OK);
  EXPECT_EQ(gpuumd_fence_wait(fence, 2, nullptr), GPUUMD_OK);
  EXPECT_EQ(gpuumd_queue_destroy(second, nullptr), GPUUMD_OK);
}

TEST_F(Engine, BadBindsNameTheirFault) {
  EXPECT_EQ(gpuumd_vm_map(vm, 0x777, vram, 0, 4096, kReadWrite, nullptr), GPUUMD_INVALID_ARGUMENT);
  EXPECT_NE(std::string(gpuumd_last_error()).find("4096"), std::string::npos);
  EXPECT_EQ(gpuumd_vm_map(vm, 0x7000000, vram, 1 << 20, 4096, kReadWrite, nullptr),
            GPUUMD_OUT_OF_RANGE);
  EXPECT_EQ(gpuumd_vm_map(vm, 0x7000000, vram, 0, 4096, 0x40, nullptr), GPUUMD_INVALID_ARGUMENT);
  EXPECT_EQ(gpuumd_vm_unmap(vm, 0x7000000, 4096, nullptr), GPUUMD_NOT_FOUND);
  gpuumd_bind_op ops[GPUUMD_BIND_MAX_OPS + 1] = {};
  EXPECT_EQ(gpuumd_vm_bind(vm, ops, GPUUMD_BIND_MAX_OPS + 1, nullptr), GPUUMD_INVALID_ARGUMENT);
  EXPECT_EQ(gpuumd_vm_bind(vm, ops, 0, nullptr), GPUUMD_INVALID_ARGUMENT);
}

TEST_F(Engine, ExportImportShare) {
  gpuumd_handle handle{};
  ASSERT_EQ(gpuumd_export(vram, nullptr, &handle), GPUUMD_OK);
  EXPECT_EQ(handle.lo & 0x3FF, 5u);
  gpuumd_buffer* imported = nullptr;
  ASSERT_EQ(gpuumd_import(device, &handle, nullptr, &imported), GPUUMD_OK) << gpuumd_last_error();
  EXPECT_NE(gpuumd_buffer_id(imported), gpuumd_buffer_id(vram));
  EXPECT_EQ(gpuumd_revoke(vram, nullptr), GPUUMD_OK);
  EXPECT_EQ(gpuumd_buffer_destroy(imported, nullptr), GPUUMD_OK);
  handle.hi ^= 1;
  EXPECT_EQ(gpuumd_import(device, &handle, nullptr, &imported), GPUUMD_NOT_FOUND);
  EXPECT_EQ(imported, nullptr);

  int descriptor = -1;
  ASSERT_EQ(gpuumd_buffer_share(vram, nullptr, &descriptor), GPUUMD_OK) << gpuumd_last_error();
  gpuumd_client* other = connect_to(daemon.directory);
  gpuumd_device* theirs = nullptr;
  ASSERT_EQ(gpuumd_device_open(other, nullptr, 0, nullptr, &theirs), GPUUMD_OK);
  gpuumd_buffer* shared = nullptr;
  ASSERT_EQ(gpuumd_buffer_open_shared(theirs, descriptor, nullptr, &shared), GPUUMD_OK)
      << gpuumd_last_error();
  gpuumd_buffer_info info{};
  info.size = sizeof(info);
  ASSERT_EQ(gpuumd_buffer_get_info(shared, &info), GPUUMD_OK);
  EXPECT_EQ(info.bytes, 1u << 20);
  EXPECT_EQ(gpuumd_vm_map(vm, 0x9000000, shared, 0, 4096, kReadWrite, nullptr),
            GPUUMD_INVALID_ARGUMENT)
      << "buffer of another session";
  ::close(descriptor);
  EXPECT_TRUE(eventually([&] { return daemon.host().shares_closed == 1; }));
  const int other_thing = ::memfd_create("other", MFD_CLOEXEC);
  gpuumd_buffer* none = nullptr;
  EXPECT_EQ(gpuumd_buffer_open_shared(theirs, other_thing, nullptr, &none), GPUUMD_NOT_FOUND);
  EXPECT_EQ(gpuumd_buffer_open_shared(theirs, -1, nullptr, &none), GPUUMD_INVALID_ARGUMENT);
  ::close(other_thing);
  EXPECT_EQ(gpuumd_buffer_destroy(shared, nullptr), GPUUMD_OK);
  gpuumd_device_close(theirs);
  gpuumd_disconnect(other);
}

TEST_F(Engine, StateCanBeAskedForAgain) {
  gpuumd_status state = GPUUMD_FAULT;
  EXPECT_EQ(gpuumd_vm_state(vm, nullptr, &state), GPUUMD_OK) << gpuumd_last_error();
  EXPECT_EQ(state, GPUUMD_OK);
  EXPECT_EQ(gpuumd_vm_state(nullptr, nullptr, &state), GPUUMD_INVALID_ARGUMENT);
}

TEST_F(Engine, EventsComeOnOneDescriptor) {
  int fd = -1;
  ASSERT_EQ(gpuumd_event_fd(client, &fd), GPUUMD_OK);
  pollfd watched{fd, POLLIN, 0};
  EXPECT_EQ(::poll(&watched, 1, 0), 0);
  gpuumd_event event{};
  event.size = sizeof(event);
  EXPECT_EQ(gpuumd_event_next(client, &event), GPUUMD_AGAIN);
  ASSERT_EQ(gpuumd_queue_fill(queue, 0xBAD0000, 64, 0, nullptr), GPUUMD_OK);
  ASSERT_EQ(finish(1), GPUUMD_OK);
  ASSERT_EQ(::poll(&watched, 1, 20000), 1);
  ASSERT_EQ(gpuumd_event_next(client, &event), GPUUMD_OK);
  EXPECT_EQ(event.kind, GPUUMD_EVENT_FATAL_FAULT);
  EXPECT_EQ(event.object, gpuumd_vm_id(vm));
  EXPECT_EQ(event.va, 0xBAD0000u);
  EXPECT_EQ(event.reason, GPUUMD_FAULT);
  EXPECT_EQ(event.count, 1u);
  EXPECT_EQ(gpuumd_event_next(client, &event), GPUUMD_AGAIN);
  EXPECT_EQ(::poll(&watched, 1, 0), 0) << "drained";
}

TEST_F(App, WhatTheClientLeavesBehindIsFreed) {
  gpuumd_vm* vm = nullptr;
  ASSERT_EQ(gpuumd_vm_create(device, nullptr, nullptr, &vm), GPUUMD_OK);
  gpuumd_buffer* buffer = make_buffer(device, GPUUMD_BUFFER_VRAM, 4096);
  EXPECT_EQ(daemon.host().knobs.objects, 2);
  gpuumd_disconnect(client);
  client = nullptr;
  EXPECT_TRUE(eventually([&] { return daemon.host().knobs.objects == 0; }));
  EXPECT_EQ(gpuumd_vm_destroy(vm, nullptr), GPUUMD_DISCONNECTED);
  EXPECT_EQ(gpuumd_buffer_destroy(buffer, nullptr), GPUUMD_DISCONNECTED);
}

}  // namespace
}  // namespace gpuumd::fake
