#include "daemon/gpu/interrupt/interrupt_line.h"

#include <utility>

#include "daemon/gpu/bringup/pci_setup.h"

namespace gpuumd {

base::Result<void> InterruptLine::arm(std::move_only_function<void()> handler) {
  auto vectors = device_.arm_msix(1);
  if (vectors)
    eventfds_ = std::move(*vectors);
  else if (vectors.error().code != base::Errc::kUnsupported)
    return std::unexpected(std::move(vectors.error()));
  else if (auto line = arm_intx(vectors.error()); !line)
    return line;
  handler_ = std::move(handler);
  for (const auto& eventfd : eventfds_)
    watches_.push_back(reactor_.watch(eventfd.get(), "interrupt", true, [this] {
      handler_();
      // A line that stays masked is found by the pollers' own looks; a device that cannot be told
      // anything is lost, which those see as well.
      if (!fallback_.empty()) (void)device_.unmask_intx();
    }));
  return {};
}

base::Result<void> InterruptLine::arm_intx(const base::Error& no_msix) {
  auto line = device_.arm_intx();
  if (!line)
    return base::fail(line.error().code,
                      "no interrupt: MSI-X: " + no_msix.step + "; INTx: " + line.error().step);
  eventfds_.push_back(std::move(*line));
  fallback_ = "interrupts by INTx: MSI-X: " + no_msix.step;
  return set_intx(device_, true);
}

base::Result<void> InterruptLine::disarm() {
  watches_.clear();
  eventfds_.clear();
  return device_.disarm_msix();
}

}  // namespace gpuumd
