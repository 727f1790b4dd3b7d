// What a modelled GPU is built like. The defaults are made to catch a driver that relies on nominal
// values: two of everything that can exist more than once, a BAR smaller than VRAM, bases and reset
// values drawn from seeds.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace gpusim {

// What a retry fault of one SDMA queue holds up.
enum class StallScope : std::uint8_t { kQueue, kInstance };

// When CPU stores through BAR 0 reach the engines: at once, or after a flush of the host data path
// (docs/hardware/pci.md, "Visibility").
enum class HdpMode : std::uint8_t { kRelaxed, kStrict };

// Where the firmware puts the discovery table (docs/hardware/discovery.md, "Finding it").
enum class DiscoveryPlace : std::uint8_t { kTopOfVram, kScratchOnly };

// The fabric configuration as the security processor keeps it: the record of command 0x54 and what
// commands 0x55, 0x56 and 0x57 set (docs/hardware/psp.md). The defaults are those of a GPU without
// a pod file (D52).
struct PodConfig {
  std::uint32_t link_type = 1;  // 0 UALoE, 1 UALink
  std::uint32_t accel_id = 0xFFFF'FFFF;
  std::array<std::uint8_t, 16> ppod_id{};
  std::uint32_t ppod_size = 0;
  std::uint32_t bandwidth = 0;
  std::uint32_t latency = 0;
  std::array<std::uint32_t, 16> local_accelerators = all_unused();
  std::uint32_t vpod_id = 0;
  std::uint32_t vpod_size = 0;
  std::array<std::uint32_t, 32> active{};  // bit i of word i / 32: accelerator i is a member
  std::uint32_t addr_mode = 0;             // 0 source aliasing, 1 source identification
  std::uint32_t config_state = 0;          // 0 idle .. 5 complete, 0xFF invalid
  std::uint8_t station_count = 0;
  std::uint8_t station_flags = 0;
  std::array<std::uint8_t, 64> lane_enable{};

 private:
  static constexpr std::array<std::uint32_t, 16> all_unused() {
    std::array<std::uint32_t, 16> list{};
    list.fill(0xFFFF'FFFF);
    return list;
  }
};

// What the PCI function signals interrupts with (docs/hardware/pci.md).
enum class Interrupts : std::uint8_t { kMsix, kIntx, kNone };

struct PodOptions {
  PodConfig config;
  // Whether the controller reports "complete" (state 5) by itself after a virtual-pod configuration
  // (command 0x56). Off: a scenario has to.
  bool completes = true;
};

struct GpuOptions {
  unsigned index = 0;  // among the GPUs of this process: FB_OFFSET and seeds follow from it
  std::string name = "gpusim0";  // in logs

  std::uint64_t vram_bytes = std::uint64_t{1} << 30;   // a multiple of 16 MiB
  std::uint64_t bar0_bytes = std::uint64_t{64} << 20;  // a power of two; 0: all of VRAM, rounded up
  unsigned xccs = 2;                                   // 1..8: GFXHUBs and SDMA groups
  unsigned mids = 2;                                   // 1..4: MMHUB instances
  unsigned sdma_per_xcc = 2;                           // 1..2

  std::uint64_t seed = 1;        // reset values of unused registers, order of accesses in flight
  std::uint64_t bases_seed = 1;  // discovery bases; 0: the nominal ones
  bool bases_64bit = false;      // base addresses in the table are 64-bit words
  unsigned binary_major = 1;     // 1 or 2: layout of the discovery binary's header
  DiscoveryPlace discovery = DiscoveryPlace::kTopOfVram;

  StallScope stall = StallScope::kQueue;
  HdpMode hdp = HdpMode::kStrict;
  Interrupts interrupts = Interrupts::kMsix;
  enum class Reset : std::uint8_t { kOn, kOff, kDeaf } function_reset = Reset::kOn;
  std::uint64_t gone_after = 0;  // accesses to registers, then the function is gone; 0: it stays
  unsigned revision = 0;         // silicon revision in the strap register; bit 4: AID stepping A1

  PodOptions pod;
};

// FB_LOCATION_BASE, the same in every model (D8).
inline constexpr std::uint64_t kFbLocationBase = 0x0000'0080'0000'0000;

// FB_OFFSET register, in units of 16 MiB (D8).
constexpr std::uint32_t fb_offset(const GpuOptions& options) {
  return 0x100 + 0x1000 * options.index;
}

}  // namespace gpusim
