// A daemon that cannot start says why in one line, exits with an error and leaves nothing behind;
// and the ways of naming a device that do start.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>

#include "tests/whole/client.h"
#include "vfio/pci_device.h"

namespace whole {
namespace {

using namespace gpuumd;

class Startup : public System {
 protected:
  struct Ended {
    std::optional<int> code;
    std::string said;
  };
  // A gpuumd that is expected to end by itself.
  Ended run(const std::vector<std::string>& arguments) { return run("gpuumd", arguments); }
  Ended run(const std::string& program, const std::vector<std::string>& arguments) {
    const auto log = directory() + "/failed" + std::to_string(++runs_) + ".log";
    auto process = Process::start(program, arguments, log);
    Ended ended;
    ended.code = process.wait(20s);
    ended.said = process.log();
    return ended;
  }
  Ended run_unprivileged(const std::vector<std::string>& arguments) {
    const auto [program, all] = Process::unprivileged("gpuumd", arguments);
    return run(program, all);
  }
  // One line that starts with the program's name and holds every part.
  static void expect_refused(const Ended& ended, const std::vector<std::string>& parts,
                             const std::string& program = "gpuumd") {
    ASSERT_TRUE(ended.code) << "still runs: " << ended.said;
    EXPECT_NE(*ended.code, 0);
    EXPECT_LT(*ended.code, 126) << "killed or not started: " << ended.said;
    EXPECT_EQ(std::ranges::count(ended.said, '\n'), 1) << ended.said;
    EXPECT_TRUE(ended.said.starts_with(program + ": ")) << ended.said;
    for (const auto& part : parts)
      EXPECT_NE(ended.said.find(part), std::string::npos)
          << "no \"" << part << "\" in " << ended.said;
  }
  // In a line where it could be named by the layer that fails and by the one that asked it.
  static void expect_named_once(const Ended& ended, const std::string& name) {
    const auto first = ended.said.find(name);
    ASSERT_NE(first, std::string::npos) << ended.said;
    EXPECT_EQ(ended.said.find(name, first + 1), std::string::npos) << ended.said;
  }
  // Neither sockets nor memory of a process that ended: the runtime directory may stay, empty but
  // for the lock file.
  void expect_nothing_left(const std::string& dir) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(dir, error))
      EXPECT_EQ(entry.path().filename(), "gpuumd.lock");
  }
  std::string write_file(const std::string& name, const std::string& text) {
    const auto path = directory() + "/" + name;
    std::ofstream(path) << text;
    return path;
  }
  std::string dir() const { return directory() + "/run"; }

 private:
  int runs_ = 0;
};

TEST_F(Startup, WithoutADeviceItSaysHowToNameOne) {
  expect_refused(run({"--runtime-dir", dir()}), {"no device given", "--device sim", "vfio-user:"});
  EXPECT_FALSE(std::filesystem::exists(dir()));
}

TEST_F(Startup, UnknownDevicesAreNamed) {
  expect_refused(run({"--device", "nvme0", "--runtime-dir", dir()}), {"\"nvme0\"", "sim"});
  const auto socket = "vfio-user:" + directory() + "/nobody.sock";
  const auto nobody = run({"--device", socket, "--runtime-dir", dir()});
  expect_refused(nobody, {socket, "not found"});
  expect_named_once(nobody, socket);
  expect_refused(run({"--device", "vfio-user:", "--runtime-dir", dir()}), {"vfio-user:"});
  expect_refused(run({"--device", "vfio-user:/" + std::string(200, 'x'), "--runtime-dir", dir()}),
                 {"socket path"});
  expect_refused(run({"--device", "sim:colour=red", "--runtime-dir", dir()}), {"\"colour\""});
  expect_refused(run({"--device", "sim:vram=lots", "--runtime-dir", dir()}), {"vram", "lots"});
  expect_nothing_left(dir());
}

// Also when the devices before it had come up: they are left quiet, bus mastering off.
TEST_F(Startup, ADeviceGivenTwiceIsNamed) {
  expect_refused(run({"--device", "pci:0000:77:00.0,backend=group", "--device", "pci:77:00.0",
                      "--runtime-dir", dir()}),
                 {"\"pci:77:00.0\"", "twice"});
  expect_refused(
      run({"--device", "vfio-user:/a", "--device", "vfio-user:/a", "--runtime-dir", dir()}),
      {"vfio-user:/a", "twice"});
}

TEST_F(Startup, AFunctionWithoutAnyInterruptIsRefused) {
  expect_refused(run({"--device", "sim:interrupts=none", "--runtime-dir", dir()}),
                 {"sim:interrupts=none", "Interrupts", "MSI-X", "INTx"});
  expect_nothing_left(dir());
}

TEST_F(Startup, ALaterDeviceThatDoesNotStartIsNamedAndTheFirstIsLeftQuiet) {
  start();
  end_daemon(0, 0);
  const auto good = "vfio-user:" + directory() + "/sim/gpu0.sock";
  for (const auto& first : {good, std::string("sim:vram=16M"), std::string("sim:inline")}) {
    const auto ended =
        run({"--device", first, "--device", "vfio-user:/nope", "--runtime-dir", dir()});
    EXPECT_EQ(ended.code, 1) << ended.said;
    EXPECT_NE(ended.said.find("vfio-user:/nope: connect: not found"), std::string::npos)
        << ended.said;
  }
  constexpr std::uint32_t kCommand = 4, kBusMaster = 1 << 2;
  const auto device = vfio::open_device(good);
  ASSERT_TRUE(device) << device.error().message();
  EXPECT_EQ((*device)->read_config(kCommand, 2).value() & kBusMaster, 0u);
}

TEST_F(Startup, MoreVramThanMemoryIsRefusedWithBothSizes) {
  expect_refused(run({"--device", "sim:vram=1T", "--runtime-dir", dir()}),
                 {"1048576 MiB of VRAM", "MiB of memory"});
  expect_nothing_left(dir());
}

TEST_F(Startup, UnknownOptionsAreNamed) {
  expect_refused(run({"--device", "sim", "--colour", "red"}), {"--colour"});
  expect_refused(run({"--device"}), {"--device"});
  expect_refused(run({"--device", "sim", "--fault-deadline-ms", "soon"}), {"--fault-deadline-ms"});
  expect_refused(run({"--device", "sim", "--runtime-dir", dir(), "--fault-deadline-ms", "0"}),
                 {"fault_deadline_ms"});
  expect_refused(run({"--device", "sim", "--runtime-dir", dir(), "--turn-limit-ms", "-5"}),
                 {"turn_limit_ms"});
  std::vector<std::string> many;
  for (int n = 0; n < 65; ++n) many.insert(many.end(), {"--device", "sim:vram=16M"});
  expect_refused(run(many), {"65 devices", "at most 64"});
  expect_refused(run({"--device", "sim", "--runtime-dir", dir(), "--log-level", "loud"}),
                 {"log", "loud"});
}

TEST_F(Startup, ConfigurationIsRefusedWithFileAndLine) {
  const auto broken = write_file("broken.toml", "same_host = true\ndevices = [\"sim\"\nlog_level");
  expect_refused(run({"--config", broken}), {"broken.toml:3"});
  const auto unknown = write_file("unknown.toml", "devices = [\"sim\"]\n\ncolour = \"red\"\n");
  expect_refused(run({"--config", unknown}), {"unknown.toml:3", "\"colour\""});
  const auto type = write_file("type.toml", "devices = [\"sim\"]\nfault_deadline_ms = \"long\"\n");
  expect_refused(run({"--config", type}), {"type.toml:2", "fault_deadline_ms", "number"});
  expect_refused(run({"--config", directory() + "/none.toml"}), {"none.toml", "not found"});
  expect_refused(run({"--config", directory()}), {directory(), "no regular file"});
  const auto closed = directory() + "/closed";
  std::filesystem::create_directory(closed);
  std::filesystem::permissions(closed, std::filesystem::perms::none);
  expect_refused(run_unprivileged({"--config", closed + "/c.toml"}), {closed, "permission"});
}

TEST_F(Startup, ARuntimeDirectoryThatCannotBeIsNamed) {
  const auto file = write_file("plain", "no directory");
  expect_refused(run({"--device", "sim", "--runtime-dir", file + "/run"}), {file + "/run"});
  expect_refused(run({"--device", "sim", "--runtime-dir", file}), {file});
  // Nobody can make a directory there, root included.
  expect_refused(run({"--device", "sim", "--runtime-dir", "/proc/gpuumd"}), {"/proc/gpuumd"});
  const auto deep = directory() + "/" + std::string(120, 'd');
  expect_refused(run({"--device", "sim", "--runtime-dir", deep}), {"too long"});
}

TEST_F(Startup, NoPermissionOnTheRuntimeDirectoryOrTheDeviceIsSaid) {
  std::filesystem::create_directory(dir());
  ASSERT_EQ(::chmod(dir().c_str(), 0500), 0);
  expect_refused(run_unprivileged({"--device", "sim", "--runtime-dir", dir()}),
                 {dir(), "permission"});
  ASSERT_EQ(::chmod(dir().c_str(), 0700), 0);
  start();
  const auto socket = directory() + "/sim/gpu0.sock";
  ASSERT_EQ(::chmod(socket.c_str(), 0), 0);
  expect_refused(run_unprivileged({"--device", "vfio-user:" + socket, "--runtime-dir", dir()}),
                 {socket, "permission"});
  expect_nothing_left(dir());
}

TEST_F(Startup, TheModelNamesItsBadOptionsToo) {
  const auto sim = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--dir", directory()});
    return run("gpusim", arguments);
  };
  expect_refused(sim({"--colour", "red"}), {"--colour"}, "gpusim");
  expect_refused(sim({"--gpus", "many"}), {"gpus", "many"}, "gpusim");
  expect_refused(sim({"--vram", "1T"}), {"1048576 MiB of VRAM", "MiB of memory"}, "gpusim");
  expect_refused(sim({"--pod", directory() + "/none.json"}), {"none.json"}, "gpusim");
  for (const char* option : {"--pod", "--scenario"})
    expect_refused(sim({option, directory()}), {directory(), "is a directory"}, "gpusim");
}

TEST_F(Startup, ASecondDaemonIsToldWhoHasTheDeviceOrTheDirectory) {
  start();
  const auto device = "vfio-user:" + directory() + "/sim/gpu0.sock";
  const auto pid = std::to_string(daemon(0).pid());
  const auto once = [&] {
    // Same directory, another device.
    expect_refused(run({"--device", "sim:vram=64M,bar0=16M", "--runtime-dir", runtime_dir(0)}),
                   {runtime_dir(0), pid});
    // Same device, another directory: the model serves one client at a time.
    const auto busy = run({"--device", device, "--runtime-dir", dir()});
    expect_refused(busy, {device, "busy"});
    expect_named_once(busy, device);
    expect_nothing_left(dir());
  };
  const auto held = [&] {
    return std::tuple(daemon(0).descriptors(), daemon(0).mappings(), model().descriptors(),
                      model().mappings());
  };
  once();
  // The first one has not noticed, nor has the model kept anything of the others. (A daemon that
  // has just come up still fills its pools: not each round shows it.)
  EXPECT_TRUE(eventually([&] {
    const auto before = held();
    once();
    return held() == before;
  }));
  auto client = connect();
  auto opened = open(client);
  auto space = Space::make(opened);
  auto buffer = vram(opened, 1 << 20);
  must(space.vm.map(kVa, buffer, 0, 1 << 20, kReadWrite));
  EXPECT_TRUE(space.read(kVa, 1 << 20) == std::vector<std::byte>(1 << 20));
}

// As a daemon that was killed and is not through with ending.
TEST_F(Startup, ARuntimeDirectoryThatIsStillHeldIsWaitedFor) {
  std::filesystem::create_directory(dir());
  const auto lock = dir() + "/gpuumd.lock";
  base::UniqueFd held(::open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);
  auto process = Process::start("gpuumd", {"--device", "sim:vram=64M", "--runtime-dir", dir()},
                                directory() + "/patient.log");
  std::this_thread::sleep_for(500ms);  // it has looked by now, if the machine is not too slow
  held.reset();
  EXPECT_TRUE(process.line_with("gpuumd: ready")) << process.log();
  EXPECT_EQ(process.stop(), 0) << process.log();
}

class Embedded : public Startup, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Model, Embedded,
                         ::testing::Values("sim:vram=256M", "sim:inline,vram=256M"));

TEST_P(Embedded, TheModelInsideTheDaemonCopiesAndFaults) {
  auto process = Process::start("gpuumd", {"--device", GetParam(), "--runtime-dir", dir()},
                                directory() + "/embedded.log");
  ASSERT_TRUE(process.line_with("gpuumd: ready")) << process.log();
  {
    constexpr std::uint64_t kSize = 8 << 20;
    auto client = must(Client::connect(dir(), "embedded", 20s));
    auto device = must(client.open_device(GetParam()));
    EXPECT_NE(device.info().flags & GPUUMD_DEVICE_SIMULATED, 0u);
    auto space = Space::make(device, GPUUMD_VM_FAULTS);
    auto source = vram(device, kSize), target = vram(device, kSize);
    must(space.vm.map(kVa, source, 0, kSize, kReadWrite));
    space.map_on_fault(2 * kVa, target, kSize, 256 << 10);
    const auto data = random_bytes(kSize, 20);
    must(space.staging.upload(kVa, data, Wait(30s)));
    must(space.copy(2 * kVa, kVa, kSize));
    EXPECT_TRUE(space.read(2 * kVa, kSize) == data);
  }
  EXPECT_EQ(process.stop(), 0) << process.log();
  expect_nothing_left(dir());
}

}  // namespace
}  // namespace whole
