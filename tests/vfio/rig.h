// A device connected to a scripted server. Every test that uses it also checks that no descriptor
// is left when both are gone.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "base/shared_memory.h"
#include "scripted_server.h"
#include "vfio/user/user_device.h"

namespace vfio_test {

using base::Errc;
using base::Iova;
using vfio::BarIndex;
using vfio::Rights;
using namespace std::chrono_literals;

// Far above what a loaded machine needs: only what must not happen takes so long.
inline vfio::UserOptions patient() {
  vfio::UserOptions options;
  options.handshake = 20s;
  options.trap = 20s;
  options.call = 20s;
  options.reset = 20s;
  return options;
}
// For a server that never answers.
inline vfio::UserOptions hasty() {
  vfio::UserOptions options = patient();
  options.handshake = options.trap = options.call = options.reset = 300ms;
  return options;
}

// Whether an eventfd has been written to since it was last asked.
inline bool signalled(int eventfd) {
  std::uint64_t count = 0;
  return ::read(eventfd, &count, sizeof(count)) == sizeof(count);
}

class Rig : public testing::Test {
 protected:
  Rig() : descriptors_before_(open_descriptors()) { server_.emplace(); }
  ~Rig() override {
    bar_.reset();
    device_.reset();
    server_.reset();
    EXPECT_EQ(open_descriptors(), descriptors_before_) << "descriptors leaked";
  }

  base::Result<void> try_connect(vfio::UserOptions options = patient()) {
    auto device = vfio::connect_vfio_user(server_->take_client_end(), "sim", std::move(options));
    if (!device) return std::unexpected(device.error());
    device_ = std::move(*device);
    return {};
  }
  void connect(vfio::UserOptions options = patient()) {
    const auto connected = try_connect(std::move(options));
    ASSERT_TRUE(connected) << connected.error().message();
  }
  void open_bar(BarIndex index) {
    auto bar = device_->open_bar(index);
    ASSERT_TRUE(bar) << bar.error().message();
    bar_ = std::move(*bar);
  }
  ScriptedServer& server() { return *server_; }

  // What must hold of a lost device, whatever lost it.
  void expect_lost() {
    EXPECT_TRUE(device_->lost());
    EXPECT_EQ(device_->read_config(0, 4).error().code, Errc::kDeviceLost);
    EXPECT_EQ(device_->write_config(4, 2, 0).error().code, Errc::kDeviceLost);
    EXPECT_EQ(device_->open_bar(BarIndex::k0).error().code, Errc::kDeviceLost);
    EXPECT_EQ(device_->reset().error().code, Errc::kDeviceLost);
    EXPECT_EQ(device_->arm_msix(1).error().code, Errc::kDeviceLost);
    EXPECT_EQ(device_->unmap_dma(Iova(0), 4096).error().code, Errc::kDeviceLost);
    const auto memory = base::make_memfd("memory", 4096).value();
    EXPECT_EQ(device_->map_dma(memory.get(), 0, 4096, Iova(0), Rights::kRead).error().code,
              Errc::kDeviceLost);
    device_->handle_events();
  }

  const std::size_t descriptors_before_;
  std::optional<ScriptedServer> server_;
  std::unique_ptr<vfio::UserDevice> device_;
  std::unique_ptr<vfio::Bar> bar_;
};

}  // namespace vfio_test
