// The IOVA space of a device: what its DMA reaches. Two kinds of the kernel's, iommufd and the
// container of type 1, behind one interface.
#pragma once

#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "base/result.h"
#include "base/shared_memory.h"
#include "vfio/kernel/dma_record.h"
#include "vfio/pci_device.h"

namespace vfio {

// map() and unmap() from any thread; both are as PciDevice::map_dma() and unmap_dma(). The kernel
// pins the memory while it is mapped, and counts it against RLIMIT_MEMLOCK of a process without
// CAP_IPC_LOCK: kNoMemory with the limit in the text.
class DmaSpace {
 public:
  virtual ~DmaSpace() = default;

  const IovaLimits& limits() const { return record_.limits(); }
  base::Result<void> map(int fd, std::uint64_t offset, std::uint64_t size, base::Iova at,
                         Rights rights);
  base::Result<void> unmap(base::Iova at, std::uint64_t size);

  // Waits for a call under way, then closes the kernel's space with all that is mapped in it. The
  // device's descriptor is closed before: it holds the space attached.
  void close();

 protected:
  explicit DmaSpace(IovaLimits limits) : record_(std::move(limits)) {}

 private:
  // Whether the space can map at all; kUnsupported with the reason.
  virtual base::Result<void> usable() const { return {}; }
  // What the kernel does; the record is right already.
  virtual base::Result<void> kernel_map(int fd, std::uint64_t offset, std::uint64_t size,
                                        base::Iova at, Rights rights) = 0;
  virtual base::Result<void> kernel_unmap(base::Iova at, std::uint64_t size) = 0;
  virtual void kernel_close() = 0;

  DmaRecord record_;
};

// A range of a memfd as memory of this process, for interfaces that take an address. They pin its
// pages when they map: afterwards the address is not needed any more.
class AddressOf {
 public:
  // Whole pages of the file's own size around the range; writable if the device's rights say so.
  static base::Result<AddressOf> range(int fd, std::uint64_t offset, std::uint64_t size,
                                       Rights rights);
  std::uint64_t value() const { return reinterpret_cast<std::uintptr_t>(mapping_.data()) + skip_; }

 private:
  AddressOf(base::Mapping mapping, std::uint64_t skip)
      : mapping_(std::move(mapping)), skip_(skip) {}

  base::Mapping mapping_;
  std::uint64_t skip_;
};

constexpr bool may(Rights has, Rights wants) {
  return (static_cast<unsigned>(has) & static_cast<unsigned>(wants)) != 0;
}

// An ioctl, done again when a signal interrupts it. 0 or more, or -errno.
int call_kernel(int fd, unsigned long request, void* argument);
int call_kernel(int fd, unsigned long request, int argument);  // one that is no structure

// What a failed mapping means to a user.
base::Error map_error(int error, std::uint64_t size);

}  // namespace vfio
