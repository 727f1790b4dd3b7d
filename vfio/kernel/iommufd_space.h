// An IOVA space of /dev/iommu, and the device opened in it through its character device
// /dev/vfio/devices/vfioN.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "vfio/kernel/dma_space.h"

namespace vfio {

// How memory is named to the kernel: by file (Linux 6.13) or by our address for it. By file too it
// is mapped here during each call, to have its pages cleared before the kernel pins them. Which of
// the two the running kernel can is found out with the first mapping.
enum class MapBy : std::uint8_t { kFileWherePossible, kAddress };

class IommufdSpace final : public DmaSpace {
 public:
  struct Opened {
    base::UniqueFd device;
    std::unique_ptr<DmaSpace> space;
  };
  // Opens both nodes, binds the device, makes a space and attaches the device to it. kNotFound when
  // a node is not there, kPermission, kBusy when somebody has the group open, kUnsupported when the
  // kernel refuses the device for its IOMMU, with the remedy, kNoMemory, kSystem. With EINVAL the
  // kernel says one of two things: that the device is open already (kBusy it would be), or that its
  // IOMMU is not coherent. That is kUnsupported with sys EINVAL.
  static base::Result<Opened> open(const std::string& iommu_node, const std::string& device_node,
                                   MapBy by);

 private:
  IommufdSpace(base::UniqueFd iommufd, std::uint32_t ioas, IovaLimits limits, MapBy by)
      : DmaSpace(std::move(limits)),
        iommufd_(std::move(iommufd)),
        ioas_(ioas),
        by_file_(by == MapBy::kFileWherePossible) {}

  base::Result<void> kernel_map(int fd, std::uint64_t offset, std::uint64_t size, base::Iova at,
                                Rights rights) override;
  base::Result<void> kernel_unmap(base::Iova at, std::uint64_t size) override;
  void kernel_close() override { iommufd_.reset(); }

  base::UniqueFd iommufd_;
  const std::uint32_t ioas_;
  std::atomic<bool> by_file_;
};

}  // namespace vfio
