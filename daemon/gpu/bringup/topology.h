// What a GPU is made of: the register blocks that the driver uses, from the discovery table.
#pragma once

#include <cstdint>
#include <vector>

#include "base/address.h"
#include "base/result.h"
#include "daemon/gpu/bringup/discovery.h"
#include "daemon/gpu/registers/register_io.h"
#include "daemon/gpu/registers/vm_hub.h"

namespace gpuumd {

// Which hubs there are, as bit masks of their instances.
struct HubSet {
  std::uint32_t mmhubs = 0;
  std::uint32_t gfxhubs = 0;
};

// One compute die: its GC registers, its hub, and its SDMA instances.
struct Xcc {
  RegisterBlock gc;
  VmHub hub;                        // kGfxhub
  std::vector<RegisterBlock> sdma;  // by instance, at sdma::bases()
};

struct GpuTopology {
  RegisterBlock nbio;
  RegisterBlock osssys;
  RegisterBlock mp0;
  RegisterBlock lsdma;
  RegisterBlock hdp;  // default-made when the table has none: nothing of it is needed
  RegisterBlock nht;  // the firmware mailbox, by SMN address
  // In order of instance, never empty. A harvested one leaves a gap in the numbers, not here.
  std::vector<VmHub> mmhubs;
  std::vector<Xcc> xccs;

  // Filled by read_memory_layout().
  std::uint64_t vram_size = 0;
  base::McAddress fb_base;          // VRAM as VMID 0 sees it: [fb_base, fb_base + vram_size)
  base::McAddress fb_top;           // inclusive
  base::PhysicalAddress vram_base;  // VRAM as page-table entries name it

  // At least 1, the same for all.
  unsigned sdma_per_xcc() const {
    return xccs.empty() ? 0 : static_cast<unsigned>(xccs.front().sdma.size());
  }
  unsigned sdma_engines() const { return sdma_per_xcc() * static_cast<unsigned>(xccs.size()); }
  HubSet hubs() const;
};

// Picks the driver's blocks and checks that each is there, in a version that the driver knows, with
// every segment that it uses. kUnsupported names the block and what is missing. Touches no
// register.
base::Result<GpuTopology> make_topology(const discovery::Table& table, RegisterIo& io);

// Reads FB_LOCATION of all hubs and FB_OFFSET of all MMHUBs, which must agree and hold `vram_size`
// bytes (docs/hardware/choices.md D8). kDeviceError names the hub and what it read; kDeviceLost.
base::Result<void> read_memory_layout(GpuTopology& topology, std::uint64_t vram_size);

}  // namespace gpuumd
