// The device that GPUUMD_TEST_PCI names, bound to vfio-pci, opened once in each way that the
// kernel has. As root, in a guest (docs/testing.md): the tests unbind it, switch its memory off and
// set the kernel's limits.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/shared_memory.h"
#include "vfio/kernel/open_kernel.h"

namespace vfio_kernel_test {

using base::Errc;
using base::Iova;
using base::kMiB;
using base::kPageSize;
using vfio::BarIndex;
using vfio::KernelBackend;
using vfio::KernelDevice;
using vfio::Rights;

enum class Way : std::uint8_t { kIommufd, kIommufdByAddress, kGroup };

inline std::string name_of(Way way) {
  return way == Way::kIommufd ? "Iommufd" : way == Way::kGroup ? "Group" : "IommufdByAddress";
}

inline std::string address_under_test() {
  const char* const address = std::getenv("GPUUMD_TEST_PCI");
  return address == nullptr ? "" : address;
}

// Writes what a shell's echo would; false when the kernel refuses.
inline bool put(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good();
}
inline std::string get(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return word;
}

inline std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// Whether the eventfd rings within ten seconds; takes its count.
inline bool rings(const base::UniqueFd& eventfd) {
  pollfd wait{eventfd.get(), POLLIN, 0};
  std::uint64_t count = 0;
  return ::poll(&wait, 1, 10'000) == 1 && ::read(eventfd.get(), &count, sizeof(count)) == 8;
}
inline bool is_silent(const base::UniqueFd& eventfd) {
  pollfd wait{eventfd.get(), POLLIN, 0};
  return ::poll(&wait, 1, 300) == 0;
}

class KernelVfio : public testing::Test {
 protected:
  // QEMU's AMD IOMMU (11.1) ends itself when iommufd unmaps a range of many small pages at once.
  static void SetUpTestSuite() {
    if (std::filesystem::exists("/sys/class/iommu/ivhd0"))
      put("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "always");
  }
  void SetUp() override {
    address_ = address_under_test();
    if (address_.empty()) GTEST_SKIP() << "GPUUMD_TEST_PCI names no device";
    if (!has_iommu()) GTEST_SKIP() << "no IOMMU holds the device";
    descriptors_ = open_descriptors();
  }
  void TearDown() override {
    if (IsSkipped()) return;
    device_.reset();
    EXPECT_EQ(open_descriptors(), descriptors_) << "descriptors leaked";
  }

  base::Result<std::unique_ptr<KernelDevice>> try_open(Way way, bool without_iommu = false) const {
    vfio::KernelName name;
    name.without_iommu = without_iommu;
    name.address = vfio::sysfs::PciAddress::parse(address_).value();
    name.backend = way == Way::kGroup ? KernelBackend::kGroup : KernelBackend::kIommufd;
    vfio::KernelOptions options;
    if (way == Way::kIommufdByAddress) options.map_by = vfio::MapBy::kAddress;
    return vfio::open_kernel_device("pci:" + address_, name, options);
  }
  void open(Way way) {
    auto device = try_open(way);
    if (!device) throw std::runtime_error(device.error().message());  // ends the test
    device_ = std::move(*device);
  }
  std::string sysfs(const std::string& attribute) const {
    return "/sys/bus/pci/devices/" + address_ + "/" + attribute;
  }
  static bool has_iommufd() { return std::filesystem::exists("/dev/iommu"); }
  bool has_iommu() const { return get(sysfs("iommu_group/name")) != "vfio-noiommu"; }
  bool is(std::string_view vendor, std::string_view device = "") const {
    return get(sysfs("vendor")) == vendor && (device.empty() || get(sysfs("device")) == device);
  }

  std::string address_;
  std::size_t descriptors_ = 0;
  std::unique_ptr<KernelDevice> device_;
};

// Each test with each way.
class EachWay : public KernelVfio, public testing::WithParamInterface<Way> {
 protected:
  void open() { KernelVfio::open(GetParam()); }
};

#define GPUUMD_EACH_WAY(suite)                                                                  \
  INSTANTIATE_TEST_SUITE_P(Ways, suite,                                                         \
                           testing::Values(Way::kIommufd, Way::kIommufdByAddress, Way::kGroup), \
                           [](const auto& way) { return name_of(way.param); })

}  // namespace vfio_kernel_test
