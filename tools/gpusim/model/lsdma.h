// LSDMA: the copy engine driven by registers, behind the MMHUB (docs/hardware/sdma.md, D35).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tools/gpusim/model/block_context.h"
#include "tools/gpusim/model/vm_hub.h"

namespace gpusim {

struct LsdmaConfig {
  std::uint32_t base = 0;  // absolute dword of LSDMA segment 0
  std::size_t step_bytes = 256 * 1024;
};

struct LsdmaCounters {
  std::uint64_t commands = 0;
  std::uint64_t bytes = 0;
  std::uint64_t failed = 0;
  std::uint64_t dropped = 0;  // the FIFO was full
  std::uint64_t retries = 0;
};

// Model thread only.
class Lsdma : public Steppable {
 public:
  Lsdma(const LsdmaConfig& config, const BlockContext& context, VmHub& hub);
  ~Lsdma() override;
  Lsdma(const Lsdma&) = delete;
  Lsdma& operator=(const Lsdma&) = delete;

  // Takes what it moves from `budget`, which several engines may share.
  bool step(std::size_t& budget);
  bool step() override {
    std::size_t own = SIZE_MAX;
    return step(own);
  }
  bool waiting() const override;
  void reset();
  const LsdmaCounters& counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gpusim
