// A BAR of a device of the kernel's VFIO: mapped where the kernel lets it be, elsewhere read and
// written through the device's descriptor.
//
// The kernel maps BARs uncached: loads and stores reach the device one by one and in order. Nothing
// in its interface asks for write combining.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "vfio/bar_memory.h"
#include "vfio/kernel/bus_error_guard.h"
#include "vfio/kernel/config_space.h"
#include "vfio/kernel/device_file.h"
#include "vfio/pci_device.h"

namespace vfio {

// Reactor thread. A read of all ones asks the device whether it is there (one access of
// configuration space): a register may hold that value, a device that is gone gives nothing else.
class KernelBar final : public Bar {
 public:
  // Maps what may be mapped, and covers it against SIGBUS before anybody can touch it. An area that
  // the kernel then does not map (the page of the MSI-X table, before Linux 4.16) is trapped. All
  // three must outlive the BAR. kSystem, kLimit.
  static base::Result<std::unique_ptr<KernelBar>> create(DeviceFile& file, ConfigSpace& config,
                                                         Loss& loss, unsigned index,
                                                         const KernelRegion& region);

  const std::shared_ptr<BarMemory>& memory() const { return memory_; }  // null: all is trapped

  std::uint64_t size() const override { return region_.size; }
  std::span<const MappedArea> mapped() const override;
  std::uint32_t read32(std::uint64_t offset) override;
  std::uint64_t read64(std::uint64_t offset) override;
  void write32(std::uint64_t offset, std::uint32_t value) override;
  void write64(std::uint64_t offset, std::uint64_t value) override;
  void ring_doorbell32(std::uint64_t offset, std::uint32_t value) override;
  void ring_doorbell64(std::uint64_t offset, std::uint64_t value) override;
  base::Result<void> read(std::uint64_t offset, std::span<std::byte> to) override;
  base::Result<void> write(std::uint64_t offset, std::span<const std::byte> from) override;

 private:
  KernelBar(DeviceFile& file, ConfigSpace& config, Loss& loss, unsigned index, KernelRegion region)
      : file_(file), config_(config), loss_(loss), index_(index), region_(std::move(region)) {}

  base::Result<void> map();
  std::byte* mapped_at(std::uint64_t offset) const {
    return memory_ == nullptr ? nullptr : memory_->at(offset);
  }
  template <class Word>
  Word read_word(std::uint64_t offset);
  template <class Word>
  void write_word(std::uint64_t offset, Word value);

  DeviceFile& file_;
  ConfigSpace& config_;
  Loss& loss_;
  const unsigned index_;
  const KernelRegion region_;
  std::shared_ptr<BarMemory> memory_;
  std::vector<BusErrorGuard> guards_;  // go before the memory does
};

}  // namespace vfio
