#include "vfio/kernel/kernel_device.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "vfio/eventfds.h"
#include "vfio/kernel/kernel_bar.h"

namespace vfio {
namespace {

constexpr std::uint32_t kVendorAndDevice = 0x00, kClassAndRevision = 0x08;

bool signalled(const base::UniqueFd& eventfd) {
  std::uint64_t count = 0;
  return eventfd && ::read(eventfd.get(), &count, sizeof(count)) == sizeof(count);
}

}  // namespace

base::Result<std::unique_ptr<KernelDevice>> KernelDevice::create(DeviceIdentity identity,
                                                                 base::UniqueFd device,
                                                                 std::unique_ptr<DmaSpace> space,
                                                                 base::Result<void> may_reset) {
  auto loss = Loss::create();
  if (!loss) return std::unexpected(loss.error());
  std::unique_ptr<KernelDevice> made(new KernelDevice(std::move(identity), std::move(device),
                                                      std::move(space), std::move(may_reset),
                                                      std::move(*loss)));
  if (auto done = made->look_at_it(); !done) return std::unexpected(done.error());
  if (auto done = made->watch(); !done) return std::unexpected(done.error());
  return made;
}

KernelDevice::KernelDevice(DeviceIdentity identity, base::UniqueFd device,
                           std::unique_ptr<DmaSpace> space, base::Result<void> may_reset,
                           std::unique_ptr<Loss> loss)
    : identity_(std::move(identity)),
      may_reset_(std::move(may_reset)),
      loss_(std::move(loss)),
      file_(std::move(device)),
      space_(std::move(space)) {}

base::Result<void> KernelDevice::look_at_it() {
  const auto facts = file_.facts();
  if (!facts) return std::unexpected(facts.error());
  if (!facts->is_pci) return base::fail(base::Errc::kUnsupported, "a device that is not PCI");
  if (facts->regions <= DeviceFile::kConfigRegion)
    return base::fail(base::Errc::kProtocol, "PCI device without configuration space");
  can_reset_ = facts->can_reset;
  auto config = ConfigSpace::open(file_, *loss_);
  if (!config) return std::unexpected(config.error());
  config_.emplace(std::move(*config));

  const auto ids = config_->read(kVendorAndDevice, 4);
  const auto kind = config_->read(kClassAndRevision, 4);
  if (!ids || !kind || *ids == 0xffffffff)
    return base::fail(
        base::Errc::kDeviceLost,
        "configuration space reads all ones: the device has fallen off the bus or has "
        "no power (start the machine anew, cold; see the kernel's log)");
  identity_.vendor = static_cast<std::uint16_t>(*ids);
  identity_.device = static_cast<std::uint16_t>(*ids >> 16);
  identity_.class_code = *kind >> 8;
  identity_.revision = static_cast<std::uint8_t>(*kind);
  return config_->wake_up();
}

base::Result<void> KernelDevice::watch() {
  events_ = base::UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  if (!events_) return base::fail(base::Errc::kSystem, "epoll_create1", errno);
  if (auto done = poll_too(loss_->event_fd()); !done) return done;
  if (auto done = watch_interrupt(IrqKind::kError, error_); !done) return done;
  return watch_interrupt(IrqKind::kRequest, request_);
}

base::Result<void> KernelDevice::watch_interrupt(IrqKind kind, base::UniqueFd& eventfd) {
  if (file_.irq_count(kind) == 0) return {};  // no PCIe, no AER
  auto made = make_eventfd();
  if (!made) return std::unexpected(made.error());
  eventfd = std::move(*made);
  const int fd = eventfd.get();
  if (auto done = file_.set_eventfds(kind, std::span(&fd, 1)); !done)
    return base::fail_within(kind == IrqKind::kError ? "error interrupt" : "request interrupt",
                             done.error());
  return poll_too(fd);
}

base::Result<void> KernelDevice::poll_too(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  if (::epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    return base::fail(base::Errc::kSystem, "epoll_ctl", errno);
  return {};
}

void KernelDevice::hear() {
  if (signalled(error_)) loss_->note(LossReason::kError);
  if (signalled(request_)) loss_->note(LossReason::kRequested);
}

void KernelDevice::handle_events() {
  if (!events_) return;
  hear();
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(loss_->event_fd(), &count, sizeof(count));
}

base::Result<std::unique_ptr<Bar>> KernelDevice::open_bar(BarIndex index) {
  const auto number = static_cast<unsigned>(index);
  const std::string what = "BAR " + std::to_string(number);
  if (lost()) return base::fail(base::Errc::kDeviceLost, what);
  const auto region = file_.region(number);
  if (!region) return base::fail_within(what, region.error());
  if (region->size == 0)
    return base::fail(base::Errc::kNotFound,
                      what + ": the device has none, or firmware found no room for it");
  if (!region->readable || !region->writable)
    return base::fail(base::Errc::kUnsupported, what + " that cannot be read and written");
  if (auto on = config_->set_memory_space(); !on) return base::fail_within(what, on.error());
  auto bar = KernelBar::create(file_, *config_, *loss_, number, *region);
  if (!bar) return std::unexpected(bar.error());
  if ((*bar)->memory() != nullptr) bars_.add((*bar)->memory());
  return std::unique_ptr<Bar>(std::move(*bar));
}

base::Result<void> KernelDevice::map_dma(int fd, std::uint64_t offset, std::uint64_t size,
                                         base::Iova at, Rights rights) {
  if (lost()) return base::fail(base::Errc::kDeviceLost, "DMA mapping");
  return space_->map(fd, offset, size, at, rights);
}

base::Result<void> KernelDevice::unmap_dma(base::Iova at, std::uint64_t size) {
  if (lost()) return base::fail(base::Errc::kDeviceLost, "DMA unmapping");
  return space_->unmap(at, size);
}

base::Result<std::vector<base::UniqueFd>> KernelDevice::arm_msix(unsigned count) {
  if (lost()) return base::fail(base::Errc::kDeviceLost, "MSI-X");
  if (count == 0) return base::fail(base::Errc::kInvalidArgument, "no MSI-X vectors");
  const std::uint32_t msix = file_.irq_count(IrqKind::kMsix);
  const IrqKind kind = msix != 0 ? IrqKind::kMsix : IrqKind::kMsi;
  const std::uint32_t there = msix != 0 ? msix : file_.irq_count(IrqKind::kMsi);
  if (there < count)
    return base::fail(base::Errc::kUnsupported,
                      std::to_string(count) + (msix != 0 ? " MSI-X" : " MSI") +
                          " vectors: the "
                          "device has " +
                          std::to_string(there) + (msix != 0 ? "" : ", and no MSI-X"));
  return arm(kind, count);
}

base::Result<base::UniqueFd> KernelDevice::arm_intx() {
  if (lost()) return base::fail(base::Errc::kDeviceLost, "INTx");
  if (file_.irq_count(IrqKind::kIntx) == 0)
    return base::fail(base::Errc::kUnsupported, "INTx: the device has no interrupt pin");
  auto eventfds = arm(IrqKind::kIntx, 1);
  if (!eventfds) return std::unexpected(eventfds.error());
  return std::move(eventfds->front());
}

base::Result<std::vector<base::UniqueFd>> KernelDevice::arm(IrqKind kind, unsigned count) {
  if (armed_ && *armed_ != kind)
    return base::fail(base::Errc::kBusy, "interrupts of another kind are armed");
  // Many kernels cannot change the number of vectors of a kind that is armed.
  if (auto done = disarm_msix(); !done) return std::unexpected(done.error());
  auto eventfds = make_eventfds(count);
  if (!eventfds) return eventfds;
  if (auto done = file_.set_eventfds(kind, numbers_of(*eventfds)); !done)
    return std::unexpected(done.error());
  armed_ = kind;
  return eventfds;
}

base::Result<void> KernelDevice::disarm_msix() {
  if (!armed_) return {};
  if (lost()) return base::fail(base::Errc::kDeviceLost, "interrupts");
  auto done = file_.disable(*armed_);
  if (done) armed_.reset();
  return done;
}

base::Result<void> KernelDevice::unmask_intx() {
  if (lost()) return base::fail(base::Errc::kDeviceLost, "INTx");
  if (armed_ != IrqKind::kIntx) return base::fail(base::Errc::kInvalidArgument, "INTx not armed");
  return file_.unmask_intx();
}

base::Result<void> KernelDevice::reset() {
  if (lost()) return base::fail(base::Errc::kDeviceLost, "reset");
  if (!may_reset_) return may_reset_;
  if (!can_reset_)
    return base::fail(base::Errc::kUnsupported, "the kernel has no way to reset this device");
  // The kernel would restore them.
  if (auto done = disarm_msix(); !done) return base::fail_within("reset", done.error());
  auto done = file_.reset();
  // Who takes the device away has its lock: the kernel then resets nothing.
  if (!done) hear();
  if (!config_->answers()) return base::fail(base::Errc::kDeviceLost, "reset: " + lost_why());
  if (!done) return done;
  return config_->wake_up();
}

void KernelDevice::release() {
  loss_->note(LossReason::kLetGo);
  if (file_.fd() < 0) return;
  // The device first stops writing and interrupting, then what it could have reached goes.
  if (config_) config_->silence();
  if (armed_) (void)file_.disable(*armed_);
  armed_.reset();
  if (request_) (void)file_.disable(IrqKind::kRequest);
  if (error_) (void)file_.disable(IrqKind::kError);
  // What is then still mapped keeps the device, and nothing more can be done about it.
  (void)bars_.let_go();
  events_.reset();
  request_.reset();
  error_.reset();
  // Here the kernel gets the device. Its memory after it: until then the device has its mappings.
  file_.close();
  space_->close();
  loss_->close();
}

}  // namespace vfio
