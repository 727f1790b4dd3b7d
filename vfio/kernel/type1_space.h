// A container of /dev/vfio/vfio with the type 1 (version 2) IOMMU, and the device opened in it
// through its group. Also the container without an IOMMU, which maps nothing.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "vfio/kernel/dma_space.h"

namespace vfio {

enum class GroupKind : std::uint8_t { kIommu, kNoIommu };

class Type1Space final : public DmaSpace {
 public:
  struct Opened {
    base::UniqueFd device;
    std::unique_ptr<DmaSpace> space;
  };
  // `address` as sysfs spells it, "0000:03:00.0". kNotFound when a node is not there, kPermission
  // (also for a group that is not viable, and a function that wants a VF token), kBusy when
  // somebody has the group open, kUnsupported when the kernel refuses the group for its IOMMU,
  // kNoMemory, kNoSpace when the IOMMU is used up, kSystem; each with the remedy.
  static base::Result<Opened> open(const std::string& container_node, const std::string& group_node,
                                   const std::string& address, GroupKind kind);

 private:
  Type1Space(base::UniqueFd container, base::UniqueFd group, IovaLimits limits, GroupKind kind)
      : DmaSpace(std::move(limits)),
        container_(std::move(container)),
        group_(std::move(group)),
        kind_(kind) {}

  base::Result<void> usable() const override;
  base::Result<void> kernel_map(int fd, std::uint64_t offset, std::uint64_t size, base::Iova at,
                                Rights rights) override;
  base::Result<void> kernel_unmap(base::Iova at, std::uint64_t size) override;
  void kernel_close() override;

  base::UniqueFd container_;
  base::UniqueFd group_;
  const GroupKind kind_;
};

}  // namespace vfio
