#include "vfio/kernel/config_space.h"

#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "base/address.h"
#include "base/bytes.h"

namespace vfio {
namespace {

constexpr std::uint64_t kMinSize = 256;

// PCI 3.0 section 6.2, and PCI power management 1.2 section 3.2.
constexpr std::uint32_t kCommand = 0x04, kStatus = 0x06, kClassAndRevision = 0x08,
                        kCapabilities = 0x34;
constexpr std::uint32_t kMemorySpace = 1u << 1, kBusMaster = 1u << 2;
constexpr std::uint32_t kHasCapabilities = 1u << 4;
constexpr std::uint32_t kPowerManagement = 0x01;  // capability
constexpr std::uint32_t kPowerControl = 4;        // in it
constexpr std::uint32_t kPowerState = 0x3;
constexpr std::uint32_t kPmeStatus = 1u << 15;  // cleared by writing 1
constexpr unsigned kMaxCapabilities = 48;       // as many as fit behind the header

constexpr auto kWakeUp = std::chrono::milliseconds(10);  // from D3hot
constexpr int kWakeUpTries = 10;

constexpr std::uint32_t all_ones(unsigned width) {
  return width == 4 ? 0xffffffff : (1u << 8 * width) - 1;
}

}  // namespace

base::Result<ConfigSpace> ConfigSpace::open(DeviceFile& file, Loss& loss) {
  auto region = file.region(DeviceFile::kConfigRegion);
  if (!region) return std::unexpected(region.error());
  if (region->size < kMinSize)
    return base::fail(base::Errc::kProtocol, "PCI device without configuration space");
  return ConfigSpace(file, loss, std::move(*region));
}

base::Result<std::uint32_t> ConfigSpace::fetch(std::uint32_t offset, unsigned width) const {
  std::uint32_t value = 0;
  auto done = file_->read(region_.offset + offset, base::as_writable_bytes(value).first(width));
  if (done) return value;
  loss_->note(LossReason::kConfigGone, static_cast<std::uint32_t>(done.error().sys));
  return base::fail(base::Errc::kDeviceLost, "read of configuration space", done.error().sys);
}

bool ConfigSpace::answers() {
  if (loss_->lost()) return false;
  const auto value = fetch(kClassAndRevision, 4);
  if (value && *value == all_ones(4)) loss_->note(LossReason::kAllOnes);
  return !loss_->lost();
}

base::Result<std::uint32_t> ConfigSpace::read(std::uint32_t offset, unsigned width) {
  if ((width != 1 && width != 2 && width != 4) || offset % width != 0)
    return base::fail(base::Errc::kInvalidArgument, "width or alignment of a config access");
  if (!base::fits(offset, width, region_.size))
    return base::fail(base::Errc::kOutOfRange, "config access");
  if (loss_->lost()) return base::fail(base::Errc::kDeviceLost, "read of configuration space");
  auto value = fetch(offset, width);
  if (value && *value == all_ones(width) && !answers())
    return base::fail(base::Errc::kDeviceLost, "read of configuration space");
  return value;
}

base::Result<void> ConfigSpace::write(std::uint32_t offset, unsigned width, std::uint32_t value) {
  if ((width != 1 && width != 2 && width != 4) || offset % width != 0)
    return base::fail(base::Errc::kInvalidArgument, "width or alignment of a config access");
  if (!base::fits(offset, width, region_.size))
    return base::fail(base::Errc::kOutOfRange, "config access");
  if (loss_->lost()) return base::fail(base::Errc::kDeviceLost, "write of configuration space");
  auto done = file_->write(region_.offset + offset, base::as_bytes(value).first(width));
  if (!done) loss_->note(LossReason::kConfigGone, static_cast<std::uint32_t>(done.error().sys));
  if (!done)
    return base::fail(base::Errc::kDeviceLost, "write of configuration space", done.error().sys);
  return {};
}

base::Result<std::uint32_t> ConfigSpace::power_capability() {
  auto status = read(kStatus, 2);
  if (!status) return status;
  if ((*status & kHasCapabilities) == 0) return 0;
  auto at = read(kCapabilities, 1);
  for (unsigned i = 0; i < kMaxCapabilities && at && (*at & ~3u) != 0; ++i) {
    const std::uint32_t capability = *at & ~3u;
    auto id = read(capability, 1);
    if (!id) return id;
    if (*id == kPowerManagement) return capability;
    at = read(capability + 1, 1);
  }
  if (!at) return at;
  return 0;
}

base::Result<void> ConfigSpace::wake_up() {
  const auto capability = power_capability();
  if (!capability) return std::unexpected(capability.error());
  if (*capability == 0) return {};
  const std::uint32_t at = *capability + kPowerControl;
  for (int i = 0;; ++i) {
    const auto control = read(at, 2);
    if (!control) return std::unexpected(control.error());
    if ((*control & kPowerState) == 0) return {};
    if (i == kWakeUpTries)
      return base::fail(base::Errc::kDeviceError, "the device stays in power state D" +
                                                      std::to_string(*control & kPowerState) +
                                                      ": it does not wake up");
    if (auto done = write(at, 2, *control & ~(kPowerState | kPmeStatus)); !done) return done;
    std::this_thread::sleep_for(kWakeUp);
  }
}

base::Result<void> ConfigSpace::set_memory_space() {
  const auto command = read(kCommand, 2);
  if (!command) return std::unexpected(command.error());
  if ((*command & kMemorySpace) != 0) return {};
  return write(kCommand, 2, *command | kMemorySpace);
}

void ConfigSpace::silence() {
  std::uint16_t command = 0;
  if (!file_->read(region_.offset + kCommand, base::as_writable_bytes(command))) return;
  if (command == all_ones(2)) return;  // nobody there
  command = static_cast<std::uint16_t>(command & ~kBusMaster);
  (void)file_->write(region_.offset + kCommand, base::as_bytes(command));
}

}  // namespace vfio
