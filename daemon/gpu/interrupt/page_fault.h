// A page fault as the interrupt vector of a hub tells it (docs/hardware/ih.md, "Vector").
#pragma once

#include <cstdint>
#include <optional>

#include "base/address.h"
#include "daemon/gpu/bringup/topology.h"
#include "daemon/gpu/registers/iv.h"
#include "daemon/gpu/registers/vm_hub.h"

namespace gpuumd {

struct PageFault {
  HubKind hub = HubKind::kGfxhub;
  unsigned instance = 0;  // of the hub: MID or XCC
  base::Vmid vmid;
  base::Pasid pasid;
  base::GpuVa va;  // start of the page
  bool read = false;
  bool write = false;
  bool execute = false;
  bool retry = false;           // the access waits for its page; otherwise it has failed
  std::uint16_t cam_index = 0;  // of a retry fault
  std::uint64_t timestamp = 0;

  bool atomic() const { return read && write; }
};

// Whether the vector is a page fault of either kind, and whether it is of a retry.
bool is_page_fault(const InterruptVector& vector);
bool is_retry_fault(const InterruptVector& vector);

// Nothing when the vector is no page fault, or comes from a node that has no hub of ours.
std::optional<PageFault> decode_page_fault(const InterruptVector& vector, HubSet hubs);

// The bits of a retry fault that name its CAM entry, whatever else the vector says: an entry has to
// be acknowledged even if the rest makes no sense (docs/hardware/errata.md C3).
std::uint16_t cam_index(const InterruptVector& vector);

// Which XCC a GC node stands for, counted through the AIDs, four on each.
std::optional<unsigned> xcc_of_node(std::uint8_t node);

}  // namespace gpuumd
