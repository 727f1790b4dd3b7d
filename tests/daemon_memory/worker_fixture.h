// A reactor of the test whose post() may come from the memory worker, and a device that remembers
// what is mapped for DMA and refuses what a real IOMMU would.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "daemon/gpu/memory/host_memory.h"
#include "daemon/gpu/memory/memory_worker.h"
#include "tests/fake/fake_pci_device.h"
#include "tests/fake/manual_reactor.h"

namespace fake {

class PostedReactor : public ManualReactor {
 public:
  void post(gpuumd::Task task) override {
    const std::lock_guard lock(mutex_);
    posted_.push_back(std::move(task));
  }
  bool on_thread() const override { return std::this_thread::get_id() == thread_; }
  // Turns until `condition` holds; a minute at most, then the test fails.
  template <class F>
  bool until(F condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!condition()) {
      take();
      if (!turn()) std::this_thread::yield();
      if (std::chrono::steady_clock::now() > deadline) return false;
    }
    return true;
  }
  void drop_posted() {
    const std::lock_guard lock(mutex_);
    posted_.clear();
  }

 private:
  void take() {
    std::vector<gpuumd::Task> tasks;
    {
      const std::lock_guard lock(mutex_);
      tasks.swap(posted_);
    }
    for (auto& task : tasks) ManualReactor::post(std::move(task));
  }
  std::thread::id thread_ = std::this_thread::get_id();
  std::mutex mutex_;
  std::vector<gpuumd::Task> posted_;
};

class IommuDevice : public FakePciDevice {
 public:
  IommuDevice() { limits.usable = {{base::Iova(0), base::Iova(~std::uint64_t{0})}}; }

  base::Result<void> map_dma(int fd, std::uint64_t offset, std::uint64_t size, base::Iova at,
                             vfio::Rights) override {
    const std::lock_guard lock(mutex_);
    if (refuse_maps > 0 && --refuse_maps == 0)
      return base::fail(base::Errc::kLimit, "max_mappings");
    EXPECT_LE(size, 2 * base::kMiB);
    EXPECT_GE(fd, 0);
    EXPECT_EQ(offset % 4096, 0u);
    for (const auto& [first, bytes] : maps)
      if (at.value() < first + bytes && first < at.value() + size)
        return base::fail(base::Errc::kExists, "map_dma");
    maps[at.value()] = size;
    return {};
  }
  base::Result<void> unmap_dma(base::Iova at, std::uint64_t size) override {
    const std::lock_guard lock(mutex_);
    const auto found = maps.find(at.value());
    if (found == maps.end() || found->second != size)
      return base::fail(base::Errc::kNotFound, "unmap_dma");
    maps.erase(found);
    return {};
  }
  std::size_t mapped() {
    const std::lock_guard lock(mutex_);
    return maps.size();
  }

  int refuse_maps = 0;  // the n-th one from now

 private:
  std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> maps;
};

}  // namespace fake
