// Registers and packet fields of one SDMA instance (docs/hardware/sdma.md).
#pragma once

#include <array>
#include <cstdint>

#include "base/register.h"
#include "tools/gpusim/model/register_file.h"

namespace gpusim {

struct RB_CNTL : base::Record<std::uint32_t> {
  using RB_ENABLE = base::Field<RB_CNTL, 0, 0, bool>;
  using RB_SIZE = base::Field<RB_CNTL, 5, 1, unsigned>;  // log2(dwords)
  using WPTR_POLL_ENABLE = base::Field<RB_CNTL, 8, 8, bool>;
  using MCU_WPTR_POLL_ENABLE = base::Field<RB_CNTL, 11, 11, bool>;
  using RPTR_WRITEBACK_ENABLE = base::Field<RB_CNTL, 12, 12, bool>;
  using RB_PRIV = base::Field<RB_CNTL, 23, 23, bool>;
  using RB_VMID = base::Field<RB_CNTL, 27, 24, std::uint8_t>;
};

struct IB_CNTL : base::Record<std::uint32_t> {
  using IB_ENABLE = base::Field<IB_CNTL, 0, 0, bool>;
  using IB_PRIV = base::Field<IB_CNTL, 31, 31, bool>;
};

struct SDMA_DOORBELL : base::Record<std::uint32_t> {
  using ENABLE = base::Field<SDMA_DOORBELL, 28, 28, bool>;
  using CAPTURED = base::Field<SDMA_DOORBELL, 30, 30, bool>;
};

struct SDMA_DOORBELL_OFFSET : base::Record<std::uint32_t> {
  using OFFSET = base::Field<SDMA_DOORBELL_OFFSET, 27, 2, std::uint32_t>;  // doorbell dword
};

struct SDMA_CNTL : base::Record<std::uint32_t> {
  using TRAP_ENABLE = base::Field<SDMA_CNTL, 0, 0, bool>;
  using PAGE_RETRY_TIMEOUT_INT = base::Field<SDMA_CNTL, 11, 11, bool>;
  using PAGE_NULL_INT = base::Field<SDMA_CNTL, 12, 12, bool>;
  using PAGE_FAULT_INT = base::Field<SDMA_CNTL, 13, 13, bool>;
  using CTXEMPTY_INT = base::Field<SDMA_CNTL, 28, 28, bool>;
};

struct MCU_CNTL : base::Record<std::uint32_t> {
  using HALT = base::Field<MCU_CNTL, 0, 0, bool>;
  using RESET = base::Field<MCU_CNTL, 1, 1, bool>;
};

struct SdmaQueueRegisters {
  using Register = RegisterFile::Register;
  struct Pair {
    Register* lo = nullptr;
    Register* hi = nullptr;
    std::uint64_t get() const { return (std::uint64_t{hi->stored} << 32) | lo->stored; }
    void set(std::uint64_t value) const {
      lo->stored = static_cast<std::uint32_t>(value);
      hi->stored = static_cast<std::uint32_t>(value >> 32);
    }
  };
  Register* rb_cntl = nullptr;
  Pair rb_base, rptr, wptr, rptr_addr, wptr_poll_addr;
  Register* ib_cntl = nullptr;
  Pair ib_base;
  Register* ib_size = nullptr;
  Register* doorbell = nullptr;
  Register* doorbell_offset = nullptr;
  Register* minor_ptr_update = nullptr;

  base::Value<RB_CNTL> control() const { return base::Value<RB_CNTL>(rb_cntl->stored); }
};

struct SdmaRegisters {
  using Register = RegisterFile::Register;
  static constexpr unsigned kQueues = 10;

  // `gc0` and `gc1`: absolute dwords of the XCC's GC segments.
  SdmaRegisters(RegisterFile& file, unsigned xcc, unsigned instance, std::uint32_t gc0,
                std::uint32_t gc1, std::uint64_t seed);

  Register* cntl = nullptr;
  Register* status = nullptr;
  Register* atomic_cntl = nullptr;
  Register* queue_reset_req = nullptr;
  Register* mcu_cntl = nullptr;
  std::array<SdmaQueueRegisters, kQueues> queues;

  base::Value<SDMA_CNTL> control() const { return base::Value<SDMA_CNTL>(cntl->stored); }
  bool running() const { return (mcu_cntl->stored & 3) == 0; }
};

}  // namespace gpusim
