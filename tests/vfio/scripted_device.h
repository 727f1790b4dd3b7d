// A kernel that answers for a PCI device whose descriptor is that of a file.
#pragma once

#include <linux/vfio.h>
#include <unistd.h>

#include <cstdint>

#include <gtest/gtest.h>

#include "scripted_ioctl.h"

namespace vfio_test {

// 1002:75f0, class 0x120000, revision 7, memory space and bus mastering on.
inline void put_header(int file) {
  const std::uint32_t header[] = {0x75f01002, 0x00000006, 0x12000007};
  EXPECT_EQ(::pwrite(file, header, sizeof(header), 0), 12);
}

// Regions of 4 KiB, all of them at the start of the file; four MSI-X vectors, one interrupt of each
// other kind; every set of eventfds is taken.
inline void answer_for_device(ScriptedIoctls& kernel) {
  kernel.on(VFIO_DEVICE_GET_INFO, [](int, void* argument) {
    auto* const info = static_cast<vfio_device_info*>(argument);
    info->flags = VFIO_DEVICE_FLAGS_PCI | VFIO_DEVICE_FLAGS_RESET;
    info->num_regions = VFIO_PCI_NUM_REGIONS;
    info->num_irqs = VFIO_PCI_NUM_IRQS;
    return 0;
  });
  kernel.on(VFIO_DEVICE_GET_REGION_INFO, [](int, void* argument) {
    auto* const info = static_cast<vfio_region_info*>(argument);
    info->argsz = sizeof(*info);
    info->flags = VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE;
    info->size = 4096;
    return 0;
  });
  kernel.on(VFIO_DEVICE_GET_IRQ_INFO, [](int, void* argument) {
    auto* const info = static_cast<vfio_irq_info*>(argument);
    info->flags = VFIO_IRQ_INFO_EVENTFD;
    info->count = info->index == VFIO_PCI_MSIX_IRQ_INDEX ? 4 : 1;
    return 0;
  });
  kernel.on(VFIO_DEVICE_SET_IRQS, 0);
}

}  // namespace vfio_test
