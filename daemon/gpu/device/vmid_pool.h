// VMIDs and PASIDs for clients' VMs. A VMID is the hardware's name of an address space (3..15 on
// the GFXHUBs, docs/hardware/vmhub.md); a PASID is what faults are told apart by. Device thread.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/address.h"
#include "base/result.h"
#include "daemon/gpu/interrupt/interrupt_controller.h"
#include "daemon/gpu/memory/flush_queue.h"
#include "daemon/gpu/memory/hub_setup.h"
#include "daemon/gpu/memory/pte.h"

namespace gpuumd {

class VmidPool {
 public:
  static constexpr std::uint8_t kFirst = 3;
  static constexpr std::uint8_t kLast = 15;
  static constexpr std::uint32_t kPasids = 65535;  // 1..; 0 is nobody

  // All must outlive it.
  VmidPool(std::vector<VmHub> gfxhubs, InterruptController& interrupts, FlushQueue& flushes)
      : hubs_(std::move(gfxhubs)), interrupts_(interrupts), flushes_(flushes) {
    for (auto v = kFirst; v <= kLast; ++v) free_.push_back(base::Vmid(v));
  }

  struct Binding {
    base::Vmid vmid;
    base::Pasid pasid;
  };
  // Gives a VM a VMID and a PASID that no fault of an earlier owner can carry any more, points
  // every GFXHUB at `root`, and flushes. `done` when the VM may run. kLimit: all 13 are in use.
  void bind(Pde root, bool retry, std::move_only_function<void(base::Result<Binding>)> done);

  // Points the VMID at another tree (of a VM that has died). `done` when no hub can use the old
  // one.
  void replace_root(base::Vmid vmid, Pde root, Done done);

  // No slice of the VM is in flight any more. The root goes, the VMID is flushed, and it is used
  // again only when every fault raised before this is out of the interrupt ring. `done` when the
  // VM's tables may be freed.
  void release(Binding binding, Done done);

  // From the device's poller: VMIDs whose faults have been drained become free.
  bool poll();
  unsigned free() const { return static_cast<unsigned>(free_.size()); }

 private:
  struct Draining {
    base::Vmid vmid;
    InterruptController::Watermark mark;
  };
  std::optional<base::Pasid> next_pasid();

  std::vector<VmHub> hubs_;
  InterruptController& interrupts_;
  FlushQueue& flushes_;
  std::vector<base::Vmid> free_;
  std::vector<Draining> draining_;
  std::array<base::Pasid, 16> in_use_{};
  std::uint32_t last_pasid_ = 0;
};

}  // namespace gpuumd
