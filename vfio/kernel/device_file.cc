#include "vfio/kernel/device_file.h"

#include <linux/vfio.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "vfio/kernel/dma_space.h"

namespace vfio {
namespace {

static_assert(static_cast<int>(IrqKind::kIntx) == VFIO_PCI_INTX_IRQ_INDEX);
static_assert(static_cast<int>(IrqKind::kMsi) == VFIO_PCI_MSI_IRQ_INDEX);
static_assert(static_cast<int>(IrqKind::kMsix) == VFIO_PCI_MSIX_IRQ_INDEX);
static_assert(static_cast<int>(IrqKind::kError) == VFIO_PCI_ERR_IRQ_INDEX);
static_assert(static_cast<int>(IrqKind::kRequest) == VFIO_PCI_REQ_IRQ_INDEX);
static_assert(DeviceFile::kConfigRegion == VFIO_PCI_CONFIG_REGION_INDEX);
static_assert(sizeof(int) == sizeof(std::int32_t));

constexpr std::size_t kUsualRegionInfo = 1024;
constexpr std::size_t kMaxRegionInfo = 1024 * 1024;

vfio_irq_set irq_set(IrqKind kind, std::uint32_t flags, std::uint32_t count) {
  vfio_irq_set set{};
  set.argsz = static_cast<std::uint32_t>(sizeof(set));
  set.flags = flags;
  set.index = static_cast<std::uint32_t>(kind);
  set.count = count;
  return set;
}

base::Result<void> set_irqs(int fd, void* set) {
  const int done = call_kernel(fd, VFIO_DEVICE_SET_IRQS, set);
  if (done == 0) return {};
  // So many the machine has for it; none of them is armed.
  if (done > 0)
    return base::fail(base::Errc::kUnsupported, "the kernel could give the device " +
                                                    std::to_string(done) +
                                                    " interrupt vectors and no more");
  return base::fail(
      done == -ENOMEM || done == -ENOSPC ? base::Errc::kNoMemory : base::Errc::kDeviceError,
      "VFIO_DEVICE_SET_IRQS", -done);
}

}  // namespace

base::Result<DeviceFile::Facts> DeviceFile::facts() const {
  vfio_device_info info{};
  info.argsz = sizeof(info);
  if (const int done = call_kernel(fd(), VFIO_DEVICE_GET_INFO, &info); done < 0)
    return base::fail(base::Errc::kSystem, "VFIO_DEVICE_GET_INFO", -done);
  return Facts{(info.flags & VFIO_DEVICE_FLAGS_PCI) != 0,
               (info.flags & VFIO_DEVICE_FLAGS_RESET) != 0, info.num_regions, info.num_irqs};
}

base::Result<KernelRegion> DeviceFile::region(std::uint32_t index) const {
  for (std::size_t room = kUsualRegionInfo;;) {
    std::vector<std::byte> reply(room);
    vfio_region_info request{};
    request.argsz = static_cast<std::uint32_t>(room);
    request.index = index;
    base::store(reply, 0, request);
    if (const int done = call_kernel(fd(), VFIO_DEVICE_GET_REGION_INFO, reply.data()); done < 0)
      return base::fail(base::Errc::kSystem, "VFIO_DEVICE_GET_REGION_INFO", -done);
    const std::size_t needs = needs_more(reply);
    if (needs == 0) {
      auto region = parse_kernel_region(reply, index);
      if (!region) return base::fail_within("VFIO_DEVICE_GET_REGION_INFO", region.error());
      return region;
    }
    if (room != kUsualRegionInfo || needs > kMaxRegionInfo)
      return base::fail(base::Errc::kProtocol, "VFIO_DEVICE_GET_REGION_INFO does not end");
    room = needs;
  }
}

std::uint32_t DeviceFile::irq_count(IrqKind kind) const {
  vfio_irq_info info{};
  info.argsz = sizeof(info);
  info.index = static_cast<std::uint32_t>(kind);
  // Error interrupts of a device that is not PCIe give EINVAL: it has none.
  if (call_kernel(fd(), VFIO_DEVICE_GET_IRQ_INFO, &info) < 0) return 0;
  return (info.flags & VFIO_IRQ_INFO_EVENTFD) != 0 ? info.count : 0;
}

base::Result<void> DeviceFile::set_eventfds(IrqKind kind, std::span<const int> eventfds) {
  auto set = irq_set(kind, VFIO_IRQ_SET_DATA_EVENTFD | VFIO_IRQ_SET_ACTION_TRIGGER,
                     static_cast<std::uint32_t>(eventfds.size()));
  std::vector<std::byte> request(sizeof(set) + eventfds.size_bytes());
  set.argsz = static_cast<std::uint32_t>(request.size());
  base::store(request, 0, set);
  std::ranges::copy(std::as_bytes(eventfds), request.begin() + sizeof(set));
  return set_irqs(fd(), request.data());
}

base::Result<void> DeviceFile::disable(IrqKind kind) {
  auto set = irq_set(kind, VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_TRIGGER, 0);
  return set_irqs(fd(), &set);
}

base::Result<void> DeviceFile::unmask_intx() {
  auto set = irq_set(IrqKind::kIntx, VFIO_IRQ_SET_DATA_NONE | VFIO_IRQ_SET_ACTION_UNMASK, 1);
  return set_irqs(fd(), &set);
}

base::Result<void> DeviceFile::reset() {
  const int done = call_kernel(fd(), VFIO_DEVICE_RESET, nullptr);
  if (done >= 0) return {};
  if (done == -EAGAIN || done == -EBUSY)
    return base::fail(base::Errc::kBusy,
                      "VFIO_DEVICE_RESET: somebody has the device's lock: it is being unbound, "
                      "unplugged or reset (see the kernel's log)",
                      -done);
  return base::fail(base::Errc::kDeviceError, "VFIO_DEVICE_RESET", -done);
}

base::Result<void> DeviceFile::read(std::uint64_t at, std::span<std::byte> to) const {
  const ssize_t done = ::pread(fd(), to.data(), to.size(), static_cast<off_t>(at));
  if (done == static_cast<ssize_t>(to.size())) return {};
  return base::fail(base::Errc::kDeviceError, "read through VFIO", done < 0 ? errno : 0);
}

base::Result<void> DeviceFile::write(std::uint64_t at, std::span<const std::byte> from) {
  const ssize_t done = ::pwrite(fd(), from.data(), from.size(), static_cast<off_t>(at));
  if (done == static_cast<ssize_t>(from.size())) return {};
  return base::fail(base::Errc::kDeviceError, "write through VFIO", done < 0 ? errno : 0);
}

}  // namespace vfio
