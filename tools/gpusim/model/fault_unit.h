// Faults of one hub: status latch, interrupt vectors, and what becomes of the access (D14-D20).
#pragma once

#include <cstdint>

#include "tools/gpusim/model/block_context.h"
#include "tools/gpusim/model/hub_registers.h"
#include "tools/gpusim/model/page_walker.h"
#include "tools/gpusim/model/vm_hub.h"

namespace gpusim {

class FaultUnit {
 public:
  FaultUnit(HubRegisters& registers, const BlockContext& context, const VmHubConfig& config);

  enum class Verdict : std::uint8_t { kRetry, kDefaultPage, kNack };
  // `final`: never retried and never sent to the default page (incoming remote accesses).
  Verdict raise(const Requester& who, std::uint64_t va, AccessType type, const FaultCause& cause,
                bool final);
  void bus_error();
  void clear_status();

 private:
  bool retries(std::uint8_t vmid, const FaultCause& cause) const;
  Iv vector(const Requester& who, std::uint64_t va, AccessType type, bool retry) const;
  void latch(const Requester& who, std::uint64_t va, AccessType type, const FaultCause& cause);

  HubRegisters& registers_;
  const BlockContext& context_;
  VmHubConfig config_;
};

}  // namespace gpusim
