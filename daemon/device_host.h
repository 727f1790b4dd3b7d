// A device with the thread that owns it: opens it by name, brings it up, takes it down.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/result.h"
#include "daemon/config.h"
#include "daemon/reactor/uring_reactor.h"
#include "daemon/session/device.h"

namespace gpuumd {

// Main thread, for all calls: they wait for the device's reactor, each within its own deadline.
class DeviceThread {
 public:
  struct Options {
    std::string name;  // of the device
    std::uint32_t index = 0;
    const DaemonConfig* config = nullptr;
    SpinCensus* census = nullptr;
    // On the reactor thread, when what a client sees of the device has changed.
    std::function<void(const wire::DeviceInfo&)> changed;
  };
  // The error names the device and the step that failed; then the device is quiet again.
  static base::Result<std::unique_ptr<DeviceThread>> start(Options options);
  ~DeviceThread();  // after stop()

  // Leaves the device quiet. The sessions are closed by now.
  base::Result<void> stop();

  Reactor& reactor() { return thread_->reactor(); }
  Device& device() { return *device_; }
  wire::DeviceInfo info();

 private:
  struct Model;  // the device model inside this process
  DeviceThread();
  base::Result<void> open(const Options& options);

  // In the order of making. What is below the thread belongs to it and is made and ended there.
  std::unique_ptr<ReactorThread> thread_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<MemoryWorker> worker_;
  std::unique_ptr<Device> device_;
};

}  // namespace gpuumd
