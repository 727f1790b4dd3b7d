// gpuumd: owns GPUs and serves clients (docs/architecture.md). This file composes: configuration,
// logging, a thread for each device, the control thread, and the end of all of it.
#include <spdlog/async.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <vector>

#include "daemon/config.h"
#include "daemon/device_host.h"
#include "daemon/ipc/control_thread.h"
#include "daemon/ipc/listener.h"

namespace {

using namespace gpuumd;

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr std::chrono::seconds kCloseDeadline{10};
// With a runtime directory whose daemon is still ending, as with a device (vfio/open_device.cc).
constexpr std::chrono::seconds kLockPatience{3};
constexpr std::size_t kLogQueue = 8192;

int fail(const base::Error& error) {
  spdlog::shutdown();
  std::fprintf(stderr, "gpuumd: %s\n", error.message().c_str());
  return kFailed;
}

// Asynchronous and bounded: a full queue drops its oldest lines rather than stop a reactor.
void set_up_logging(const std::string& level) {
  spdlog::init_thread_pool(kLogQueue, 1);
  auto sink = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  auto logger = std::make_shared<spdlog::async_logger>(
      "gpuumd", sink, spdlog::thread_pool(), spdlog::async_overflow_policy::overrun_oldest);
  logger->set_level(spdlog::level::from_str(level));
  logger->flush_on(spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
}

base::Result<void> prepare_runtime_dir(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  std::error_code unknown;  // a parent that may not be searched
  if (!std::filesystem::is_directory(path, unknown))
    return base::fail(
        error == std::errc::permission_denied ? base::Errc::kPermission : base::Errc::kSystem,
        "runtime directory " + path, error.value());
  return {};
}

// Buffers and clients take descriptors; the usual soft limit is there for select() alone.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

int run(const DaemonConfig& config) {
  if (auto valid = check_config(config); !valid) {
    std::fprintf(stderr, "gpuumd: %s\n", valid.error().message().c_str());
    return kUsage;
  }
  // Before the first thread, the logger's: threads inherit the mask, so the signals come to
  // sigwait() below and nowhere else.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int number : {SIGTERM, SIGINT}) sigaddset(&signals, number);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  set_up_logging(config.log_level);
  raise_descriptor_limit();
  if (auto ready = prepare_runtime_dir(config.runtime_dir); !ready) return fail(ready.error());
  // First of all: who does not get the lock must not touch, let alone reset, a device.
  ControlConfig control_config;
  control_config.runtime_dir = config.runtime_dir;
  auto listener = Listener::open(config.runtime_dir, control_config.socket_mode, kLockPatience);
  if (!listener) return fail(listener.error());

  SpinCensus census;
  std::unique_ptr<ControlThread> control;  // set once it runs; devices tell it about changes
  auto control_slot = std::make_shared<std::atomic<ControlThread*>>(nullptr);
  std::vector<std::unique_ptr<DeviceThread>> devices;
  std::vector<ControlDevice> listed;
  // A start that fails leaves the devices before it quiet too.
  const auto give_up = [&devices](const base::Error& why) {
    for (auto& device : devices) (void)device->stop();
    return fail(why);
  };
  for (const auto& name : config.devices) {
    DeviceThread::Options options;
    options.name = name;
    options.index = static_cast<std::uint32_t>(devices.size());
    options.config = &config;
    options.census = &census;
    options.changed = [control_slot](const wire::DeviceInfo& info) {
      if (auto* thread = control_slot->load()) thread->update_device(info);
    };
    auto device = DeviceThread::start(std::move(options));
    if (!device) return give_up(device.error());
    const auto info = (*device)->info();
    spdlog::info("{}: ready, {} MiB VRAM, accelerator {}", name, info.vram_bytes >> 20,
                 static_cast<std::int32_t>(info.accelerator_id));
    listed.push_back({&(*device)->reactor(), &(*device)->device(), info});
    devices.push_back(std::move(*device));
  }

  auto started = ControlThread::start(control_config, std::move(*listener), std::move(listed));
  if (!started) return give_up(started.error());
  control = std::move(*started);
  control_slot->store(control.get());
  for (auto& device : devices) control->update_device(device->info());

  std::printf("gpuumd: ready, %zu device(s), %s/%s\n", devices.size(), config.runtime_dir.c_str(),
              wire::kSocketName);
  std::fflush(stdout);
  ::sd_notify(0, "READY=1");
  int number = 0;
  ::sigwait(&signals, &number);
  ::sd_notify(0, "STOPPING=1");
  spdlog::info("ending on signal {}", number);

  control_slot->store(nullptr);
  int code = 0;
  if (auto closed = control->stop(std::chrono::milliseconds(kCloseDeadline)); !closed) {
    spdlog::error("closing sessions: {}", closed.error().message());
    code = kFailed;
  }
  for (auto& device : devices)
    if (auto stopped = device->stop(); !stopped) {
      spdlog::error("{}", stopped.error().message());
      code = kFailed;
    }
  control.reset();
  devices.clear();
  spdlog::shutdown();
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"gpuumd: userspace driver daemon for UALink-capable GPUs"};
  DaemonConfig config;
  std::string file;
  app.add_option("--config", file, "TOML file; the command line wins over it");
  DaemonConfig given;
  auto* devices = app.add_option("--device", given.devices,
                                 "pci:ADDRESS[,options], vfio-user:PATH or sim[:options]; once for "
                                 "each GPU");
  auto* dir = app.add_option("--runtime-dir", given.runtime_dir, "sockets and lock (/run/gpuumd)");
  auto* level = app.add_option("--log-level", given.log_level, "debug, info, warn, error or off");
  bool no_same_host = false;
  app.add_flag("--no-same-host", no_same_host,
               "go through the fabric even for handles of this daemon's own GPUs");
  auto* deadline =
      app.add_option("--fault-deadline-ms", given.fault_deadline_ms, "of one page fault (1000)");
  auto* turn =
      app.add_option("--turn-limit-ms", given.turn_limit_ms, "log longer reactor turns (0: off)");
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "gpuumd: %s (gpuumd --help)\n", error.what());
    return kUsage;
  }

  if (!file.empty())
    if (auto loaded = load_config(file, config); !loaded) {
      std::fprintf(stderr, "gpuumd: %s\n", loaded.error().message().c_str());
      return kUsage;
    }
  if (*devices) config.devices = given.devices;
  if (*dir) config.runtime_dir = given.runtime_dir;
  if (*level) config.log_level = given.log_level;
  if (no_same_host) config.same_host = false;
  if (*deadline) config.fault_deadline_ms = given.fault_deadline_ms;
  if (*turn) config.turn_limit_ms = given.turn_limit_ms;
  return run(config);
}
