// Bad input of clients and of programs: one line that names the thing, an error, and nothing left
// behind in the daemon.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tests/whole/child.h"
#include "tests/whole/client.h"
#include "tests/whole/relay.h"

namespace whole {
namespace {

using namespace gpuumd;
using nlohmann::json;

constexpr std::uint64_t kSize = 1 << 20;

class BadInput : public System {
 protected:
  void start_pod() { start({.gpus = 2, .model = {}, .daemon = {"--no-same-host"}}); }

  // What a daemon holds of the machine and of its device.
  struct Held {
    std::size_t descriptors, mappings;
    std::uint64_t vram, pinned_bytes, pins, sessions, vmids_free;
    friend bool operator==(const Held&, const Held&) = default;
  };
  friend std::ostream& operator<<(std::ostream& out, const Held& held) {
    return out << held.descriptors << " descriptors, " << held.mappings << " mappings, "
               << held.vram << " bytes of VRAM, " << held.pinned_bytes << " bytes pinned in "
               << held.pins << " pieces, " << held.sessions << " sessions, " << held.vmids_free
               << " VMIDs free";
  }
  Held held(unsigned node) {
    const auto ran = run("gpuctl", {"status", "--json", "--runtime-dir", runtime_dir(node)});
    EXPECT_EQ(ran.code, 0) << ran.error;
    const auto status = json::parse(ran.out).at("devices").at(0);
    const auto& dma = status.at("dma");
    return {daemon(node).descriptors(),
            daemon(node).mappings(),
            status.at("vram_reserved_bytes"),
            dma.at("mapped_bytes"),
            dma.at("maps").get<std::uint64_t>() - dma.at("unmaps").get<std::uint64_t>(),
            status.at("sessions"),
            status.at("vmids_free")};
  }

  struct Ran {
    std::optional<int> code;
    std::string out, error;
  };
  Ran run(const std::string& program, const std::vector<std::string>& arguments) {
    const auto log = directory() + "/run" + std::to_string(++runs_) + ".log";
    auto process = Process::start(program, arguments, log);
    Ran ran;
    while (const auto line = process.line_with("")) ran.out += *line + "\n";
    ran.code = process.wait();
    ran.error = process.log();
    return ran;
  }
  // It failed, and said one line on standard error that holds `named`.
  static void expect_one_line(const Ran& ran, const std::string& named) {
    EXPECT_NE(ran.code.value_or(0), 0) << ran.out << ran.error;
    EXPECT_LT(ran.code.value_or(255), 126) << ran.out << ran.error;
    EXPECT_EQ(std::ranges::count(ran.error, '\n'), 1) << ran.error;
    EXPECT_NE(ran.error.find(named), std::string::npos) << named << ": " << ran.error;
  }

 private:
  int runs_ = 0;
};

template <class T>
void expect_refused(const Outcome<T>& outcome, gpuumd_status status, const std::string& named) {
  ASSERT_FALSE(outcome) << named;
  const auto& [code, text] = outcome.error();
  EXPECT_EQ(code, status) << text;
  EXPECT_NE(text.find(named), std::string::npos) << named << ": " << text;
  EXPECT_EQ(std::ranges::count(text, '\n'), 0) << text;
}

// ---- calls ----

void bad_binds(Device& device) {
  auto vm = must(device.create_vm());
  auto buffer = vram(device, kSize);
  must(vm.map(kVa, buffer, 0, kSize, kReadWrite));
  const auto map = [&](std::uint64_t va, std::uint64_t offset, std::uint64_t bytes) {
    return vm.map(va, buffer, offset, bytes, kReadWrite);
  };
  expect_refused(map(2 * kVa + 1, 0, 4096), GPUUMD_INVALID_ARGUMENT, "0x002000000001");
  expect_refused(map(2 * kVa, 0, 4095), GPUUMD_INVALID_ARGUMENT, "4095 bytes");
  expect_refused(map(2 * kVa, 0, 0), GPUUMD_INVALID_ARGUMENT, "0 bytes");
  expect_refused(map(2 * kVa, 512, 4096), GPUUMD_INVALID_ARGUMENT, "offset 512");
  expect_refused(map(kVa - 4096, 0, 8192), GPUUMD_EXISTS, "0x000ffffff000");
  expect_refused(map(kVa + kSize - 4096, 0, 8192), GPUUMD_EXISTS, "0x0010000ff000");
  expect_refused(map(2 * kVa, 4096, kSize), GPUUMD_OUT_OF_RANGE, "0x002000000000");
  expect_refused(vm.unmap(2 * kVa, 4096), GPUUMD_NOT_FOUND, "0x002000000000");
  expect_refused(vm.unmap(kVa, kSize + 4096), GPUUMD_NOT_FOUND, "0x001000000000");
}

// The fence has the code; the event has the address, and so has the daemon's log.
void copy_past_the_end(Client& client, Device& device) {
  auto space = Space::make(device);
  auto buffer = vram(device, kSize);
  must(space.vm.map(kVa, buffer, 0, kSize, kReadWrite));
  expect_refused(space.copy(kStagingVa, kVa + kSize - 4096, 8192), GPUUMD_FAULT, "fence point 1");
  const auto event = wait_event(client, GPUUMD_EVENT_FATAL_FAULT);
  ASSERT_TRUE(event);
  EXPECT_EQ(event->object, space.vm.id());
  EXPECT_EQ(event->va, kVa + kSize);
}

// `owner`: of another node, whose buffer has gone when its handle is used.
void bad_handles(Device& device, Device& owner) {
  expect_refused(Handle::parse("12345"), GPUUMD_INVALID_ARGUMENT, "'12345'");
  auto handle = must(vram(owner, kSize).export_handle());
  const auto import = [&](const Handle& what, gpuumd_status status) {
    expect_refused(device.import_handle(what, Wait(20s)), status, what.text());
  };
  import(handle, GPUUMD_NOT_FOUND);  // of a freed buffer
  handle.raw.hi ^= 1;
  import(handle, GPUUMD_NOT_FOUND);  // of nobody
  handle.raw.lo ^= 0x3FF;
  import(handle, GPUUMD_INVALID_ARGUMENT);  // of no accelerator of the pod
  auto own = vram(device, kSize);
  import(must(own.export_handle()), GPUUMD_INVALID_ARGUMENT);  // local
}

void bad_names(Client& client, Device& device) {
  expect_refused(client.open_device("nobody"), GPUUMD_NOT_FOUND, "'nobody'");
  expect_refused(client.open_device(7u), GPUUMD_NOT_FOUND, "7");
  expect_refused(client.open_device(0u), GPUUMD_EXISTS, "device 0");
  base::UniqueFd plain(::open("/dev/null", O_RDWR | O_CLOEXEC));
  expect_refused(device.open_shared(plain.get()), GPUUMD_NOT_FOUND, "descriptor");
}

TEST_F(BadInput, CallsNameTheThingAndLeaveNothing) {
  start_pod();
  const auto once = [&] {
    auto client = connect(0), other = connect(1);
    auto device = open(client), owner = open(other);
    bad_names(client, device);
    bad_binds(device);
    bad_handles(device, owner);
    copy_past_the_end(client, device);
  };
  once();  // pools fill, and the two nodes have met
  ASSERT_TRUE(eventually([&] { return held(0).sessions + held(1).sessions == 0; }));
  const Held before[] = {held(0), held(1)};
  for (int n = 0; n < 5; ++n) once();
  for (const unsigned node : {0u, 1u}) {
    EXPECT_TRUE(eventually([&] { return held(node) == before[node]; }))
        << "node " << node << " has " << held(node) << "; before " << before[node];
    EXPECT_EQ(before[node].vram, 0u);
  }
  char address[32];
  std::snprintf(address, sizeof(address), "%#llx", static_cast<unsigned long long>(kVa + kSize));
  EXPECT_NE(daemon(0).log().find(address), std::string::npos) << daemon(0).log();
}

// ---- programs ----

TEST_F(BadInput, AProgramThatImportsABadHandleSaysWhichAndFails) {
  start_pod();
  auto client = connect(0), other = connect(1);
  auto device = open(client), owner = open(other);
  auto local = vram(device, kSize);
  const auto freed = must(vram(owner, kSize).export_handle()).text();
  const std::vector<std::string> bad{freed, must(local.export_handle()).text(), "no handle"};
  const auto import = [&](const std::string& handle) {
    const auto ran =
        run("demo_importer", {"--runtime-dir", runtime_dir(0), "--control", "/dev/null", "--handle",
                              handle, "--bytes", "4096", "--output", directory() + "/out"});
    expect_one_line(ran, handle);
  };
  const auto clean = held(0);
  for (const auto& handle : bad) import(handle);
  // The allocator may keep a mapping that the first ones needed; nothing else may stay.
  auto before = clean;
  EXPECT_TRUE(eventually([&] {
    before.mappings = held(0).mappings;
    return held(0) == before;
  })) << held(0)
      << "; before " << clean;
  for (const auto& handle : bad) import(handle);
  EXPECT_TRUE(eventually([&] { return held(0) == before; })) << held(0) << "; before " << before;
}

TEST_F(BadInput, AnotherProtocolVersionIsSaidByBothSidesVersions) {
  start();
  const auto before = held(0);
  Relay relay(directory() + "/relay", runtime_dir(0), from_the_future, [](auto&) {});
  expect_one_line(run("gpuctl", {"list", "--runtime-dir", relay.directory()}),
                  "client speaks protocol 99 to 99, the daemon 1 to 1");
  EXPECT_TRUE(eventually([&] { return held(0) == before; })) << held(0) << "; before " << before;
}

TEST_F(BadInput, NoPermissionToConnectIsSaidWithThePath) {
  start();
  const auto before = held(0);
  const auto path = runtime_dir(0) + "/gpuumd.sock";
  ASSERT_EQ(::chmod(path.c_str(), 0), 0);
  const auto [program, arguments] =
      Process::unprivileged("gpuctl", {"list", "--runtime-dir", runtime_dir(0)});
  expect_one_line(run(program, arguments), path);
  ASSERT_EQ(::chmod(path.c_str(), 0600), 0);
  EXPECT_TRUE(eventually([&] { return held(0) == before; })) << held(0) << "; before " << before;
}

}  // namespace
}  // namespace whole
