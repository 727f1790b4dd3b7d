// The three names of a byte of VRAM and the only translations between them
// (docs/hardware/choices.md D8, D9).
#pragma once

#include <cassert>
#include <cstdint>

#include "base/address.h"

namespace gpuumd {

// Immutable after bring-up. FB_LOCATION_BASE and FB_OFFSET are read from the device, never assumed:
// the offset, the MC address and the physical address of a byte are three different numbers.
class VramMap {
 public:
  // `visible` is how much of VRAM, from its start, BAR 0 shows.
  VramMap(std::uint64_t size, std::uint64_t visible, base::McAddress fb_base,
          base::PhysicalAddress fb_physical)
      : size_(size), visible_(visible), fb_base_(fb_base), fb_physical_(fb_physical) {
    assert(visible <= size);
  }

  std::uint64_t size() const { return size_; }
  std::uint64_t visible() const { return visible_; }
  base::McAddress fb_base() const { return fb_base_; }
  base::PhysicalAddress fb_physical() const { return fb_physical_; }

  // How VMID 0 reaches it: through the FB aperture, without a page table.
  base::McAddress mc(base::VramOffset at) const {
    assert(at.value() < size_);
    return fb_base_ + at.value();
  }
  // How a page-table entry or a context root names it.
  base::PhysicalAddress physical(base::VramOffset at) const {
    assert(at.value() < size_);
    return fb_physical_ + at.value();
  }
  bool is_visible(base::VramOffset at, std::uint64_t bytes) const {
    return base::fits(at.value(), bytes, visible_);
  }

 private:
  std::uint64_t size_;
  std::uint64_t visible_;
  base::McAddress fb_base_;
  base::PhysicalAddress fb_physical_;
};

}  // namespace gpuumd
