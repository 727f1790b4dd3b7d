// A daemon and a connected client with one device open.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "gpuumd/gpuumd.h"
#include "tests/ipc/fixture.h"

namespace gpuumd::fake {

inline gpuumd_wait wait_for(std::int64_t ms, std::uint32_t mode = GPUUMD_WAIT_ADAPTIVE) {
  return {sizeof(gpuumd_wait), mode, ms * 1'000'000};
}

inline gpuumd_client* connect_to(const std::string& directory) {
  gpuumd_connect_options options{};
  options.size = sizeof(options);
  options.runtime_dir = directory.c_str();
  options.name = "client_test";
  options.default_timeout_ns = 30'000'000'000;
  gpuumd_client* client = nullptr;
  EXPECT_EQ(gpuumd_connect(&options, nullptr, &client), GPUUMD_OK) << gpuumd_last_error();
  return client;
}

inline gpuumd_buffer* make_buffer(gpuumd_device* device, std::uint32_t kind, std::uint64_t bytes) {
  gpuumd_buffer_options options{};
  options.size = sizeof(options);
  options.kind = kind;
  options.bytes = bytes;
  gpuumd_buffer* buffer = nullptr;
  EXPECT_EQ(gpuumd_buffer_create(device, &options, nullptr, &buffer), GPUUMD_OK)
      << gpuumd_last_error();
  return buffer;
}

struct App : ::testing::Test {
  void SetUp() override {
    client = connect_to(daemon.directory);
    ASSERT_NE(client, nullptr);
    ASSERT_EQ(gpuumd_device_open(client, nullptr, 0, nullptr, &device), GPUUMD_OK)
        << gpuumd_last_error();
  }
  void TearDown() override {
    gpuumd_device_close(device);
    gpuumd_disconnect(client);
  }

  Daemon daemon;
  gpuumd_client* client = nullptr;
  gpuumd_device* device = nullptr;
};

}  // namespace gpuumd::fake
