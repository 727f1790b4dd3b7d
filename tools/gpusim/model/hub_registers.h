// The registers of one hub (docs/hardware/vmhub.md), GFXHUB and MMHUB alike but for their offsets.
#pragma once

#include <array>
#include <cstdint>

#include "base/register.h"
#include "tools/gpusim/model/register_file.h"

namespace gpusim {

struct CONTEXT_CNTL : base::Record<std::uint32_t> {
  using ENABLE_CONTEXT = base::Field<CONTEXT_CNTL, 0, 0, bool>;
  using PAGE_TABLE_DEPTH = base::Field<CONTEXT_CNTL, 3, 1, unsigned>;
  using PAGE_TABLE_BLOCK_SIZE = base::Field<CONTEXT_CNTL, 7, 4, unsigned>;
  using RETRY_PERMISSION_OR_INVALID_PAGE_FAULT = base::Field<CONTEXT_CNTL, 8, 8, bool>;
  using RETRY_OTHER_FAULT = base::Field<CONTEXT_CNTL, 9, 9, bool>;
};

struct INVALIDATE_REQ : base::Record<std::uint32_t> {
  using PER_VMID = base::Field<INVALIDATE_REQ, 15, 0, std::uint16_t>;
  using FLUSH_TYPE = base::Field<INVALIDATE_REQ, 18, 16, unsigned>;
  using L2_PTES = base::Field<INVALIDATE_REQ, 19, 19, bool>;
  using L2_PDE0 = base::Field<INVALIDATE_REQ, 20, 20, bool>;
  using L2_PDE1 = base::Field<INVALIDATE_REQ, 21, 21, bool>;
  using L2_PDE2 = base::Field<INVALIDATE_REQ, 22, 22, bool>;
  using L1_PTES = base::Field<INVALIDATE_REQ, 23, 23, bool>;
  using CLEAR_FAULT_STATUS = base::Field<INVALIDATE_REQ, 24, 24, bool>;
  using ONLY_4K_PAGES = base::Field<INVALIDATE_REQ, 26, 26, bool>;
  using L2_PDE3 = base::Field<INVALIDATE_REQ, 27, 27, bool>;
  static constexpr unsigned kHeavy = 2;
};

struct FAULT_STATUS_LO : base::Record<std::uint32_t> {
  using MORE_FAULTS = base::Field<FAULT_STATUS_LO, 0, 0, bool>;
  using WALKER_ERROR = base::Field<FAULT_STATUS_LO, 4, 1, unsigned>;
  using PERMISSION_FAULTS = base::Field<FAULT_STATUS_LO, 9, 5, unsigned>;
  using MAPPING_ERROR = base::Field<FAULT_STATUS_LO, 10, 10, bool>;
  using CID = base::Field<FAULT_STATUS_LO, 19, 11, unsigned>;
  using RW = base::Field<FAULT_STATUS_LO, 20, 20, bool>;
  using ATOMIC = base::Field<FAULT_STATUS_LO, 21, 21, bool>;
  using VMID = base::Field<FAULT_STATUS_LO, 25, 22, unsigned>;
};

struct FAULT_STATUS_HI : base::Record<std::uint32_t> {
  using PRT = base::Field<FAULT_STATUS_HI, 0, 0, bool>;
  using UCE = base::Field<FAULT_STATUS_HI, 1, 1, bool>;
};

// Reset values are those of the manual where it names one, 0 where a bit would start something, and
// noise elsewhere.
class HubRegisters {
 public:
  using Register = RegisterFile::Register;
  static constexpr unsigned kVmids = 16;
  static constexpr unsigned kEngines = 18;

  struct Config {
    bool mmhub;
    unsigned index;
    std::uint32_t base;
    std::uint64_t fb_base;  // bytes
    std::uint64_t fb_top;   // bytes, the last one
    std::uint32_t fb_offset;
    std::uint64_t seed;
  };
  HubRegisters(RegisterFile& file, const Config& config);

  base::Value<CONTEXT_CNTL> context_cntl(unsigned vmid) const {
    return base::Value<CONTEXT_CNTL>(context_cntl_[vmid]->stored);
  }
  bool context_enabled(unsigned vmid) const {
    return context_cntl(vmid).get<CONTEXT_CNTL::ENABLE_CONTEXT>() &&
           ((contexts_disable->stored >> vmid) & 1) == 0;
  }
  std::uint64_t root(unsigned vmid) const { return pair(page_table_base_[vmid]); }
  // First and last page number of the context.
  std::uint64_t start_page(unsigned vmid) const { return pair(page_table_start_[vmid]); }
  std::uint64_t end_page(unsigned vmid) const { return pair(page_table_end_[vmid]); }

  struct Window {
    std::uint64_t low, high;  // bytes, `high` is the last one
    bool holds(std::uint64_t at) const { return low <= at && at <= high; }
  };
  Window frame_buffer() const;
  Window system_aperture() const;
  Window agp() const;
  std::uint64_t agp_base() const;  // bus address behind the first byte of the AGP window
  std::uint64_t fault_default() const { return pair(fault_default_addr) << 12; }  // physical

  struct Pair {
    Register* lo = nullptr;
    Register* hi = nullptr;
  };
  static std::uint64_t pair(const Pair& at) {
    return (std::uint64_t{at.hi->stored} << 32) | at.lo->stored;
  }

  Register* contexts_disable = nullptr;
  Register* fault_cntl_lo = nullptr;
  Register* fault_cntl2 = nullptr;
  Register* fault_status_lo = nullptr;
  Register* fault_status_hi = nullptr;
  Pair fault_addr;
  Pair fault_default_addr;
  std::array<Register*, kEngines> sem{};
  std::array<Register*, kEngines> req{};
  std::array<Register*, kEngines> ack{};

 private:
  // Offset of a row of the MMHUB table in this hub.
  std::uint32_t offset(std::uint32_t row) const;
  Register& add(std::uint32_t row, const std::string& name, std::uint32_t reset);
  Register& noise(std::uint32_t row, const std::string& name);
  Pair add_pair(std::uint32_t row, const std::string& name);
  Pair read_only_pair(std::uint32_t row, const std::string& name, std::uint64_t value);
  void add_control();
  void add_faults();
  void add_apertures();
  void add_contexts();
  void add_invalidation();

  RegisterFile& file_;
  Config config_;
  std::string prefix_;
  Pair fb_base_, fb_top_, agp_top_, agp_bot_, agp_base_, aperture_low_, aperture_high_;
  std::array<Register*, kVmids> context_cntl_{};
  std::array<Pair, kVmids> page_table_base_{};
  std::array<Pair, kVmids> page_table_start_{};
  std::array<Pair, kVmids> page_table_end_{};
};

}  // namespace gpusim
