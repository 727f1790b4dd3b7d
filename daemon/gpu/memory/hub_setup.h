// Sets up VM hubs and gives contexts their page-table roots (docs/hardware/vmhub.md "Sequences").
// Device thread; registers may be trapped. Look at RegisterIo::lost() at the end.
#pragma once

#include <array>
#include <cstdint>

#include "base/address.h"
#include "base/result.h"
#include "daemon/gpu/memory/pte.h"
#include "daemon/gpu/memory/vram_map.h"
#include "daemon/gpu/registers/vm_hub.h"

namespace gpuumd {

// One hub's VMID 0, alike on every hub, and what all of them need.
struct HubSetup {
  VramMap vram;
  Pde gart_root;               // flat table
  base::McAddress gart_first;  // aperture of VMID 0's table
  std::uint64_t gart_bytes = 0;
  base::VramOffset default_page;  // a page of zeros for faults that go to a default page
  // Clients' contexts: whether an access to an invalid entry is retried. VMID 0 never is.
  bool retry = true;
};

// Where firmware put VRAM, read from an MMHUB: FB_LOCATION and FB_OFFSET are only read (D8).
// kDeviceError when the values make no sense for `vram_bytes`, kDeviceLost.
base::Result<VramMap> read_vram_map(const VmHub& mmhub, std::uint64_t vram_bytes,
                                    std::uint64_t visible_bytes);

// Bring-up of one hub, in the order of the page. Ends before the flush of VMID 0, which the caller
// asks of the FlushQueue once all hubs are set up.
void bring_up_hub(const VmHub& hub, const HubSetup& setup);

// Gives context `vmid` a root (LO, then HI). A flush of that VMID must follow (D22).
void set_root(const VmHub& hub, base::Vmid vmid, Pde root);
// What a bad access of `vmid` leads to, by the mode of the VM that has it now: with `faults` it is
// retried until the entries change; without, it stops the queue that made it, so that no fence
// behind it is written (docs/hardware/choices.md D14).
void set_fault_mode(const VmHub& hub, base::Vmid vmid, bool faults);

}  // namespace gpuumd
