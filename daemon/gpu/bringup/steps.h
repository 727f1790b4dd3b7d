// The first steps of bring-up: PCI, boot loader, discovery. What they find is left in a BootState.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "daemon/gpu/bringup/bring_up.h"
#include "daemon/gpu/bringup/discovery.h"
#include "daemon/gpu/bringup/pci_setup.h"
#include "daemon/gpu/bringup/topology.h"
#include "daemon/gpu/registers/register_bus.h"
#include "vfio/pci_device.h"

namespace gpuumd {

// Names of the states of a whole bring-up, in order. Memory, interrupts, PSP and engines bring
// their own steps; a part may have several.
namespace step_name {
inline constexpr const char* kReset = "Reset";
inline constexpr const char* kMode1Reset = "Mode1Reset";
inline constexpr const char* kPci = "PciReady";
inline constexpr const char* kBootLoader = "BootLoader";
inline constexpr const char* kDiscovery = "Discovery";
inline constexpr const char* kNbio = "Nbio";
inline constexpr const char* kMemory = "Memory";
inline constexpr const char* kInterrupts = "Interrupts";
inline constexpr const char* kPsp = "Psp";
inline constexpr const char* kEngines = "Engines";
}  // namespace step_name

// Filled by the steps below, in order; must outlive them.
struct BootState {
  std::string function_reset_refused;  // Reset: why not, empty if it was
  std::vector<std::string> remarks;    // what a user should know, a line each
  GpuBars bars;                        // PciReady
  std::unique_ptr<RegisterBus> bus;    // PciReady
  RegisterIo* io = nullptr;            // = bus; tests put their own here and leave bus empty
  std::uint64_t vram_size = 0;         // BootLoader
  discovery::Table table;              // Discovery
  GpuTopology topology;                // Discovery
};

// Identity, BARs, registers. Down: bus mastering off, the last thing that a shutdown does.
Step pci_step(vfio::PciDevice& device, BootState& boot);

// Waits for the boot loader (2 s), then reads the size of VRAM.
Step boot_loader_step(BootState& boot);

// Finds, reads, checks and parses the discovery table; makes the topology and reads where VRAM
// lies. Reads through BAR 0 where that reaches, else through the MM window, a piece a turn.
Step discovery_step(BootState& boot);

// Frame buffer gate, doorbells in, SDMA's route. The interrupt handler's route is part of its own
// sequence. Down: doorbells off.
Step nbio_step(BootState& boot);

}  // namespace gpuumd
