#include "tools/gpusim/model/hub_registers.h"

#include "tools/gpusim/model/reset_noise.h"

namespace gpusim {

HubRegisters::HubRegisters(RegisterFile& file, const Config& config)
    : file_(file),
      config_(config),
      prefix_(config.mmhub ? "MMHUB" + std::to_string(config.index - 8)
                           : "GFXHUB" + std::to_string(config.index)) {
  prefix_ += ".";
  add_control();
  add_faults();
  add_apertures();
  add_contexts();
  add_invalidation();
}

std::uint32_t HubRegisters::offset(std::uint32_t row) const {
  if (config_.mmhub) return row;
  return row < 0x100 ? row + 0x15A0 : row + 0x1524;
}

HubRegisters::Register& HubRegisters::add(std::uint32_t row, const std::string& name,
                                          std::uint32_t reset) {
  return file_.define(config_.base + offset(row), prefix_ + name, reset);
}

HubRegisters::Register& HubRegisters::noise(std::uint32_t row, const std::string& name) {
  return define_unused(file_, config_.seed, config_.base + offset(row), prefix_ + name);
}

HubRegisters::Pair HubRegisters::add_pair(std::uint32_t row, const std::string& name) {
  return {&noise(row, name + "_LO32"), &noise(row + 1, name + "_HI32")};
}

HubRegisters::Pair HubRegisters::read_only_pair(std::uint32_t row, const std::string& name,
                                                std::uint64_t value) {
  Pair both{&add(row, name + "_LO32", static_cast<std::uint32_t>(value)),
            &add(row + 1, name + "_HI32", static_cast<std::uint32_t>(value >> 32))};
  for (Register* half : {both.lo, both.hi})
    half->on_write = [](std::uint32_t, std::uint32_t stored) { return stored; };
  return both;
}

void HubRegisters::add_control() {
  noise(0x000, "SYSTEM_APERTURE_DEFAULT_ADDR_LSB");
  noise(0x001, "SYSTEM_APERTURE_DEFAULT_ADDR_MSB");
  noise(0x024, "L2_CNTL");
  noise(0x025, "L2_CNTL2");
  add(0x026, "L2_CNTL3", 0x8010'0007);
  add(0x027, "L2_STATUS", 0).on_write = [](std::uint32_t, std::uint32_t stored) { return stored; };
  add(0x028, "DUMMY_PAGE_FAULT_CNTL", 0);
  noise(0x029, "DUMMY_PAGE_FAULT_ADDR_LO32");
  noise(0x02A, "DUMMY_PAGE_FAULT_ADDR_HI32");
  noise(0x02B, "INVALIDATE_CNTL");
  for (std::uint32_t row = 0x038; row <= 0x03D; ++row)
    noise(row, "CONTEXT1_IDENTITY_" + std::to_string(row - 0x038));
  add(0x03E, "L2_CNTL4", 0x0000'00C1);
  noise(0x040, "BANK_SELECT_RESERVED_CID");
  noise(0x041, "BANK_SELECT_RESERVED_CID2");
  add(0x044, "L2_CNTL5", 0x0000'3FE0);
  noise(0x10E, "MX_L1_TLB_CNTL");
  noise(0x1F0, "PCIE_ATOMIC_SUPPORTED");
  if (!config_.mmhub) return;
  noise(0x202, "XGMI_LFB_CNTL");
  noise(0x203, "XGMI_LFB_SIZE");
}

void HubRegisters::add_faults() {
  // Noise in the control words would send faults to the default page or latch them, unasked.
  fault_cntl_lo = &add(0x02C, "L2_PROTECTION_FAULT_CNTL_LO32", 0);
  add(0x02D, "L2_PROTECTION_FAULT_CNTL_HI32", 0);
  fault_cntl2 = &add(0x02E, "L2_PROTECTION_FAULT_CNTL2", 0);
  noise(0x02F, "L2_PROTECTION_FAULT_MM_CNTL3");
  noise(0x030, "L2_PROTECTION_FAULT_MM_CNTL4");
  const Pair status = read_only_pair(0x031, "L2_PROTECTION_FAULT_STATUS", 0);
  fault_status_lo = status.lo;
  fault_status_hi = status.hi;
  fault_addr = read_only_pair(0x033, "L2_PROTECTION_FAULT_ADDR", 0);
  fault_default_addr = add_pair(0x035, "L2_PROTECTION_FAULT_DEFAULT_ADDR");
}

void HubRegisters::add_apertures() {
  // Firmware sets these before a driver runs; drivers only read them, and they outlive a reset
  // (D8).
  const auto firmware = [this](std::uint32_t row, const char* name, std::uint64_t value) {
    Pair both = read_only_pair(row, name, value);
    both.lo->survives_reset = true;
    both.hi->survives_reset = true;
    return both;
  };
  fb_base_ = firmware(0x100, "FB_LOCATION_BASE", config_.fb_base >> 24);
  fb_top_ = firmware(0x102, "FB_LOCATION_TOP", config_.fb_top >> 24);
  agp_top_ = add_pair(0x104, "AGP_TOP");
  agp_bot_ = add_pair(0x106, "AGP_BOT");
  agp_base_ = add_pair(0x108, "AGP_BASE");
  aperture_low_ = add_pair(0x10A, "SYSTEM_APERTURE_LOW_ADDR");
  aperture_high_ = add_pair(0x10C, "SYSTEM_APERTURE_HIGH_ADDR");
  if (!config_.mmhub) return;
  Register& fb_offset = add(0x2EC, "FB_OFFSET", config_.fb_offset);
  fb_offset.survives_reset = true;
  fb_offset.on_write = [](std::uint32_t, std::uint32_t stored) { return stored; };
}

void HubRegisters::add_contexts() {
  for (unsigned n = 0; n < kVmids; ++n) {
    const std::string name = "CONTEXT" + std::to_string(n);
    context_cntl_[n] = &add(0x110 + n, name + "_CNTL", 0);
    page_table_base_[n] = add_pair(0x17B + 2 * n, name + "_PAGE_TABLE_BASE_ADDR");
    page_table_start_[n] = add_pair(0x19B + 2 * n, name + "_PAGE_TABLE_START_ADDR");
    page_table_end_[n] = add_pair(0x1BB + 2 * n, name + "_PAGE_TABLE_END_ADDR");
    noise(0x1DC + n, name + "_PER_PFVF_PTE_CACHE_FRAGMENT_SIZES");
  }
  contexts_disable = &add(0x120, "CONTEXTS_DISABLE", 0);
}

void HubRegisters::add_invalidation() {
  for (unsigned e = 0; e < kEngines; ++e) {
    const std::string name = "INVALIDATE_ENG" + std::to_string(e);
    sem[e] = &add(0x121 + e, name + "_SEM", 0);
    req[e] = &add(0x133 + e, name + "_REQ", 0);
    ack[e] = &add(0x145 + e, name + "_ACK", 0);
    noise(0x157 + 2 * e, name + "_ADDR_RANGE_LO32");
    noise(0x158 + 2 * e, name + "_ADDR_RANGE_HI32");
  }
}

HubRegisters::Window HubRegisters::frame_buffer() const {
  return {pair(fb_base_) << 24, (pair(fb_top_) << 24) | 0xFF'FFFF};
}

HubRegisters::Window HubRegisters::system_aperture() const {
  return {pair(aperture_low_) << 18, (pair(aperture_high_) << 18) | 0x3'FFFF};
}

HubRegisters::Window HubRegisters::agp() const {
  return {pair(agp_bot_) << 24, (pair(agp_top_) << 24) | 0xFF'FFFF};
}

std::uint64_t HubRegisters::agp_base() const { return pair(agp_base_) << 24; }

}  // namespace gpusim
