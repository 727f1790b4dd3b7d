// A daemon in a test: a reactor, a fake host and a real control thread in a directory of their own.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>

#include "daemon/ipc/control_thread.h"
#include "daemon/reactor/uring_reactor.h"
#include "tests/ipc/fake_host.h"

namespace gpuumd::fake {

inline std::string make_directory() {
  std::string path = std::filesystem::temp_directory_path() / "gpuumd-ipc-XXXXXX";
  return ::mkdtemp(path.data()) != nullptr ? path : std::string();
}

inline wire::DeviceInfo device_info(const std::string& name) {
  wire::DeviceInfo info{};
  info.flags = GPUUMD_DEVICE_SIMULATED;
  info.state = GPUUMD_DEVICE_READY;
  info.vram_bytes = 64 * base::kMiB;
  info.max_vms = 16;
  info.va_first = 0x10000;
  info.va_end = std::uint64_t{1} << 47;
  info.max_queue_slots = wire::kMaxQueueSlots;
  name.copy(info.name, sizeof(info.name) - 1);
  return info;
}

// Waits (generously) until `done` holds.
template <class Done>
bool eventually(Done done) {
  for (const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);;) {
    if (done()) return true;
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

inline std::size_t open_descriptors() {
  const std::filesystem::directory_iterator list("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(list), end(list)));
}

inline std::unique_ptr<ReactorThread> start_reactor() {
  ReactorOptions options;
  options.name = "test";
  return std::move(ReactorThread::start(std::move(options)).value());
}

class Daemon {
 public:
  // `config.runtime_dir` empty: a directory of its own.
  explicit Daemon(ControlConfig config = {}, unsigned devices = 1) {
    if (config.runtime_dir.empty()) config.runtime_dir = owned_ = make_directory();
    directory = config.runtime_dir;
    thread_ = start_reactor();
    std::vector<ControlDevice> list;
    for (unsigned i = 0; i < devices; ++i) {
      hosts.push_back(std::make_unique<FakeHost>(thread_->reactor()));
      list.push_back(
          {&thread_->reactor(), hosts.back().get(), device_info("sim:" + std::to_string(i))});
    }
    control = std::move(ControlThread::start(std::move(config), std::move(list)).value());
  }
  ~Daemon() {
    if (control && !expect_unclean) {
      EXPECT_TRUE(control->stop(std::chrono::seconds(20)));
    }
    control.reset();
    on_reactor([this] {
      for (auto& host : hosts) host->end();
    });
    thread_.reset();
    if (!owned_.empty()) std::filesystem::remove_all(owned_);
  }

  FakeHost& host(std::size_t i = 0) { return *hosts[i]; }
  Reactor& reactor() { return thread_->reactor(); }
  // Runs `work` on the reactor thread and waits for it.
  template <class Work>
  void on_reactor(Work work) {
    std::promise<void> done;
    reactor().post([&] {
      work();
      done.set_value();
    });
    done.get_future().wait();
  }

  std::string directory;
  bool expect_unclean = false;  // a handler does not close
  std::vector<std::unique_ptr<FakeHost>> hosts;
  std::unique_ptr<ControlThread> control;

 private:
  std::string owned_;
  std::unique_ptr<ReactorThread> thread_;
};

}  // namespace gpuumd::fake
