// The configuration space of the function (docs/hardware/pci.md, D30, D55): identity, BARs, the
// PCIe endpoint capability with function-level reset, MSI-X. A bit that no line here makes writable
// is read-only. Model thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "tools/gpusim/model/gpu_device.h"

namespace gpusim {

class PciConfig {
 public:
  static constexpr std::size_t kSize = 4096;
  static constexpr std::size_t kPcieCapability = 0x40;
  static constexpr std::size_t kMsixCapability = 0xA0;

  explicit PciConfig(const GpuDevice& device);

  // [offset, offset + size) lies inside kSize: the caller's duty.
  void read(std::size_t offset, std::span<std::byte> to) const;

  struct Effect {
    bool function_reset = false;
    bool interrupts_changed = false;  // a switch of MSI-X, INTx or bus mastering
  };
  Effect write(std::size_t offset, std::span<const std::byte> from);

  bool memory_space() const;
  bool bus_master() const;
  bool msix_enabled() const;
  bool msix_function_masked() const;
  bool intx_disabled() const;

  // What vfio-pci of the kernel does on behalf of whoever opens a device: memory decoding is on
  // from the start, and setting interrupt descriptors turns MSI-X on.
  void set_memory_space(bool on);
  void set_msix_enabled(bool on);
  // Of the status register.
  void set_interrupt_status(bool on);

 private:
  void set16(std::size_t at, std::uint16_t value, std::uint16_t writable = 0);
  void set32(std::size_t at, std::uint32_t value, std::uint32_t writable = 0);
  void set_bar(std::size_t at, std::uint64_t size, std::uint32_t type, bool wide);
  void set_pcie(bool has_msix, bool function_reset);
  void set_msix(const MsixLayout& layout);
  bool bit(std::size_t byte, unsigned number) const;
  void put_bit(std::size_t byte, unsigned number, bool on);

  std::array<std::byte, kSize> bytes_{};
  std::array<std::byte, kSize> writable_{};
};

}  // namespace gpusim
