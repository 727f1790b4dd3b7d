// Registers of LSDMA, the small copy engine driven by register writes. First reading of
// docs/hardware/sdma.md, "LSDMA".
#pragma once

#include <cstdint>

#include "base/register.h"

namespace gpuumd::lsdma {

inline constexpr std::uint32_t kMaxBytes = (1u << 26) - 1;  // of one command

struct PIO_SRC_ADDR_LO : base::Reg<0, 0x80> {};
struct PIO_SRC_ADDR_HI : base::Reg<0, 0x81> {};
struct PIO_DST_ADDR_LO : base::Reg<0, 0x82> {};
struct PIO_DST_ADDR_HI : base::Reg<0, 0x83> {};

// Writing it starts the job.
struct PIO_COMMAND : base::Reg<0, 0x84> {
  using BYTE_COUNT = base::Field<PIO_COMMAND, 25, 0>;  // the count itself, not minus one
  using RAW_WAIT = base::Field<PIO_COMMAND, 30, 30, bool>;
  using CONSTANT_FILL = base::Field<PIO_COMMAND, 31, 31, bool>;
};
struct PIO_CONSTFILL_DATA : base::Reg<0, 0x85> {};

// 0: both sides are addresses of VMID 0.
struct PIO_CONTROL : base::Reg<0, 0x86> {
  using VMID = base::Field<PIO_CONTROL, 3, 0>;
  using DST_GPA = base::Field<PIO_CONTROL, 4, 4, bool>;
  using DST_SYS = base::Field<PIO_CONTROL, 5, 5, bool>;
  using DST_GCC = base::Field<PIO_CONTROL, 6, 6, bool>;
  using DST_SNOOP = base::Field<PIO_CONTROL, 7, 7, bool>;
  using DST_REUSE_HINT = base::Field<PIO_CONTROL, 9, 8>;
  using DST_COMP_EN = base::Field<PIO_CONTROL, 10, 10, bool>;
  using SRC_GPA = base::Field<PIO_CONTROL, 20, 20, bool>;
  using SRC_SYS = base::Field<PIO_CONTROL, 21, 21, bool>;
  using SRC_SNOOP = base::Field<PIO_CONTROL, 23, 23, bool>;
  using SRC_REUSE_HINT = base::Field<PIO_CONTROL, 25, 24>;
  using SRC_COMP_EN = base::Field<PIO_CONTROL, 26, 26, bool>;
};

// The error bits are cleared by writing them as ones; the others ignore writes.
struct PIO_STATUS : base::Reg<0, 0x8a, base::Access::kWriteOneToClear> {
  using CMD_IN_FIFO = base::Field<PIO_STATUS, 2, 0>;
  using CMD_PROCESSING = base::Field<PIO_STATUS, 9, 3>;
  using ERROR_INVALID_ADDR = base::Field<PIO_STATUS, 11, 11, bool>;
  using ERROR_ZERO_COUNT = base::Field<PIO_STATUS, 12, 12, bool>;
  using ERROR_DRAM_ECC = base::Field<PIO_STATUS, 13, 13, bool>;
  using ERROR_SRAM_ECC = base::Field<PIO_STATUS, 14, 14, bool>;
  using ERROR_WRRET_NACK_GEN_ERR = base::Field<PIO_STATUS, 15, 15, bool>;
  using ERROR_RDRET_NACK_GEN_ERR = base::Field<PIO_STATUS, 16, 16, bool>;
  using ERROR_WRRET_NACK_PRT = base::Field<PIO_STATUS, 17, 17, bool>;
  using ERROR_RDRET_NACK_PRT = base::Field<PIO_STATUS, 18, 18, bool>;
  using ERROR_REQ_DROP = base::Field<PIO_STATUS, 19, 19, bool>;
  using FIFO_EMPTY = base::Field<PIO_STATUS, 28, 28, bool>;
  using FIFO_FULL = base::Field<PIO_STATUS, 29, 29, bool>;
  using IDLE = base::Field<PIO_STATUS, 31, 31, bool>;

  // All of them (docs/hardware/errata.md A25), bits 19:11.
  static constexpr std::uint32_t kErrors = 0x000FF800;
};

}  // namespace gpuumd::lsdma
