// Registers of one SDMA instance. First reading of docs/hardware/sdma.md, "Registers of an SDMA
// instance".
//
// An instance lies in its XCC's GC block; sdma::bases() gives its place. Registers of a queue are
// rows: index n is the queue.
#pragma once

#include <cstdint>

#include "base/register.h"
#include "daemon/gpu/registers/register_io.h"

namespace gpuumd::sdma {

inline constexpr unsigned kQueues = 10;                   // of an instance
inline constexpr std::uint32_t kQueueStride = 0x3C;       // dwords
inline constexpr std::uint32_t kInstanceStride0 = 0x600;  // in GC segment 0
inline constexpr std::uint32_t kInstanceStride1 = 0x30;   // in GC segment 1

// The bases for an instance's RegisterBlock from those that discovery gives for its XCC's GC.
constexpr RegisterBlock::Bases bases(unsigned instance, const RegisterBlock::Bases& gc) {
  RegisterBlock::Bases bases;
  bases.fill(RegisterBlock::kAbsent);
  bases[0] = gc[0] + instance * kInstanceStride0;
  bases[1] = gc[1] + instance * kInstanceStride1;
  return bases;
}

template <std::uint32_t Offset, base::Access Mode = base::Access::kReadWrite>
using QueueReg = base::Reg<0, Offset, Mode, kQueueStride>;

// The whole instance.

struct SDMA_CNTL : base::Reg<0, 0x00D> {
  using TRAP_ENABLE = base::Field<SDMA_CNTL, 0, 0, bool>;
  using PAGE_RETRY_TIMEOUT_INT_ENABLE = base::Field<SDMA_CNTL, 11, 11, bool>;
  using PAGE_NULL_INT_ENABLE = base::Field<SDMA_CNTL, 12, 12, bool>;
  using PAGE_FAULT_INT_ENABLE = base::Field<SDMA_CNTL, 13, 13, bool>;
  using CTXEMPTY_INT_ENABLE = base::Field<SDMA_CNTL, 28, 28, bool>;
};
struct STATUS : base::Reg<0, 0x024, base::Access::kReadOnly> {
  using IDLE = base::Field<STATUS, 0, 0, bool>;
};
struct FREEZE : base::Reg<0, 0x028> {};
struct WATCHDOG_CNTL : base::Reg<0, 0x02b> {
  using QUEUE_HANG_COUNT = base::Field<WATCHDOG_CNTL, 7, 0>;  // 100 ms each
};
struct ATOMIC_CNTL : base::Reg<0, 0x031> {
  using ATOMIC_RTN_INT_ENABLE = base::Field<ATOMIC_CNTL, 31, 31, bool>;
};
struct UTCL1_CNTL : base::Reg<0, 0x037> {
  using REDO_DELAY = base::Field<UTCL1_CNTL, 4, 0>;
  using RESP_MODE = base::Field<UTCL1_CNTL, 10, 9>;
};
struct UTCL1_TIMEOUT : base::Reg<0, 0x039> {};
struct UTCL1_PAGE : base::Reg<0, 0x03a> {};
// Write 1 << queue, poll until the bit reads 0.
struct QUEUE_RESET_REQ : base::Reg<0, 0x06c> {
  using QUEUES = base::Field<QUEUE_RESET_REQ, 9, 0>;
};
struct QUEUE_DEQUEUE_REQUEST : base::Reg<0, 0x06d> {};
struct MCU_CNTL : base::Reg<1, 0x588e> {
  using HALT = base::Field<MCU_CNTL, 0, 0, bool>;
  using RESET = base::Field<MCU_CNTL, 1, 1, bool>;
};

// One queue.

struct RB_CNTL : QueueReg<0x200> {
  using RB_ENABLE = base::Field<RB_CNTL, 0, 0, bool>;
  using RB_SIZE = base::Field<RB_CNTL, 5, 1>;  // log2 of dwords
  using WPTR_POLL_ENABLE = base::Field<RB_CNTL, 8, 8, bool>;
  using RB_SWAP_ENABLE = base::Field<RB_CNTL, 9, 9, bool>;
  using WPTR_POLL_SWAP_ENABLE = base::Field<RB_CNTL, 10, 10, bool>;
  using MCU_WPTR_POLL_ENABLE = base::Field<RB_CNTL, 11, 11, bool>;
  using RPTR_WRITEBACK_ENABLE = base::Field<RB_CNTL, 12, 12, bool>;
  using RPTR_WRITEBACK_SWAP_ENABLE = base::Field<RB_CNTL, 13, 13, bool>;
  using RPTR_WRITEBACK_TIMER = base::Field<RB_CNTL, 20, 16>;
  using RB_PRIV = base::Field<RB_CNTL, 23, 23, bool>;
  using RB_VMID = base::Field<RB_CNTL, 27, 24>;
};
struct RB_BASE : QueueReg<0x201> {};  // address >> 8
struct RB_BASE_HI : QueueReg<0x202> {
  using ADDR = base::Field<RB_BASE_HI, 23, 0>;  // address >> 40
};
// Free-running byte counts of 64 bits; the place in the ring is the count modulo its size.
struct RB_RPTR : QueueReg<0x203> {};
struct RB_RPTR_HI : QueueReg<0x204> {};
struct RB_WPTR : QueueReg<0x205> {};
struct RB_WPTR_HI : QueueReg<0x206> {};
struct RB_RPTR_ADDR_LO : QueueReg<0x207> {};
struct RB_RPTR_ADDR_HI : QueueReg<0x208> {};
struct IB_CNTL : QueueReg<0x209> {
  using IB_ENABLE = base::Field<IB_CNTL, 0, 0, bool>;
  using IB_SWAP_ENABLE = base::Field<IB_CNTL, 4, 4, bool>;
  using SWITCH_INSIDE_IB = base::Field<IB_CNTL, 8, 8, bool>;
  using CMD_VMID = base::Field<IB_CNTL, 19, 16>;
  using IB_PRIV = base::Field<IB_CNTL, 31, 31, bool>;
};
struct IB_RPTR : QueueReg<0x20a> {};
struct IB_OFFSET : QueueReg<0x20b> {};
struct IB_BASE_LO : QueueReg<0x20c> {};
struct IB_BASE_HI : QueueReg<0x20d> {};
struct IB_SIZE : QueueReg<0x20e> {
  using SIZE = base::Field<IB_SIZE, 19, 0>;
};
struct DOORBELL : QueueReg<0x20f> {
  using ENABLE = base::Field<DOORBELL, 28, 28, bool>;
  using CAPTURED = base::Field<DOORBELL, 30, 30, bool>;
};
struct DOORBELL_LOG : QueueReg<0x210> {};
struct DOORBELL_OFFSET : QueueReg<0x211> {
  using OFFSET = base::Field<DOORBELL_OFFSET, 27, 2>;  // dword index in the doorbell BAR
};
struct CSA_ADDR_LO : QueueReg<0x212> {};
struct CSA_ADDR_HI : QueueReg<0x213> {};
struct SCHEDULE_CNTL : QueueReg<0x214> {};
struct IB_SUB_REMAIN : QueueReg<0x215> {};
struct PREEMPT : QueueReg<0x216> {};
struct DUMMY_REG : QueueReg<0x217> {};
struct RB_WPTR_POLL_ADDR_LO : QueueReg<0x218> {};
struct RB_WPTR_POLL_ADDR_HI : QueueReg<0x219> {};
struct RB_AQL_CNTL : QueueReg<0x21a> {};
struct MINOR_PTR_UPDATE : QueueReg<0x21b> {
  using ENABLE = base::Field<MINOR_PTR_UPDATE, 0, 0, bool>;
};
struct CONTEXT_SWITCH_STATUS : QueueReg<0x21e> {};
struct MQD_BASE_LO : QueueReg<0x22e> {};
struct MQD_BASE_HI : QueueReg<0x22f> {};
struct MQD_CONTROL : QueueReg<0x230> {};
struct CONTEXT_STATUS : QueueReg<0x231> {};

}  // namespace gpuumd::sdma
