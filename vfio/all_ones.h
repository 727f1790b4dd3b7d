// Memory that reads all ones, to stand where the registers of a lost device were: what a PCI read
// gives when nobody answers.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/fd.h"
#include "base/result.h"

namespace vfio {

// One sealed memfd, mapped again and again over an area: a BAR of 256 GiB takes 4096 mappings (of
// the 65530 that a process usually has) and 64 MiB. It has no memory before it is needed.
class AllOnes {
 public:
  // For areas of up to `size` bytes. kSystem when there is no descriptor left.
  static base::Result<std::unique_ptr<AllOnes>> create(std::uint64_t size);

  // Puts all ones in the place of whatever is mapped at [at, at + size), whole pages, readable and
  // writable; each page changes at once, so that other threads may be using it. What is written
  // there afterwards goes nowhere, but may be seen at other addresses of the areas. Any thread and
  // any signal handler. False when the kernel refuses a mapping or the memory.
  bool stand_in(std::byte* at, std::uint64_t size) const noexcept;

  std::uint64_t tile() const { return tile_; }  // bytes of the memfd

 private:
  AllOnes(base::UniqueFd fd, std::uint64_t tile) : fd_(std::move(fd)), tile_(tile) {}
  bool fill() const noexcept;

  base::UniqueFd fd_;
  const std::uint64_t tile_;
  mutable std::atomic<bool> filled_ = false;
};

}  // namespace vfio
