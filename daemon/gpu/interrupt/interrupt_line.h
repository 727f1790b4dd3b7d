// How the device gets the driver's attention: MSI-X vector 0, or the INTx line of a function that
// has no MSI-X (docs/hardware/pci.md, "The function").
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "daemon/reactor/reactor.h"
#include "vfio/pci_device.h"

namespace gpuumd {

// Device thread. Both must outlive it.
class InterruptLine {
 public:
  InterruptLine(Reactor& reactor, vfio::PciDevice& device) : reactor_(reactor), device_(device) {}

  // From now on `handler` runs for every interrupt. An INTx line is unmasked after it, and fires
  // again while the ring is not empty. kUnsupported when the function has neither, with both
  // reasons.
  base::Result<void> arm(std::move_only_function<void()> handler);
  base::Result<void> disarm();

  // Why it is not MSI-X; empty when it is.
  const std::string& fallback() const { return fallback_; }

 private:
  base::Result<void> arm_intx(const base::Error& no_msix);

  Reactor& reactor_;
  vfio::PciDevice& device_;
  std::move_only_function<void()> handler_;
  std::string fallback_;
  std::vector<base::UniqueFd> eventfds_;
  std::vector<Registration> watches_;
};

}  // namespace gpuumd
