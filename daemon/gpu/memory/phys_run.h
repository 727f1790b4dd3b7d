// What stands behind a range of GPU addresses, in the only form that page-table code takes.
#pragma once

#include <cassert>
#include <cstdint>

#include "base/address.h"

namespace gpuumd {

enum class RunKind : std::uint8_t {
  kSystem,  // host memory, by IOVA
  kVram,    // this device's memory, by offset
  kNpa,     // another accelerator's memory, by fabric address
};

// `pages` pages of 4 KiB, contiguous in the space that `kind` names.
class PhysRun {
 public:
  static constexpr PhysRun system(base::Iova at, std::uint64_t pages) {
    return {RunKind::kSystem, at.value(), pages};
  }
  static constexpr PhysRun vram(base::VramOffset at, std::uint64_t pages) {
    return {RunKind::kVram, at.value(), pages};
  }
  static constexpr PhysRun npa(base::Npa at, std::uint64_t pages) {
    return {RunKind::kNpa, at.value(), pages};
  }

  constexpr RunKind kind() const { return kind_; }
  constexpr std::uint64_t pages() const { return pages_; }
  constexpr std::uint64_t bytes() const { return pages_ * base::kPageSize; }

  constexpr base::Iova iova() const {
    assert(kind_ == RunKind::kSystem);
    return base::Iova(address_);
  }
  constexpr base::VramOffset vram_offset() const {
    assert(kind_ == RunKind::kVram);
    return base::VramOffset(address_);
  }
  constexpr base::Npa npa() const {
    assert(kind_ == RunKind::kNpa);
    return base::Npa(address_);
  }

  // The part that starts `first` pages in and is `count` long.
  constexpr PhysRun part(std::uint64_t first, std::uint64_t count) const {
    assert(first + count <= pages_);
    return {kind_, address_ + first * base::kPageSize, count};
  }

  friend constexpr bool operator==(const PhysRun&, const PhysRun&) = default;

 private:
  constexpr PhysRun(RunKind kind, std::uint64_t address, std::uint64_t pages)
      : kind_(kind), address_(address), pages_(pages) {}
  RunKind kind_;
  std::uint64_t address_;
  std::uint64_t pages_;
};

}  // namespace gpuumd
