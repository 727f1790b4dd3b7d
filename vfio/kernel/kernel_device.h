// A PciDevice behind the kernel's VFIO, however it was opened: by iommufd or by a group.
//
// Waits: the kernel ends each of its calls by itself, but may take its time over some: opening,
// reset() and release() reset the device (100 ms, and up to a minute for one that does not come
// back), map_dma() pins memory, a trapped access waits for the device's answer (PCIe's completion
// timeout, 50 ms at most as a rule). There is no shorter deadline to be had.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "vfio/bar_memory.h"
#include "vfio/kernel/config_space.h"
#include "vfio/kernel/device_file.h"
#include "vfio/kernel/dma_space.h"
#include "vfio/kernel/loss.h"
#include "vfio/pci_device.h"

namespace vfio {

class KernelDevice final : public PciDevice {
 public:
  // Takes the opened device over. `identity` comes with the name and the backend; the rest of it is
  // read from the device. `may_reset` holds what the reset policy says of this part
  // (vfio/sysfs/reset_policy.h). kUnsupported for what is no PCI device,
  // kDeviceLost for one whose configuration space reads all ones, kDeviceError for one that does
  // not wake up, kSystem.
  static base::Result<std::unique_ptr<KernelDevice>> create(DeviceIdentity identity,
                                                            base::UniqueFd device,
                                                            std::unique_ptr<DmaSpace> space,
                                                            base::Result<void> may_reset);
  ~KernelDevice() override { release(); }

  const DeviceIdentity& identity() const override { return identity_; }
  bool lost() const override { return loss_->lost(); }
  std::string lost_why() const override { return loss_->why(); }
  base::Result<std::uint32_t> read_config(std::uint32_t offset, unsigned width) override {
    return config_->read(offset, width);
  }
  base::Result<void> write_config(std::uint32_t offset, unsigned width,
                                  std::uint32_t value) override {
    return config_->write(offset, width, value);
  }
  // Switches memory space on where it is off: without it each access to the BAR would be a SIGBUS.
  base::Result<std::unique_ptr<Bar>> open_bar(BarIndex index) override;
  const IovaLimits& iova_limits() const override { return space_->limits(); }
  base::Result<void> map_dma(int fd, std::uint64_t offset, std::uint64_t size, base::Iova at,
                             Rights rights) override;
  base::Result<void> unmap_dma(base::Iova at, std::uint64_t size) override;
  base::Result<std::vector<base::UniqueFd>> arm_msix(unsigned count) override;
  base::Result<void> disarm_msix() override;
  base::Result<base::UniqueFd> arm_intx() override;
  base::Result<void> unmask_intx() override;
  base::Result<void> reset() override;
  int event_fd() const override { return events_.get(); }
  void handle_events() override;
  void release() override;

 private:
  KernelDevice(DeviceIdentity identity, base::UniqueFd device, std::unique_ptr<DmaSpace> space,
               base::Result<void> may_reset, std::unique_ptr<Loss> loss);

  base::Result<void> look_at_it();
  base::Result<void> watch();
  base::Result<void> watch_interrupt(IrqKind kind, base::UniqueFd& eventfd);
  base::Result<void> poll_too(int fd);
  void hear();  // what the kernel's own interrupts say, without waiting
  base::Result<std::vector<base::UniqueFd>> arm(IrqKind kind, unsigned count);

  DeviceIdentity identity_;
  const base::Result<void> may_reset_;
  std::unique_ptr<Loss> loss_;
  DeviceFile file_;
  std::unique_ptr<DmaSpace> space_;
  std::optional<ConfigSpace> config_;
  bool can_reset_ = false;
  std::optional<IrqKind> armed_;
  base::UniqueFd error_;  // eventfds of the kernel's two own interrupts,
  base::UniqueFd request_;
  base::UniqueFd events_;  // and an epoll of them and of the loss
  BarMemories bars_;
};

}  // namespace vfio
