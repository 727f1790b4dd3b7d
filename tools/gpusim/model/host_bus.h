// What the device sees of its host: memory behind IOVAs, and interrupts. The vfio-user server
// implements it for each client; tests implement it over plain memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/address.h"

namespace gpusim {

class HostBus {
 public:
  virtual ~HostBus() = default;

  // The memory of [at, at + size) when one DMA mapping with a descriptor covers all of it and
  // allows the access; null otherwise (then read() or write() decides). Valid until the next
  // DMA_UNMAP, i.e. for the rest of this step. Bus mastering off: null.
  virtual std::byte* direct(base::Iova at, std::size_t size, bool write) = 0;

  // The same by copying. What no mapping covers (or covers without a descriptor) is put to the
  // client as DMA_READ or DMA_WRITE, which decides; false when it refuses, does not answer in time,
  // or bus mastering is off. Then nothing was delivered.
  virtual bool read(base::Iova at, std::span<std::byte> to) = 0;
  virtual bool write(base::Iova at, std::span<const std::byte> from) = 0;

  // Raises MSI-X vector `vector`, unless masked or disabled (then its pending bit is set). A
  // function without MSI-X asserts its INTx line, if it has one.
  virtual void raise_interrupt(unsigned vector) = 0;
  // The driver has taken all: the INTx line is let go (docs/hardware/pci.md). MSI-X has no line.
  // May be called at any time.
  virtual void lower_line() = 0;
};

}  // namespace gpusim
