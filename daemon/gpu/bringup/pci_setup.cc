#include "daemon/gpu/bringup/pci_setup.h"

#include <string>
#include <utility>

#include "daemon/gpu/registers/describe.h"
#include "daemon/gpu/registers/nbio.h"

namespace gpuumd {
namespace {

// Configuration space, PCI 3.0 section 6.2.
constexpr std::uint32_t kCommand = 0x04;
constexpr std::uint32_t kMemorySpace = 1u << 1, kBusMaster = 1u << 2, kIntxDisable = 1u << 10;
constexpr std::uint32_t kBar2 = 0x18;

constexpr std::uint16_t kVendor = 0x1002;
// Base class and sub-class; the programming interface does not matter.
constexpr std::uint32_t kVga = 0x0300, kDisplay = 0x0380, kAccelerator = 0x1200;

// Memory a doorbell BAR must have: all that the interrupt handler and SDMA are given.
constexpr std::uint64_t kDoorbellBytes = 4 * (nbio::kIhRing0Doorbell + nbio::kIhDoorbells);

base::Result<std::uint32_t> read_command(vfio::PciDevice& device) {
  auto command = device.read_config(kCommand, 2);
  if (!command) return base::fail_within("PCI command register", std::move(command.error()));
  if (*command == 0xFFFF) return base::fail(base::Errc::kDeviceLost, "PCI command reads 0xffff");
  return command;
}

base::Result<void> change_command(vfio::PciDevice& device, std::uint32_t set, std::uint32_t clear) {
  const auto before = read_command(device);
  if (!before) return std::unexpected(before.error());
  const auto wanted = (*before | set) & ~clear;
  if (auto written = device.write_config(kCommand, 2, wanted); !written)
    return base::fail_within("PCI command register", std::move(written.error()));
  const auto after = read_command(device);
  if (!after) return std::unexpected(after.error());
  if ((*after & (set | clear)) != set)
    return base::fail(base::Errc::kDeviceError,
                      "PCI command reads " + hex(*after, 4) + " after writing " + hex(wanted, 4));
  return {};
}

base::Result<void> check_identity(const vfio::DeviceIdentity& identity) {
  if (identity.vendor != kVendor)
    return base::fail(base::Errc::kUnsupported,
                      "PCI vendor " + hex(identity.vendor, 4) + ", not " + hex(kVendor, 4));
  const auto kind = identity.class_code >> 8;
  if (kind != kVga && kind != kDisplay && kind != kAccelerator)
    return base::fail(base::Errc::kUnsupported,
                      "PCI class " + hex(identity.class_code, 6) + " is no GPU");
  return {};
}

base::Result<std::uint64_t> bar2_address(vfio::PciDevice& device) {
  const auto low = device.read_config(kBar2, 4);
  if (!low) return base::fail_within("BAR 2 address", low.error());
  const auto high = device.read_config(kBar2 + 4, 4);
  if (!high) return base::fail_within("BAR 2 address", high.error());
  return std::uint64_t{*high} << 32 | (*low & ~0xFu);
}

}  // namespace

base::Result<GpuBars> set_up_pci(vfio::PciDevice& device) {
  if (auto good = check_identity(device.identity()); !good) return std::unexpected(good.error());
  if (auto on = enable_memory(device); !on) return std::unexpected(on.error());

  GpuBars bars;
  auto vram = device.open_bar(vfio::BarIndex::k0);
  if (!vram) return base::fail_within("VRAM BAR (0)", std::move(vram.error()));
  auto doorbells = device.open_bar(vfio::BarIndex::k2);
  if (!doorbells) return base::fail_within("doorbell BAR (2)", std::move(doorbells.error()));
  if ((*doorbells)->size() < kDoorbellBytes)
    return base::fail(base::Errc::kUnsupported,
                      "doorbell BAR (2) of " + std::to_string((*doorbells)->size()) + " bytes");
  const auto address = bar2_address(device);
  if (!address) return std::unexpected(address.error());
  bars.vram = std::move(*vram);
  bars.doorbells = std::move(*doorbells);
  bars.doorbell_address = *address;
  return bars;
}

base::Result<void> enable_memory(vfio::PciDevice& device) {
  return change_command(device, kMemorySpace | kIntxDisable, kBusMaster);
}

base::Result<void> set_intx(vfio::PciDevice& device, bool on) {
  return on ? change_command(device, 0, kIntxDisable) : change_command(device, kIntxDisable, 0);
}

base::Result<void> set_bus_master(vfio::PciDevice& device, bool on) {
  return on ? change_command(device, kBusMaster, 0) : change_command(device, 0, kBusMaster);
}

}  // namespace gpuumd
