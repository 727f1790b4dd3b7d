#include "tools/gpusim/server/pci_config.h"

#include <algorithm>

#include "base/bytes.h"

namespace gpusim {

namespace {

// PCI and PCI Express base specifications; names as there.
constexpr std::size_t kCommand = 0x04;
constexpr std::size_t kStatus = 0x06;
constexpr std::uint16_t kCommandWritable = 0x0546;  // memory, master, parity, SERR, INTx disable
constexpr std::size_t kDeviceControl = PciConfig::kPcieCapability + 0x08;
constexpr std::size_t kMsixControl = PciConfig::kMsixCapability + 0x02;
constexpr std::uint32_t kBar64 = 0x4;
constexpr std::uint32_t kBarPrefetchable = 0x8;

}  // namespace

PciConfig::PciConfig(const GpuDevice& device) {
  const PciIdentity identity = device.identity();
  set16(0x00, identity.vendor);
  set16(0x02, identity.device);
  set16(kCommand, 0, kCommandWritable);
  set16(kStatus, 0x0010);  // a capability list
  set32(0x08, identity.class_code << 8 | identity.revision);
  set_bar(0x10, device.bar_size(Bar::kVram), kBar64 | kBarPrefetchable, true);
  set_bar(0x18, device.bar_size(Bar::kDoorbells), kBar64, true);
  set_bar(0x24, device.bar_size(Bar::kRegisters), 0, false);
  set16(0x2C, identity.subsystem_vendor);
  set16(0x2E, identity.subsystem);
  set32(0x34, kPcieCapability);
  // Interrupt line and pin: 0 is no pin, 1 INTA.
  set16(0x3C, device.features().intx ? 0x0100 : 0, 0x00FF);
  const MsixLayout msix = device.msix();
  set_pcie(msix.vectors != 0, device.features().function_reset);
  if (msix.vectors != 0) set_msix(msix);
}

void PciConfig::set16(std::size_t at, std::uint16_t value, std::uint16_t writable) {
  base::store(std::span(bytes_), at, value);
  base::store(std::span(writable_), at, writable);
}

void PciConfig::set32(std::size_t at, std::uint32_t value, std::uint32_t writable) {
  base::store(std::span(bytes_), at, value);
  base::store(std::span(writable_), at, writable);
}

// The address bits above the size are writable, which is all that sizing needs: all ones read back
// as the negated size.
void PciConfig::set_bar(std::size_t at, std::uint64_t size, std::uint32_t type, bool wide) {
  const std::uint64_t writable = ~(size - 1);
  set32(at, type, static_cast<std::uint32_t>(writable) & ~0xFu);
  if (wide) set32(at + 4, 0, static_cast<std::uint32_t>(writable >> 32));
}

void PciConfig::set_pcie(bool has_msix, bool function_reset) {
  constexpr std::size_t at = kPcieCapability;
  set16(at + 0x00, 0x0010 | (has_msix ? kMsixCapability << 8 : 0));
  set16(at + 0x02, 0x0002);  // version 2, endpoint
  // FLR, role-based errors, 256-byte payload
  set32(at + 0x04, (function_reset ? 1u << 28 : 0) | 1u << 15 | 1);
  set16(kDeviceControl, 0x2810, 0x7FFF);  // bit 15 starts an FLR and reads 0
  set32(at + 0x0C, 16u << 4 | 5);         // link: x16 at 32 GT/s
  set16(at + 0x10, 0, 0x00C3);
  set16(at + 0x12, 16u << 4 | 5);
  set32(at + 0x24, 1u << 4);               // completion time-outs can be disabled
  set16(at + 0x28, 0, 1u << 6 | 1u << 4);  // AtomicOp requester, time-out disable
  set32(at + 0x2C, 0x3E);
}

void PciConfig::set_msix(const MsixLayout& layout) {
  constexpr std::uint32_t bar = static_cast<std::uint32_t>(Bar::kRegisters);
  set16(kMsixCapability, 0x0011);
  set16(kMsixControl, static_cast<std::uint16_t>(layout.vectors - 1), 0xC000);
  set32(kMsixCapability + 4, layout.table_offset | bar);
  set32(kMsixCapability + 8, layout.pba_offset | bar);
}

void PciConfig::read(std::size_t offset, std::span<std::byte> to) const {
  std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), to.size(), to.begin());
}

PciConfig::Effect PciConfig::write(std::size_t offset, std::span<const std::byte> from) {
  Effect effect;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const std::size_t at = offset + i;
    if (at == kDeviceControl + 1 && (from[i] & std::byte{0x80}) != std::byte{})
      effect.function_reset = bit(kPcieCapability + 7, 4);
    const std::byte changed = (bytes_[at] ^ from[i]) & writable_[at];
    bytes_[at] ^= changed;
    const bool a_switch = at == kMsixControl + 1 || at == kCommand || at == kCommand + 1;
    if (changed != std::byte{} && a_switch) effect.interrupts_changed = true;
  }
  return effect;
}

bool PciConfig::bit(std::size_t byte, unsigned number) const {
  return (bytes_[byte] >> number & std::byte{1}) != std::byte{};
}

void PciConfig::put_bit(std::size_t byte, unsigned number, bool on) {
  const std::byte mask = std::byte{1} << number;
  bytes_[byte] = on ? bytes_[byte] | mask : bytes_[byte] & ~mask;
}

bool PciConfig::memory_space() const { return bit(kCommand, 1); }
bool PciConfig::bus_master() const { return bit(kCommand, 2); }
bool PciConfig::intx_disabled() const { return bit(kCommand + 1, 2); }
bool PciConfig::msix_enabled() const { return bit(kMsixControl + 1, 7); }
bool PciConfig::msix_function_masked() const { return bit(kMsixControl + 1, 6); }
void PciConfig::set_memory_space(bool on) { put_bit(kCommand, 1, on); }
void PciConfig::set_msix_enabled(bool on) { put_bit(kMsixControl + 1, 7, on); }
void PciConfig::set_interrupt_status(bool on) { put_bit(kStatus, 3, on); }

}  // namespace gpusim
