#include "daemon/gpu/bringup/topology.h"

#include <algorithm>
#include <string>
#include <utility>

#include "daemon/gpu/registers/describe.h"
#include "daemon/gpu/registers/nht_mailbox.h"
#include "daemon/gpu/registers/sdma.h"

namespace gpuumd {
namespace {

using discovery::Block;
using discovery::HardwareId;
using discovery::Version;

constexpr unsigned kMaxInstances = 32;  // of one block: HubSet's bits
constexpr unsigned kMaxSdmaPerXcc = 2;  // as many as the register layout is known for

// What the driver needs of a block (docs/hardware/discovery.md, "Blocks").
struct Need {
  HardwareId id;
  const char* name;
  Version version;
  unsigned segments;  // bit mask
};
constexpr Need kNbio{HardwareId::kNbif, "NBIO", {6, 3, 2}, 0b111};
constexpr Need kOsssys{HardwareId::kOsssys, "OSSSYS", {7, 1, 0}, 0b1};
constexpr Need kMp0{HardwareId::kMp0, "MP0", {15, 0, 8}, 0b10};
constexpr Need kLsdma{HardwareId::kLsdma, "LSDMA", {7, 1, 0}, 0b1};
constexpr Need kMmhub{HardwareId::kMmhub, "MMHUB", {4, 2, 0}, 0b100};
constexpr Need kGc{HardwareId::kGc, "GC", {12, 1, 0}, 0b11};
constexpr Version kSdmaVersion{7, 1, 0};

std::string text(Version version) {
  return std::to_string(version.major) + "." + std::to_string(version.minor) + "." +
         std::to_string(version.revision);
}

base::Result<void> check(const Need& need, const Block& block) {
  const auto name = std::string(need.name) + " instance " + std::to_string(block.instance);
  if (block.version != need.version)
    return base::fail(base::Errc::kUnsupported,
                      name + " is version " + text(block.version) + ", not " + text(need.version));
  if (block.instance >= kMaxInstances)
    return base::fail(base::Errc::kUnsupported, name + ": too many");
  for (unsigned segment = 0; segment < block.bases.size(); ++segment)
    if ((need.segments >> segment & 1) != 0 && block.bases[segment] == RegisterBlock::kAbsent)
      return base::fail(base::Errc::kUnsupported,
                        name + " has no usable base for segment " + std::to_string(segment));
  return {};
}

// All instances of a block that is needed, by instance; each number once.
base::Result<std::vector<Block>> instances(const discovery::Table& table, const Need& need) {
  std::vector<Block> found;
  for (const auto& block : table.blocks)
    if (block.id == need.id) found.push_back(block);
  if (found.empty())
    return base::fail(base::Errc::kUnsupported, std::string("no ") + need.name + " block");
  std::ranges::sort(found, {}, &Block::instance);
  for (const auto& block : found)
    if (auto good = check(need, block); !good) return std::unexpected(good.error());
  if (std::ranges::adjacent_find(found, {}, &Block::instance) != found.end())
    return base::fail(base::Errc::kProtocol,
                      std::string("two ") + need.name + " blocks with the same instance number");
  return found;
}

// The first instance of a block that the driver uses one of.
base::Result<void> pick(const discovery::Table& table, const Need& need, RegisterIo& io,
                        RegisterBlock& out) {
  auto found = instances(table, need);
  if (!found) return std::unexpected(std::move(found.error()));
  out = RegisterBlock(io, found->front().bases);
  return {};
}

// SDMA entries are counted only: the registers are those of the XCC.
base::Result<unsigned> sdma_per_xcc(const discovery::Table& table, std::size_t xccs) {
  std::size_t total = 0;
  for (const auto& block : table.blocks) {
    const auto id = block.id;
    if (id != HardwareId::kSdma0 && id != HardwareId::kSdma1 && id != HardwareId::kSdma2 &&
        id != HardwareId::kSdma3)
      continue;
    if (block.version != kSdmaVersion)
      return base::fail(base::Errc::kUnsupported,
                        "SDMA is version " + text(block.version) + ", not " + text(kSdmaVersion));
    ++total;
  }
  if (total == 0 || total % xccs != 0 || total / xccs > kMaxSdmaPerXcc)
    return base::fail(base::Errc::kUnsupported, std::to_string(total) + " SDMA instances for " +
                                                    std::to_string(xccs) + " XCCs");
  return static_cast<unsigned>(total / xccs);
}

base::Result<void> add_hubs(const discovery::Table& table, RegisterIo& io, GpuTopology& topology) {
  auto mids = instances(table, kMmhub);
  if (!mids) return std::unexpected(std::move(mids.error()));
  for (const auto& mid : *mids)
    topology.mmhubs.push_back({HubKind::kMmhub, mid.instance,
                               RegisterBlock(io, vm_hub::bases(HubKind::kMmhub, mid.bases))});

  auto gcs = instances(table, kGc);
  if (!gcs) return std::unexpected(std::move(gcs.error()));
  const auto engines = sdma_per_xcc(table, gcs->size());
  if (!engines) return std::unexpected(engines.error());
  for (const auto& gc : *gcs) {
    Xcc xcc{RegisterBlock(io, gc.bases),
            {HubKind::kGfxhub, gc.instance,
             RegisterBlock(io, vm_hub::bases(HubKind::kGfxhub, gc.bases))},
            {}};
    for (unsigned i = 0; i < *engines; ++i) xcc.sdma.emplace_back(io, sdma::bases(i, gc.bases));
    topology.xccs.push_back(std::move(xcc));
  }
  return {};
}

std::string name_of(const VmHub& hub) {
  return (hub.kind == HubKind::kMmhub ? "MMHUB " : "GFXHUB ") + std::to_string(hub.instance);
}

struct FbLocation {
  std::uint64_t base = 0, top = 0;
  friend bool operator==(FbLocation, FbLocation) = default;
};

// Base and top of VRAM in the addresses of VMID 0; registers count 16 MiB and include the top one.
FbLocation read_fb_location(const VmHub& hub) {
  using namespace vm_hub;
  const auto& regs = hub.registers;
  const auto address = [](std::uint64_t low, std::uint64_t high) { return low << 24 | high << 56; };
  const auto base_hi = regs.read<FB_LOCATION_BASE_HI32>().get<FB_LOCATION_BASE_HI32::FB_BASE_HI>();
  const auto top_hi = regs.read<FB_LOCATION_TOP_HI32>().get<FB_LOCATION_TOP_HI32::FB_TOP_HI>();
  return {address(regs.read<FB_LOCATION_BASE_LO32>().raw(), base_hi),
          address(regs.read<FB_LOCATION_TOP_LO32>().raw(), top_hi) | 0xFFFFFF};
}

}  // namespace

HubSet GpuTopology::hubs() const {
  HubSet set;
  for (const auto& hub : mmhubs) set.mmhubs |= 1u << hub.instance;
  for (const auto& xcc : xccs) set.gfxhubs |= 1u << xcc.hub.instance;
  return set;
}

base::Result<GpuTopology> make_topology(const discovery::Table& table, RegisterIo& io) {
  GpuTopology topology;
  for (auto [need, block] : {std::pair{&kNbio, &topology.nbio},
                             {&kOsssys, &topology.osssys},
                             {&kMp0, &topology.mp0},
                             {&kLsdma, &topology.lsdma}})
    if (auto picked = pick(table, *need, io, *block); !picked)
      return std::unexpected(std::move(picked.error()));
  if (auto added = add_hubs(table, io, topology); !added)
    return std::unexpected(std::move(added.error()));
  const auto hdp = std::ranges::find(table.blocks, HardwareId::kHdp, &Block::id);
  if (hdp != table.blocks.end()) topology.hdp = RegisterBlock(io, hdp->bases);
  topology.nht = RegisterBlock(io, nht::smn_bases());
  return topology;
}

base::Result<void> read_memory_layout(GpuTopology& topology, std::uint64_t vram_size) {
  const auto& first = topology.mmhubs.front();
  const auto location = read_fb_location(first);
  const auto offset = first.registers.read<vm_hub::FB_OFFSET>().raw();
  RegisterIo& io = first.registers.io();
  if (io.lost()) return base::fail(base::Errc::kDeviceLost, "FB_LOCATION");

  if (location.top < location.base || location.top - location.base < vram_size - 1)
    return base::fail(base::Errc::kDeviceError,
                      name_of(first) + " FB_LOCATION " + hex(location.base, 16) + " to " +
                          hex(location.top, 16) + " is smaller than VRAM");
  const auto same = [&](const VmHub& hub) { return read_fb_location(hub) == location; };
  for (const auto& hub : topology.mmhubs)
    if (!same(hub) || hub.registers.read<vm_hub::FB_OFFSET>().raw() != offset)
      return base::fail(base::Errc::kDeviceError,
                        name_of(hub) + " has another FB_LOCATION or FB_OFFSET than the first");
  for (const auto& xcc : topology.xccs)
    if (!same(xcc.hub))
      return base::fail(base::Errc::kDeviceError,
                        name_of(xcc.hub) + " has another FB_LOCATION than the first MMHUB");
  if (io.lost()) return base::fail(base::Errc::kDeviceLost, "FB_LOCATION");

  topology.vram_size = vram_size;
  topology.fb_base = base::McAddress(location.base);
  topology.fb_top = base::McAddress(location.top);
  topology.vram_base = base::PhysicalAddress(std::uint64_t{offset} << 24);
  return {};
}

}  // namespace gpuumd
