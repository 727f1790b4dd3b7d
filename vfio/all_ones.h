// Memory that reads all ones, to stand where the registers of a lost device were: what a PCI read
// gives when nobody answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "base/result.h"
#include "base/shared_memory.h"

namespace vfio {

// One sealed memfd, mapped again and again over an area: a BAR of 256 GiB takes 4096 mappings (of
// the 65530 that a process usually has) and 64 MiB. Its memory is there from the beginning: when it
// is needed, none may be left.
class AllOnes {
 public:
  // For areas of up to `size` bytes. kNoMemory, kSystem when there is no descriptor left.
  static base::Result<std::unique_ptr<AllOnes>> create(std::uint64_t size);

  // Puts all ones in the place of whatever is mapped at [at, at + size), whole pages, readable and
  // writable; each page changes at once, so that other threads may be using it. What is written
  // there afterwards goes nowhere, but may be seen at other addresses of the areas. Any thread and
  // any signal handler. False when the kernel refuses a mapping: of parts, then.
  bool stand_in(std::byte* at, std::uint64_t size) const noexcept;

  // For where they find no room: takes whatever is mapped at [at, at + size) away and leaves an
  // area whose access is a SIGSEGV, and which nobody else gets. One mapping, no memory, and of the
  // mappings that a process may have one is kept for it. False when the kernel refuses that too.
  // One thread at a time.
  bool close_off(std::byte* at, std::uint64_t size);

  std::uint64_t tile() const { return tile_; }  // bytes of the memfd

 private:
  AllOnes(base::UniqueFd fd, std::uint64_t tile, base::Mapping spare)
      : fd_(std::move(fd)), tile_(tile), spare_(std::move(spare)) {}

  base::UniqueFd fd_;
  const std::uint64_t tile_;
  base::Mapping spare_;  // there to be given up
};

}  // namespace vfio
