// The inside of VmHub: only vm_hub.cc includes it.
#pragma once

#include "tools/gpusim/model/fault_unit.h"
#include "tools/gpusim/model/invalidation.h"
#include "tools/gpusim/model/memory_access.h"
#include "tools/gpusim/model/page_walker.h"
#include "tools/gpusim/model/vm_hub.h"

namespace gpusim {

inline constexpr std::uint8_t kNpaVmid = 15;
inline constexpr std::uint16_t kCidMpnht = 2, kCidUtcl2Nht = 10;  // reads, writes (D19)

struct VmHub::Impl {
  Impl(const VmHubConfig& hub_config, const BlockContext& block_context, Vram& memory);

  Outcome translate(const Requester& who, std::uint64_t va, std::uint64_t bytes, AccessType type,
                    bool incoming, Run& run);
  bool ahead(const Requester& who, std::uint64_t va, std::uint64_t bytes, AccessType type,
             Run& run);
  bool place(const Leaf& leaf, std::uint64_t va, std::uint64_t bytes, Run& run) const;
  const Leaf* quiet_leaf(std::uint8_t vmid, std::uint64_t page);
  Outcome incoming(RemoteAccess& access, AddressMode mode, bool enabled);
  bool incoming_run(std::uint64_t va, std::uint64_t bytes, bool write, Run& run);
  const Leaf* incoming_leaf(std::uint64_t page, bool write);
  // `from_outside`: an incoming remote access; its faults are final.
  Outcome read(const Requester& who, std::uint64_t va, std::span<std::byte> to, bool from_outside);
  Outcome write(const Requester& who, std::uint64_t va, std::span<const std::byte> from,
                bool from_outside);
  Outcome atomic(const Requester& who, std::uint64_t va, AtomicOp op, std::uint64_t operand,
                 std::uint64_t compare, std::uint64_t& result, bool from_outside);

  bool aperture(std::uint64_t va, std::uint64_t bytes, Run& run) const;
  const Leaf* find_leaf(const Requester& who, std::uint64_t va, std::uint64_t bytes,
                        AccessType type, bool incoming, Run& run, Outcome& outcome);
  Outcome fault(const Requester& who, std::uint64_t va, std::uint64_t bytes, AccessType type,
                const FaultCause& cause, bool incoming, Run& run);
  void referenced(std::uint8_t vmid, Leaf& leaf);
  void dropped(const Leaf& leaf);
  void add_scenario();
  base::Result<ScenarioValues> mislead(const ScenarioValues& arguments);

  VmHubConfig config;
  bool resetting = false;  // VRAM keeps its contents: nothing counts as freed
  const BlockContext& context;
  Vram& vram;
  HubCounters counters;
  AccessError error;
  HubRegisters registers;
  TranslationCache cache;
  PageWalker walker;
  FaultUnit faults;
  Invalidation invalidation;
  MemoryAccess memory_access;
};

}  // namespace gpusim
