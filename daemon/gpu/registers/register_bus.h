// RegisterIo over the register BAR: dwords inside it directly, all others through NBIO's SMN window
// (docs/hardware/pci.md, "SMN window").
#pragma once

#include <cstdint>
#include <memory>

#include "base/result.h"
#include "daemon/gpu/registers/register_io.h"
#include "vfio/pci_device.h"

namespace gpuumd {

// Device thread. The window holds one address at a time, and nobody else uses it: the thread is its
// lock. Must not outlive the PciDevice.
class RegisterBus final : public RegisterIo {
 public:
  struct Counters {
    std::uint64_t direct_reads = 0;
    std::uint64_t direct_writes = 0;
    std::uint64_t smn_reads = 0;
    std::uint64_t smn_writes = 0;
  };

  // Opens BAR 5. kUnsupported when it is absent or too small to hold the SMN window.
  static base::Result<std::unique_ptr<RegisterBus>> open(vfio::PciDevice& device);

  std::uint32_t read(std::uint32_t dword) override;
  void write(std::uint32_t dword, std::uint32_t value) override;
  // Also when registers and configuration space have read as all ones: the device has left the bus,
  // and nobody has said so yet.
  bool lost() const override { return gone_ || device_.lost(); }

  bool direct(std::uint32_t dword) const { return dword < direct_dwords_; }
  const Counters& counters() const { return counters_; }

 private:
  RegisterBus(vfio::PciDevice& device, std::unique_ptr<vfio::Bar> bar);

  std::uint32_t load(std::uint64_t offset);
  // Points the window at a register and hands back whether the high half has to be cleared.
  bool select(std::uint32_t dword);
  void deselect(bool high);

  vfio::PciDevice& device_;
  std::unique_ptr<vfio::Bar> bar_;
  std::uint64_t direct_dwords_;
  bool gone_ = false;
  Counters counters_;
};

}  // namespace gpuumd
