// SIGBUS-safe access to mapped BARs. A load or store to a BAR whose device has been removed, is
// powered down or has its memory switched off raises SIGBUS. In an area that is covered it gives
// all ones instead (a store goes nowhere), and its device is noted as lost.
//
// The registry of covered areas and the signal handler are the only things in vfio/ that belong to
// the process. The handler is installed with the first area and stays; a SIGBUS that is of no
// covered area goes to whoever had the signal before, by default the end of the process with a
// core dump. Whoever installs a handler of their own later takes the protection away.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/result.h"
#include "vfio/all_ones.h"
#include "vfio/kernel/loss.h"

namespace vfio {

// One area, covered from cover() until it goes, which is before the area is unmapped. Any thread;
// the handler runs on the thread that did the access, and takes no lock.
class BusErrorGuard {
 public:
  // `ones` and `loss` must outlive it; `bar` is for the text. kLimit when 1024 areas are covered,
  // kSystem when there is no handler to be had.
  static base::Result<BusErrorGuard> cover(std::byte* at, std::uint64_t size, const AllOnes& ones,
                                           Loss& loss, unsigned bar);
  BusErrorGuard(BusErrorGuard&& other) noexcept : slot_(std::exchange(other.slot_, kNone)) {}
  BusErrorGuard& operator=(BusErrorGuard&& other) noexcept;
  ~BusErrorGuard() { uncover(); }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  explicit BusErrorGuard(std::size_t slot) : slot_(slot) {}
  void uncover();

  std::size_t slot_ = kNone;
};

}  // namespace vfio
