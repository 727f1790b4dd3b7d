// A device with its thread and the model inside it, and calls to its parts on its reactor.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "daemon/device_host.h"

namespace gpuumd::test {

class DeviceRig : public testing::Test {
 protected:
  static constexpr std::chrono::minutes kPatience{1};

  void start(const std::string& name = "sim:vram=64M,bar0=32M") {
    DeviceThread::Options options;
    options.name = name;
    options.config = &config_;
    options.census = &census_;
    options.changed = [](const wire::DeviceInfo&) {};
    auto started = DeviceThread::start(std::move(options));
    ASSERT_TRUE(started) << started.error().message();
    thread_ = std::move(*started);
  }
  void SetUp() override { start(); }
  void TearDown() override {
    if (!thread_) return;
    const auto stopped = thread_->stop();
    EXPECT_TRUE(stopped) << stopped.error().message();
    thread_.reset();
  }

  // Runs `call` on the reactor and gives what it returns.
  template <class Call>
  auto on(Call call) {
    using T = std::invoke_result_t<Call, Device&>;
    std::promise<T> promise;
    auto future = promise.get_future();
    thread_->reactor().post([&] {
      if constexpr (std::is_void_v<T>) {
        call(thread_->device());
        promise.set_value();
      } else {
        promise.set_value(call(thread_->device()));
      }
    });
    return future.get();
  }
  // Runs `call` with a function that it is to call with the outcome, and waits for that.
  template <class T>
  base::Result<T> wait(std::function<void(Device&, DoneWith<T>)> call) {
    auto promise = std::make_shared<std::promise<base::Result<T>>>();
    auto future = promise->get_future();
    on([&](Device& device) {
      call(device, [promise](base::Result<T> result) { promise->set_value(std::move(result)); });
    });
    if (future.wait_for(kPatience) != std::future_status::ready)
      return base::fail(base::Errc::kTimeout, "answer in the test");
    return future.get();
  }
  // Asks on the reactor until `ready` says so; false when patience ends.
  bool eventually(std::function<bool(Device&)> ready) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < end) {
      if (on(ready)) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  DaemonConfig config_;
  SpinCensus census_;
  std::unique_ptr<DeviceThread> thread_;
};

}  // namespace gpuumd::test
