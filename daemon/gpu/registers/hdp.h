// Making CPU stores through BAR 0 visible to the engines (docs/hardware/pci.md, "Visibility").
#pragma once

#include "base/fence.h"
#include "daemon/gpu/registers/nbio.h"

namespace gpuumd {

// After it returns, engines see every store of this thread through BAR 0 that came before. NBIO
// does the flush: this part offers none in the HDP block that is known. The read back makes sure
// that the write has arrived; it is of a register that is never mapped, since a load from a mapped
// page of registers need not reach the device.
inline void flush_hdp(const RegisterBlock& nbio) {
  base::full_fence();  // drains write-combining buffers
  nbio.write(base::Value<nbio::HDP_MEM_COHERENCY_FLUSH_CNTL>(0));
  (void)nbio.read<nbio::PCIE_INDEX2>();
}

}  // namespace gpuumd
