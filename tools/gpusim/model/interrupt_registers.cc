// The registers of the interrupt handler: offsets in dwords from OSSSYS segment 0
// (docs/hardware/ih.md, "Registers").
#include <string>

#include "tools/gpusim/model/interrupt_handler.h"
#include "tools/gpusim/model/reset_noise.h"

namespace gpusim {
namespace {

constexpr std::uint32_t kLut = 0x000, kLutMm = 0x010, kCookie = 0x020, kLutIndex = 0x028;
constexpr std::uint32_t kRing0 = 0x080, kRing1 = 0x08C;
constexpr std::uint32_t kWptrAddrHi = 0x085, kWptrAddrLo = 0x086;
constexpr std::uint32_t kDoorbellRetryCam = 0x088, kRetryCamAck = 0x0A4, kVersion = 0x0A5;
constexpr std::uint32_t kRetryCamCntl = 0x0AC, kCntl2 = 0x0C1, kStatus = 0x0C2;
constexpr std::uint32_t kRing1CfgIndex = 0x122, kRing1CfgData = 0x123;
constexpr std::uint32_t kVersionWord = 7u << 8 | 1u;  // 7.1.0

}  // namespace

InterruptHandler::InterruptHandler(RegisterFile& registers, const Bases& bases,
                                   const GpuOptions& options, const ModelClock& clock)
    : registers_(registers), base_(bases.at(Ip::kOsssys, 0, 0)), clock_(clock) {
  define_ring(0, kRing0);
  define_ring(1, kRing1);
  define_ring0_only();
  define_tables(options.seed);
  define_cam();
  define_status(options.seed);
}

RegisterFile::Register& InterruptHandler::define(std::uint32_t offset, const std::string& name) {
  return registers_.define(base_ + offset, "IH_" + name);
}

void InterruptHandler::define_ring(unsigned number, std::uint32_t first) {
  InterruptRing& ring = rings_[number];
  const std::string suffix = number == 0 ? "" : "_RING1";
  const auto plain = [](RegisterFile::Register& reg, std::uint32_t& word) {
    reg.on_read = [&word](std::uint32_t) { return word; };
    reg.on_write = [&word](std::uint32_t value, std::uint32_t) { return word = value; };
  };
  auto& cntl = define(first, "RB_CNTL" + suffix);
  cntl.on_read = [&ring](std::uint32_t) { return ring.cntl; };
  cntl.on_write = [this, number](std::uint32_t value, std::uint32_t) {
    write_cntl(number, value);
    return value;
  };
  auto& rptr = define(first + 1, "RB_RPTR" + suffix);
  rptr.on_read = [&ring](std::uint32_t) { return ring.rptr; };
  rptr.on_write = [this, number](std::uint32_t value, std::uint32_t) {
    write_rptr(number, value);
    return value;
  };
  auto& wptr = define(first + 2, "RB_WPTR" + suffix);
  wptr.on_read = [&ring](std::uint32_t) { return ring.wptr_register(); };
  wptr.on_write = [&ring](std::uint32_t value, std::uint32_t) {
    ring.wptr = value & 0x3'FFE0 & (ring.bytes() - 1);
    ring.overflow = (value & 1) != 0;
    return value;
  };
  plain(define(first + 3, "RB_BASE" + suffix), ring.base);
  plain(define(first + 4, "RB_BASE_HI" + suffix), ring.base_hi);
  plain(define(first + 7, "DOORBELL_RPTR" + suffix), ring.doorbell);
}

void InterruptHandler::write_cntl(unsigned number, std::uint32_t value) {
  InterruptRing& ring = rings_[number];
  ring.cntl = value;
  if (ring.overflow_clear()) ring.overflow = false;
  if (!ring.enabled()) queues_[number].clear();
}

void InterruptHandler::write_rptr(unsigned number, std::uint32_t value) {
  if (!rings_[number].set_rptr(value)) ++counters_.bad_pointers;
  if (number != 0) return;
  armed_ = true;
  if (rings_[0].empty() && host_ != nullptr) host_->lower_line();
}

void InterruptHandler::define_ring0_only() {
  auto& hi = define(kWptrAddrHi, "RB_WPTR_ADDR_HI");
  auto& lo = define(kWptrAddrLo, "RB_WPTR_ADDR_LO");
  hi.on_read = [this](std::uint32_t) { return rings_[0].wptr_addr_hi; };
  lo.on_read = [this](std::uint32_t) { return rings_[0].wptr_addr_lo; };
  hi.on_write = [this](std::uint32_t value, std::uint32_t) {
    return rings_[0].wptr_addr_hi = value & 0x1FF'FFFF;
  };
  lo.on_write = [this](std::uint32_t value, std::uint32_t) {
    return rings_[0].wptr_addr_lo = value;
  };
  auto& cntl2 = define(kCntl2, "CNTL2");
  cntl2.on_write = [this](std::uint32_t value, std::uint32_t) { return cntl2_ = value; };
}

// One die: VMID_LUT_INDEX selects nothing (D28).
void InterruptHandler::define_tables(std::uint64_t seed) {
  const auto low_half = [](std::uint32_t value, std::uint32_t) { return value & 0xFFFF; };
  for (unsigned v = 0; v < 16; ++v) {
    const std::string name = "VMID_" + std::to_string(v) + "_LUT";
    lut_[v] = &define(kLut + v, name);
    lut_mm_[v] = &define(kLutMm + v, name + "_MM");
    for (auto* entry : {lut_[v], lut_mm_[v]}) {
      entry->on_write = low_half;
      entry->stored = entry->reset =
          noise(seed, base_ + v + (entry == lut_[v] ? kLut : kLutMm)) & 0xFFFF;
    }
  }
  define(kLutIndex, "VMID_LUT_INDEX");
  for (unsigned n = 0; n < 8; ++n) {
    define(kCookie + n, "COOKIE_" + std::to_string(n)).on_read = [this, n](std::uint32_t) {
      return last_[n];
    };
  }
  auto& index = define(kRing1CfgIndex, "RING1_CLIENT_CFG_INDEX");
  auto& data = define(kRing1CfgData, "RING1_CLIENT_CFG_DATA");
  data.on_read = [this, &index](std::uint32_t) { return ring1_routes_[index.stored & 7]; };
  data.on_write = [this, &index](std::uint32_t value, std::uint32_t) {
    return ring1_routes_[index.stored & 7] = value;
  };
}

void InterruptHandler::define_cam() {
  define(kDoorbellRetryCam, "DOORBELL_RETRY_CAM").on_write =
      [this](std::uint32_t value, std::uint32_t) { return cam_doorbell_ = value; };
  define(kRetryCamAck, "RETRY_CAM_ACK").on_write = [this](std::uint32_t value, std::uint32_t) {
    cam_.acknowledge(value & 0x3FF);
    return value;
  };
  define(kRetryCamCntl, "RETRY_INT_CAM_CNTL").on_write = [this](std::uint32_t value,
                                                                std::uint32_t) {
    cam_.configure((value >> 16 & 1) != 0, value & 0x1F);
    return value;
  };
}

void InterruptHandler::define_status(std::uint64_t seed) {
  define(kVersion, "VERSION").on_read = [](std::uint32_t) { return kVersionWord; };
  define(kStatus, "STATUS").on_read = [this](std::uint32_t) { return status(); };
  struct Named {
    std::uint32_t offset;
    const char* name;
  };
  for (const Named& named : {Named{0x0A8, "CNTL"}, Named{0x0AA, "STORM_CLIENT_LIST_CNTL"},
                             Named{0x0AB, "LIMIT_INT_RATE_CNTL"}, Named{0x0D5, "INT_FLOOD_CNTL"},
                             Named{0x0F1, "MSI_STORM_CTRL"}, Named{0x129, "CHICKEN"}})
    define_unused(registers_, seed, base_ + named.offset, std::string("IH_") + named.name);
}

std::uint32_t InterruptHandler::status() const {
  const auto full = [](const InterruptRing& ring) { return ring.enabled() && ring.full(); };
  const auto bit = [](bool set, unsigned n) { return set ? 1u << n : 0u; };
  return bit(queued() == 0, 0) | bit(full(rings_[0]), 3) | bit(rings_[0].overflow, 5) |
         bit(full(rings_[1]), 12) | bit(rings_[1].overflow, 14) | bit(cam_.live() == 0, 19);
}

}  // namespace gpusim
