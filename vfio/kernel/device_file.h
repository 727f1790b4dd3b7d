// The descriptor of a device of the kernel's VFIO: each call that the kernel has for it, with what
// comes back checked. Both of the kernel's interfaces end in one such descriptor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/fd.h"
#include "base/result.h"
#include "vfio/kernel/kernel_info.h"

namespace vfio {

// Kinds of interrupts; the values are the kernel's indices.
enum class IrqKind : std::uint32_t { kIntx = 0, kMsi = 1, kMsix = 2, kError = 3, kRequest = 4 };

// Reactor thread. After close() every call fails with EBADF.
class DeviceFile {
 public:
  explicit DeviceFile(base::UniqueFd fd) : fd_(std::move(fd)) {}

  int fd() const { return fd_.get(); }
  // The kernel takes the device back: interrupts and bus mastering off, a reset if it has a way.
  // Not before the last mapping of a BAR is gone. Takes as long as that reset.
  void close() { fd_.reset(); }

  struct Facts {
    bool is_pci = false;
    bool can_reset = false;
    std::uint32_t regions = 0;
    std::uint32_t irqs = 0;
  };
  base::Result<Facts> facts() const;
  // Index 0 to 5: the BARs; kConfigRegion.
  base::Result<KernelRegion> region(std::uint32_t index) const;
  static constexpr std::uint32_t kConfigRegion = 7;

  // Interrupts of a kind that can be delivered to eventfds; 0 for a kind that the device has not.
  std::uint32_t irq_count(IrqKind kind) const;
  // All or none: kUnsupported, with the number, when the machine has fewer vectors left.
  // kNoMemory, kDeviceError.
  base::Result<void> set_eventfds(IrqKind kind, std::span<const int> eventfds);
  base::Result<void> disable(IrqKind kind);
  base::Result<void> unmask_intx();

  // kBusy when somebody holds the device's lock.
  base::Result<void> reset();

  // At an offset in the descriptor; one access of its width where it is 1, 2, 4 or (Linux 6.10) 8
  // bytes. kDeviceError with the errno, also for less than was asked for.
  base::Result<void> read(std::uint64_t at, std::span<std::byte> to) const;
  base::Result<void> write(std::uint64_t at, std::span<const std::byte> from);

 private:
  base::UniqueFd fd_;
};

}  // namespace vfio
