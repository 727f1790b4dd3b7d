// This accelerator's NPA window: what the others see of its VRAM, i.e. the page table of VMID 15 on
// every MMHUB (docs/hardware/gpuvm.md "NPA"). Device thread; changes run one after the other.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "base/result.h"
#include "daemon/gpu/device/gpu.h"
#include "daemon/gpu/memory/page_table.h"
#include "fabric/action.h"

namespace gpuumd {

class NpaSpace {
 public:
  explicit NpaSpace(Gpu& gpu) : gpu_(gpu) {}

  // Makes the tables and gives their root to context 15; off: the root goes, then the tables.
  void enable(bool on, Done done);
  // Entries, then the flush that goes with it.
  void update(const fabric::UpdateNpa& what, Done done);

 private:
  struct Job {
    fabric::UpdateNpa what;
    Done done;
  };
  void next();
  base::Result<void> change(const fabric::UpdateNpa& what, TableUpdate& update);
  void finish(base::Result<void> result);
  void set_roots(Pde root);

  Gpu& gpu_;
  std::optional<PageTable> table_;
  std::deque<Job> jobs_;
  bool busy_ = false;
};

}  // namespace gpuumd
