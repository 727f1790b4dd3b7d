#include "tools/gpusim/model/interrupt_ring.h"

#include <algorithm>

namespace gpusim {
namespace {

constexpr std::uint32_t kPointerMask = 0x3'FFFC;  // RB_RPTR, RB_WPTR bits 17:2
constexpr std::uint32_t kMaxLog2Dwords = 16;      // what 18 bits of byte offset can name

}  // namespace

std::uint64_t ticks_of(ModelTime time) {
  return static_cast<std::uint64_t>(time.count()) / 10 & 0xFFFF'FFFF'FFFF;
}

IvImage encode(const Iv& iv, std::uint64_t ticks) {
  IvImage image{};
  image[0] = iv.client | std::uint32_t{iv.source} << 8 | std::uint32_t{iv.ring_id} << 16 |
             std::uint32_t{iv.vmid & 0xFu} << 24 | (iv.vmid_src_mmhub ? 1u << 31 : 0);
  image[1] = static_cast<std::uint32_t>(ticks);
  image[2] = static_cast<std::uint32_t>(ticks >> 32) & 0xFFFF;
  image[3] = iv.pasid | std::uint32_t{iv.node_id} << 16;
  std::ranges::copy(iv.src_data, image.begin() + 4);
  return image;
}

std::uint32_t InterruptRing::bytes() const {
  return 4u << std::min<std::uint32_t>(cntl >> 1 & 0x1F, kMaxLog2Dwords);
}

bool InterruptRing::enabled() const { return (cntl & 1) != 0 && bytes() >= 2 * kIvBytes; }

std::uint64_t InterruptRing::address() const {
  return std::uint64_t{base} << 8 | std::uint64_t{base_hi & 0x1'FFFF} << 40;
}

std::uint64_t InterruptRing::write_back_address() const {
  return (wptr_addr_lo & ~3u) | std::uint64_t{wptr_addr_hi & 0x1FF'FFFF} << 32;
}

bool InterruptRing::full() const { return ((wptr + kIvBytes) & (bytes() - 1)) == rptr; }

void InterruptRing::advance() {
  wptr = (wptr + kIvBytes) & (bytes() - 1);
  if (wptr == rptr && !overflow_clear()) overflow = true;
}

bool InterruptRing::set_rptr(std::uint32_t value) {
  rptr = value & kPointerMask & (bytes() - 1) & ~(kIvBytes - 1);
  return value % kIvBytes == 0;
}

}  // namespace gpusim
