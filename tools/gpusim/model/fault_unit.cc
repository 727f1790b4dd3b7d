#include "tools/gpusim/model/fault_unit.h"

namespace gpusim {
namespace {

constexpr std::uint8_t kClientVmc = 0x12, kClientGcUtcl2 = 0x1B;
constexpr std::uint32_t kCntlClear = 1u << 0, kCntlLaterUpdates = 1u << 1;
constexpr std::uint32_t kCntl2EnableRetryInterrupt = 1u << 19;
constexpr std::uint32_t kIvWrite = 1u << 21, kIvRead = 1u << 22;

bool writes(AccessType type) { return type != AccessType::kRead; }
bool reads(AccessType type) { return type != AccessType::kWrite; }

}  // namespace

FaultUnit::FaultUnit(HubRegisters& registers, const BlockContext& context,
                     const VmHubConfig& config)
    : registers_(registers), context_(context), config_(config) {
  registers_.fault_cntl_lo->on_write = [this](std::uint32_t written, std::uint32_t) {
    if ((written & kCntlClear) != 0) clear_status();
    return written & ~kCntlClear;
  };
}

void FaultUnit::clear_status() {
  for (HubRegisters::Register* word : {registers_.fault_status_lo, registers_.fault_status_hi,
                                       registers_.fault_addr.lo, registers_.fault_addr.hi})
    word->stored = 0;
}

void FaultUnit::bus_error() {
  registers_.fault_status_hi->stored |= static_cast<std::uint32_t>(FAULT_STATUS_HI::UCE::kMask);
}

bool FaultUnit::retries(std::uint8_t vmid, const FaultCause& cause) const {
  if (vmid == 0 || cause.never_retried) return false;
  const auto cntl = registers_.context_cntl(vmid);
  return cause.retryable ? cntl.get<CONTEXT_CNTL::RETRY_PERMISSION_OR_INVALID_PAGE_FAULT>()
                         : cntl.get<CONTEXT_CNTL::RETRY_OTHER_FAULT>();
}

Iv FaultUnit::vector(const Requester& who, std::uint64_t va, AccessType type, bool retry) const {
  Iv iv;
  iv.client = config_.mmhub ? kClientVmc : kClientGcUtcl2;
  iv.source = retry ? 1 : 0;
  iv.vmid = who.vmid;
  iv.vmid_src_mmhub = config_.mmhub;
  iv.pasid = context_.interrupts.pasid(config_.mmhub, who.vmid);
  iv.node_id = config_.node_id;
  iv.src_data[0] = static_cast<std::uint32_t>(va >> 12);
  iv.src_data[1] = static_cast<std::uint32_t>(va >> 44) & 0x1FFF;
  if (writes(type)) iv.src_data[1] |= kIvWrite;
  if (reads(type)) iv.src_data[1] |= kIvRead;
  return iv;
}

void FaultUnit::latch(const Requester& who, std::uint64_t va, AccessType type,
                      const FaultCause& cause) {
  std::uint32_t& word = registers_.fault_status_lo->stored;
  base::Value<FAULT_STATUS_LO> status(word);
  const bool later_updates = (registers_.fault_cntl_lo->stored & kCntlLaterUpdates) != 0;
  if (word != 0 && !later_updates) {
    word = status.with<FAULT_STATUS_LO::MORE_FAULTS>(true).raw();
    return;
  }
  unsigned permissions = cause.permissions | (cause.not_valid ? 1u : 0u);
  if (!cause.rights) {
    if (reads(type)) permissions |= 2;
    if (writes(type)) permissions |= 4;
  }
  const bool more = word != 0;
  word = base::Value<FAULT_STATUS_LO>()
             .with<FAULT_STATUS_LO::MORE_FAULTS>(more)
             .with<FAULT_STATUS_LO::WALKER_ERROR>(cause.walker_error)
             .with<FAULT_STATUS_LO::PERMISSION_FAULTS>(permissions)
             .with<FAULT_STATUS_LO::MAPPING_ERROR>(cause.mapping_error)
             .with<FAULT_STATUS_LO::CID>(writes(type) ? who.cid_write : who.cid_read)
             .with<FAULT_STATUS_LO::RW>(writes(type))
             .with<FAULT_STATUS_LO::ATOMIC>(type == AccessType::kAtomic)
             .with<FAULT_STATUS_LO::VMID>(who.vmid)
             .raw();
  if (cause.remote_or_prt)
    registers_.fault_status_hi->stored |= static_cast<std::uint32_t>(FAULT_STATUS_HI::PRT::kMask);
  registers_.fault_addr.lo->stored = static_cast<std::uint32_t>(va >> 12);
  registers_.fault_addr.hi->stored = static_cast<std::uint32_t>(va >> 44) & 0x1FFF;
}

FaultUnit::Verdict FaultUnit::raise(const Requester& who, std::uint64_t va, AccessType type,
                                    const FaultCause& cause, bool final) {
  if (!final && retries(who.vmid, cause)) {
    if ((registers_.fault_cntl2->stored & kCntl2EnableRetryInterrupt) != 0)
      context_.interrupts.raise_retry_fault(config_.index, va >> 12, vector(who, va, type, true));
    return Verdict::kRetry;
  }
  latch(who, va, type, cause);
  const std::uint32_t cntl = registers_.context_cntl(who.vmid).raw();
  if (((cntl >> cause.interrupt_bit) & 1) != 0)
    context_.interrupts.raise(vector(who, va, type, false));
  const bool to_default = ((cntl >> (cause.interrupt_bit + 1)) & 1) != 0 &&
                          ((registers_.fault_cntl_lo->stored >> cause.default_bit) & 1) != 0;
  return to_default && !final ? Verdict::kDefaultPage : Verdict::kNack;
}

}  // namespace gpusim
