#include "tools/gpusim/model/sdma_registers.h"

#include <string>

#include "tools/gpusim/model/reset_noise.h"

namespace gpusim {
namespace {

constexpr std::uint32_t kInstanceStride = 0x600, kQueueStride = 0x3C, kInstanceStride1 = 0x30;

// Adds the registers of one block of an instance, by their offsets for instance 0.
class Adder {
 public:
  Adder(RegisterFile& file, std::string prefix, std::uint32_t at, std::uint64_t seed)
      : file_(file), prefix_(std::move(prefix)), at_(at), seed_(seed) {}

  RegisterFile::Register* with_reset(std::uint32_t offset, const char* name, std::uint32_t reset) {
    return &file_.define(at_ + offset, prefix_ + name, reset);
  }
  RegisterFile::Register* unused(std::uint32_t offset, const char* name) {
    return &define_unused(file_, seed_, at_ + offset, prefix_ + name);
  }
  SdmaQueueRegisters::Pair pair(std::uint32_t offset, const char* name) {
    return {unused(offset, name), unused(offset + 1, (std::string(name) + "_HI").c_str())};
  }

 private:
  RegisterFile& file_;
  std::string prefix_;
  std::uint32_t at_;
  std::uint64_t seed_;
};

SdmaQueueRegisters add_queue(Adder add) {
  SdmaQueueRegisters q;
  q.rb_cntl = add.with_reset(0x200, "RB_CNTL", 0);
  q.rb_base = add.pair(0x201, "RB_BASE");
  q.rptr = add.pair(0x203, "RB_RPTR");
  q.wptr = add.pair(0x205, "RB_WPTR");
  q.rptr_addr = add.pair(0x207, "RB_RPTR_ADDR");
  q.ib_cntl = add.with_reset(0x209, "IB_CNTL", 0x100);
  add.unused(0x20A, "IB_RPTR");
  add.unused(0x20B, "IB_OFFSET");
  q.ib_base = add.pair(0x20C, "IB_BASE");
  q.ib_size = add.unused(0x20E, "IB_SIZE");
  q.doorbell = add.with_reset(0x20F, "DOORBELL", 0);
  add.unused(0x210, "DOORBELL_LOG");
  q.doorbell_offset = add.unused(0x211, "DOORBELL_OFFSET");
  add.pair(0x212, "CSA_ADDR");
  add.unused(0x214, "SCHEDULE_CNTL");
  add.unused(0x215, "IB_SUB_REMAIN");
  add.with_reset(0x216, "PREEMPT", 0);
  add.unused(0x217, "DUMMY_REG");
  q.wptr_poll_addr = add.pair(0x218, "RB_WPTR_POLL_ADDR");
  add.unused(0x21A, "RB_AQL_CNTL");
  q.minor_ptr_update = add.with_reset(0x21B, "MINOR_PTR_UPDATE", 0);
  add.with_reset(0x21E, "CONTEXT_SWITCH_STATUS", 0);
  add.pair(0x22E, "MQD_BASE_ADDR");
  add.unused(0x230, "MQD_CONTROL");
  add.with_reset(0x231, "CONTEXT_STATUS", 0);
  return q;
}

}  // namespace

SdmaRegisters::SdmaRegisters(RegisterFile& file, unsigned xcc, unsigned instance, std::uint32_t gc0,
                             std::uint32_t gc1, std::uint64_t seed) {
  const std::string prefix = "XCC" + std::to_string(xcc) + ".SDMA" + std::to_string(instance) + ".";
  const std::uint32_t block = gc0 + instance * kInstanceStride;
  Adder add(file, prefix, block, seed);
  cntl = add.with_reset(0x00D, "SDMA_CNTL", 0);
  status = add.with_reset(0x024, "STATUS", 0);
  add.with_reset(0x028, "FREEZE", 0);
  add.unused(0x02B, "WATCHDOG_CNTL");
  atomic_cntl = add.with_reset(0x031, "ATOMIC_CNTL", 0);
  add.unused(0x037, "UTCL1_CNTL");
  add.unused(0x039, "UTCL1_TIMEOUT");
  add.unused(0x03A, "UTCL1_PAGE");
  queue_reset_req = add.with_reset(0x06C, "QUEUE_RESET_REQ", 0);
  add.with_reset(0x06D, "QUEUE_DEQUEUE_REQUEST", 0);
  for (unsigned q = 0; q < kQueues; ++q) {
    queues[q] = add_queue(
        Adder(file, prefix + "QUEUE" + std::to_string(q) + ".", block + q * kQueueStride, seed));
  }
  // Halted: the security processor has loaded the microcode, the driver lets it go (D33).
  mcu_cntl = Adder(file, prefix, gc1 + instance * kInstanceStride1, seed)
                 .with_reset(0x588E, "MCU_CNTL", 1);
}

}  // namespace gpusim
