#include "tools/gpusim/model/vm_hub.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>
#include <optional>
#include <string>

#include "base/bytes.h"
#include "tools/gpusim/model/fault_unit.h"
#include "tools/gpusim/model/invalidation.h"
#include "tools/gpusim/model/vm_hub_impl.h"

namespace gpusim {

VmHub::Impl::Impl(const VmHubConfig& hub_config, const BlockContext& block_context, Vram& memory)
    : config(hub_config),
      context(block_context),
      vram(memory),
      registers(block_context.registers,
                {hub_config.mmhub, hub_config.index, hub_config.base, hub_config.fb_base,
                 hub_config.fb_base + memory.size() - 1, hub_config.fb_offset, block_context.seed}),
      cache([this](const Leaf& leaf) { dropped(leaf); }),
      walker(registers, cache, memory, context.bus, std::uint64_t{hub_config.fb_offset} << 24),
      faults(registers, context, config),
      invalidation(registers, context, hub_config.mmhub, cache, counters,
                   [this] { faults.clear_status(); }),
      memory_access(context, memory, counters, error, [this] { faults.bus_error(); }) {
  add_scenario();
}

base::Result<ScenarioValues> VmHub::Impl::mislead(const ScenarioValues& arguments) {
  const auto count = arguments.number_or("count", 1);
  if (!count) return std::unexpected(count.error());
  const auto add = arguments.number_or("add", 0);
  if (!add) return std::unexpected(add.error());
  std::optional<std::uint64_t> page;
  if (arguments.text("to")) {
    const auto to = arguments.number("to");
    if (!to) return std::unexpected(to.error());
    page = base::align_down(*to, base::kPageSize);
  } else if (*add == 0) {
    return base::fail(base::Errc::kInvalidArgument, "argument \"add\" or \"to\" is needed");
  }
  memory_access.mislead(*add, page, *count);
  return ScenarioValues();
}

void VmHub::Impl::add_scenario() {
  if (context.hooks == nullptr) return;
  const std::string name = config.mmhub ? "mmhub" + std::to_string(config.index - 8)
                                        : "gfxhub" + std::to_string(config.index);
  context.hooks->add(context.gpu, name + ".late_ack",
                     "us, count: the next flushes are acknowledged late",
                     [this](const ScenarioValues& arguments) -> base::Result<ScenarioValues> {
                       const auto us = arguments.number("us");
                       if (!us) return std::unexpected(us.error());
                       const auto count = arguments.number_or("count", 1);
                       if (!count) return std::unexpected(count.error());
                       invalidation.delay_acks(std::chrono::microseconds(*us), *count);
                       return ScenarioValues();
                     });
  context.hooks->add(context.gpu, name + ".wrong_iova",
                     "add or to, count: the next bus accesses go to IOVA + add, or to that page",
                     [this](const ScenarioValues& arguments) { return mislead(arguments); });
}

// --- poison ---

namespace {

// The part of a leaf that lies in VRAM: a wrong FRAGMENT can reach beyond either end.
struct Extent {
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

Extent vram_extent(const Leaf& leaf, std::uint64_t vram_bytes) {
  const std::uint64_t bytes = leaf.pages() * base::kPageSize;
  if (base::fits(leaf.address, bytes, vram_bytes)) return {leaf.address, bytes};
  if (leaf.address < vram_bytes) return {leaf.address, vram_bytes - leaf.address};
  const std::uint64_t below = std::uint64_t{0} - leaf.address;
  if (below >= bytes) return {};
  return {0, std::min(bytes - below, vram_bytes)};
}

}  // namespace

void VmHub::Impl::referenced(std::uint8_t vmid, Leaf& leaf) {
  // The driver's own tables are nobody's, whatever the PASID tables say at reset.
  const bool drivers = vmid == 0 || (config.mmhub && vmid == kNpaVmid);
  leaf.owner = drivers ? 0 : context.interrupts.pasid(config.mmhub, vmid);
  if (leaf.kind != Leaf::Kind::kVram) return;
  const Extent extent = vram_extent(leaf, vram.size());
  leaf.poison = vram.poisoned(extent.offset, extent.bytes, leaf.owner);
  vram.reference(extent.offset, extent.bytes);
}

void VmHub::Impl::dropped(const Leaf& leaf) {
  if (leaf.kind != Leaf::Kind::kVram) return;
  const Extent extent = vram_extent(leaf, vram.size());
  const bool gone = vram.poisons() && !resetting && leaf.owner != 0 && !walker.still_there(leaf);
  vram.unreference(extent.offset, extent.bytes, gone, leaf.owner);
}

// --- translation ---

// VMID 0's windows, in the order of D10; anything else goes to its table.
bool VmHub::Impl::aperture(std::uint64_t va, std::uint64_t bytes, Run& run) const {
  const auto fb = registers.frame_buffer();
  if (fb.holds(va) && registers.system_aperture().holds(va)) {
    const std::uint64_t offset = va - fb.low;
    if (offset >= vram.size()) return false;
    run = {Run::Kind::kVram, offset, std::min(bytes, vram.size() - offset), 0};
    return true;
  }
  const std::uint64_t page = va >> 12;
  if (registers.context_enabled(0) && page >= registers.start_page(0) &&
      page <= registers.end_page(0))
    return false;
  const auto agp = registers.agp();
  if (!agp.holds(va)) return false;
  run = {Run::Kind::kSystem, registers.agp_base() + (va - agp.low),
         std::min(bytes, agp.high - va + 1), 0};
  return true;
}

Outcome VmHub::Impl::fault(const Requester& who, std::uint64_t va, std::uint64_t bytes,
                           AccessType type, const FaultCause& cause, bool incoming, Run& run) {
  error = {};
  error.remote_or_prt = cause.remote_or_prt;
  switch (faults.raise(who, va, type, cause, incoming)) {
    case FaultUnit::Verdict::kRetry:
      ++counters.retries;
      return Outcome::kRetry;
    case FaultUnit::Verdict::kNack:
      ++counters.faults;
      return Outcome::kFault;
    case FaultUnit::Verdict::kDefaultPage:
      break;
  }
  ++counters.faults;
  const std::uint64_t in_page = va % base::kPageSize;
  std::uint64_t offset = 0;
  const bool exists = walker.to_vram(registers.fault_default(), offset);
  run = {exists ? Run::Kind::kDefault : Run::Kind::kZero, offset + in_page,
         std::min(bytes, base::kPageSize - in_page), 0};
  return Outcome::kOk;
}

// The cached or walked leaf over `va`; null when the walk ended otherwise, with `outcome` set, and
// `run` when that is kOk all the same.
const Leaf* VmHub::Impl::find_leaf(const Requester& who, std::uint64_t va, std::uint64_t bytes,
                                   AccessType type, bool incoming, Run& run, Outcome& outcome) {
  const std::uint64_t page = va >> 12;
  if (page < registers.start_page(who.vmid) || page > registers.end_page(who.vmid) ||
      !registers.context_enabled(who.vmid)) {
    outcome = fault(who, va, bytes, type, FaultCause::range(), incoming, run);
    return nullptr;
  }
  if (const Leaf* known = cache.find(who.vmid, page)) {
    ++counters.hits;
    return known;
  }
  ++counters.walks;
  Walk walk = walker.walk(who.vmid, page);
  switch (walk.kind) {
    case Walk::Kind::kLeaf:
      referenced(who.vmid, walk.leaf);
      return cache.insert(who.vmid, walk.leaf);
    case Walk::Kind::kSparse: {
      const std::uint64_t span = base::kPageSize << walk.leaf.span_log2;
      run = {Run::Kind::kZero, 0, std::min(bytes, span - va % span), 0};
      outcome = Outcome::kOk;
      return nullptr;
    }
    case Walk::Kind::kBusError:
      memory_access.bus_failed(who, walk.iova, sizeof(std::uint64_t), false);
      outcome = Outcome::kBusError;
      return nullptr;
    case Walk::Kind::kFault:
      outcome = fault(who, va, bytes, type, walk.cause, incoming, run);
      return nullptr;
  }
  return nullptr;
}

namespace {

// What of an access the leaf does not allow.
std::optional<FaultCause> denied(const Leaf& leaf, AccessType type) {
  const bool no_read = type != AccessType::kWrite && !leaf.readable;
  const bool no_write = type != AccessType::kRead && !leaf.writeable;
  // Atomics on memory that is not local need the B bit.
  const bool no_atomic =
      type == AccessType::kAtomic && leaf.kind != Leaf::Kind::kVram && !leaf.bus_atomics;
  if (!no_read && !no_write && !no_atomic) return std::nullopt;
  FaultCause cause = FaultCause::right(no_write || no_atomic);
  cause.remote_or_prt = leaf.kind == Leaf::Kind::kRemote;
  return cause;
}

}  // namespace

// Where `va` lies under the leaf. False outside VRAM.
bool VmHub::Impl::place(const Leaf& leaf, std::uint64_t va, std::uint64_t bytes, Run& run) const {
  const std::uint64_t into = va - (leaf.first_page << 12);
  run.address = leaf.address + into;
  run.bytes = std::min(bytes, (leaf.pages() << 12) - into);
  run.poison_reader = leaf.poison ? leaf.owner : 0;
  switch (leaf.kind) {
    case Leaf::Kind::kVram:
      run.kind = Run::Kind::kVram;
      if (run.address >= vram.size()) return false;
      run.bytes = std::min(run.bytes, vram.size() - run.address);
      return true;
    case Leaf::Kind::kSystem:
      run.kind = Run::Kind::kSystem;
      return true;
    case Leaf::Kind::kRemote:
      run.kind = Run::Kind::kRemote;
      return true;
  }
  return false;
}

Outcome VmHub::Impl::translate(const Requester& who, std::uint64_t va, std::uint64_t bytes,
                               AccessType type, bool incoming, Run& run) {
  assert(who.vmid < HubRegisters::kVmids && bytes != 0);
  if (who.vmid == 0 && aperture(va, bytes, run)) return Outcome::kOk;
  Outcome outcome = Outcome::kOk;
  const Leaf* leaf = find_leaf(who, va, bytes, type, incoming, run, outcome);
  if (leaf == nullptr) return outcome;

  if (const auto cause = denied(*leaf, type))
    return fault(who, va, bytes, type, *cause, incoming, run);
  if (incoming) {
    if (leaf->executable) return Outcome::kRetry;  // X = 1: the exporter is revoking (D47)
    if (leaf->kind == Leaf::Kind::kRemote) return Outcome::kRefused;  // nothing is forwarded
  }
  if (place(*leaf, va, bytes, run)) return Outcome::kOk;
  return fault(who, va, bytes, type, FaultCause::misplaced(), incoming, run);
}

// The cached or walked leaf over a page; null, and nothing raised, when there is none.
const Leaf* VmHub::Impl::quiet_leaf(std::uint8_t vmid, std::uint64_t page) {
  if (page < registers.start_page(vmid) || page > registers.end_page(vmid) ||
      !registers.context_enabled(vmid))
    return nullptr;
  if (const Leaf* known = cache.find(vmid, page)) return known;
  Walk walk = walker.walk(vmid, page);
  if (walk.kind != Walk::Kind::kLeaf) return nullptr;
  ++counters.walks;
  referenced(vmid, walk.leaf);
  return cache.insert(vmid, walk.leaf);
}

bool VmHub::Impl::ahead(const Requester& who, std::uint64_t va, std::uint64_t bytes,
                        AccessType type, Run& run) {
  if (who.vmid == 0 && aperture(va, bytes, run)) return true;
  const Leaf* leaf = quiet_leaf(who.vmid, va >> 12);
  return leaf != nullptr && !denied(*leaf, type) && place(*leaf, va, bytes, run);
}

namespace {

// The fabric routed by the id in the address; in its place comes the sender's, or 0 (D38).
std::uint64_t incoming_va(std::uint64_t npa, std::uint16_t sender, AddressMode mode) {
  const std::uint64_t id = mode == AddressMode::kIdent ? sender : 0;
  return (npa & ~kNpaIdMask) | (id << kNpaIdShift & kNpaIdMask);
}

}  // namespace

// A leaf in VRAM that lets the access through; null leaves the rest (faults, X = 1, poison) to
// incoming().
const Leaf* VmHub::Impl::incoming_leaf(std::uint64_t page, bool write) {
  const Leaf* leaf = quiet_leaf(kNpaVmid, page);
  if (leaf == nullptr) return nullptr;
  const bool allowed = write ? leaf->writeable : leaf->readable;
  if (!allowed || leaf->executable || leaf->kind != Leaf::Kind::kVram) return nullptr;
  return leaf->poison && !write ? nullptr : leaf;
}

// As much from `va` on as lies in one piece.
bool VmHub::Impl::incoming_run(std::uint64_t va, std::uint64_t bytes, bool write, Run& run) {
  run = {};
  while (run.bytes < bytes) {
    const std::uint64_t at = va + run.bytes;
    const Leaf* leaf = incoming_leaf(at >> 12, write);
    if (leaf == nullptr) break;
    const std::uint64_t into = at - (leaf->first_page << 12);
    const std::uint64_t address = leaf->address + into;
    if (run.bytes == 0) run.address = address;
    if (address != run.address + run.bytes || address >= vram.size()) break;
    const std::uint64_t here = std::min((leaf->pages() << 12) - into, vram.size() - address);
    run.bytes = std::min(bytes, run.bytes + here);
  }
  return run.bytes != 0;
}

Outcome VmHub::Impl::incoming(RemoteAccess& access, AddressMode mode, bool enabled) {
  if (!enabled) return Outcome::kRefused;
  const std::uint64_t va = incoming_va(access.npa, access.sender, mode);
  const Requester who{"remote", kNpaVmid, kCidMpnht, kCidUtcl2Nht};
  Outcome outcome = Outcome::kOk;
  switch (access.kind) {
    case RemoteAccess::Kind::kRead:
      outcome = read(who, va, access.read_to, true);
      break;
    case RemoteAccess::Kind::kWrite:
      outcome = write(who, va, access.write_from, true);
      break;
    case RemoteAccess::Kind::kAtomic:
      outcome = atomic(who, va, access.op, access.operand, access.compare, access.result, true);
      break;
  }
  return outcome == Outcome::kOk || outcome == Outcome::kRetry ? outcome : Outcome::kRefused;
}

Outcome VmHub::Impl::read(const Requester& who, std::uint64_t va, std::span<std::byte> to,
                          bool from_outside) {
  while (!to.empty()) {
    Run run;
    Outcome outcome = translate(who, va, to.size(), AccessType::kRead, from_outside, run);
    if (outcome == Outcome::kOk) outcome = memory_access.read(who, run, to.first(run.bytes));
    if (outcome != Outcome::kOk) return outcome;
    va += run.bytes;
    to = to.subspan(run.bytes);
  }
  return Outcome::kOk;
}

Outcome VmHub::Impl::write(const Requester& who, std::uint64_t va, std::span<const std::byte> from,
                           bool from_outside) {
  while (!from.empty()) {
    Run run;
    Outcome outcome = translate(who, va, from.size(), AccessType::kWrite, from_outside, run);
    if (outcome == Outcome::kOk) outcome = memory_access.write(who, run, from.first(run.bytes));
    if (outcome != Outcome::kOk) return outcome;
    va += run.bytes;
    from = from.subspan(run.bytes);
  }
  return Outcome::kOk;
}

Outcome VmHub::Impl::atomic(const Requester& who, std::uint64_t va, AtomicOp op,
                            std::uint64_t operand, std::uint64_t compare, std::uint64_t& result,
                            bool from_outside) {
  const unsigned bytes = operand_bytes(op);
  Run run;
  if (!base::is_aligned(va, bytes))
    return fault(who, va, bytes, AccessType::kAtomic, FaultCause::misplaced(), true, run);
  const Outcome outcome = translate(who, va, bytes, AccessType::kAtomic, from_outside, run);
  if (outcome != Outcome::kOk) return outcome;
  return memory_access.atomic(who, run, op, operand, compare, result);
}

// --- the public face ---

VmHub::VmHub(const VmHubConfig& config, const BlockContext& context, Vram& vram)
    : impl_(std::make_unique<Impl>(config, context, vram)) {}
VmHub::~VmHub() = default;

Outcome VmHub::read(const Requester& who, std::uint64_t va, std::span<std::byte> to) {
  return impl_->read(who, va, to, false);
}
Outcome VmHub::write(const Requester& who, std::uint64_t va, std::span<const std::byte> from) {
  return impl_->write(who, va, from, false);
}
Outcome VmHub::atomic(const Requester& who, std::uint64_t va, AtomicOp op, std::uint64_t operand,
                      std::uint64_t compare, std::uint64_t& result) {
  return impl_->atomic(who, va, op, operand, compare, result, false);
}
Outcome VmHub::incoming(RemoteAccess& access, AddressMode mode, bool enabled) {
  return impl_->incoming(access, mode, enabled);
}
std::span<const std::byte> VmHub::incoming_source(std::uint16_t sender, std::uint64_t npa,
                                                  std::uint64_t bytes, AddressMode mode) {
  Run run;
  if (!impl_->incoming_run(incoming_va(npa, sender, mode), bytes, false, run)) return {};
  return impl_->vram.bulk(run.address, run.bytes);
}
std::span<std::byte> VmHub::incoming_target(std::uint16_t sender, std::uint64_t npa,
                                            std::uint64_t bytes, AddressMode mode) {
  Run run;
  if (!impl_->incoming_run(incoming_va(npa, sender, mode), bytes, true, run)) return {};
  return {impl_->vram.writable(run.address), run.bytes};
}
void VmHub::incoming_stored(std::uint16_t sender, std::uint64_t npa, std::uint64_t bytes,
                            AddressMode mode) {
  Run run;
  if (impl_->incoming_run(incoming_va(npa, sender, mode), bytes, true, run))
    impl_->vram.wrote(run.address, run.bytes);
}
Outcome VmHub::translate(const Requester& who, std::uint64_t va, std::uint64_t bytes,
                         AccessType type, Run& run) {
  return impl_->translate(who, va, bytes, type, false, run);
}
bool VmHub::ahead(const Requester& who, std::uint64_t va, std::uint64_t bytes, AccessType type,
                  Run& run) {
  return impl_->ahead(who, va, bytes, type, run);
}
Outcome VmHub::physical(std::uint64_t address, std::uint64_t bytes, bool system, Run& run) const {
  if (system) {
    run = {Run::Kind::kSystem, address, bytes, 0};
    return Outcome::kOk;
  }
  std::uint64_t offset = 0;
  if (!impl_->walker.to_vram(address, offset)) return Outcome::kFault;
  run = {Run::Kind::kVram, offset, std::min(bytes, impl_->vram.size() - offset), 0};
  return Outcome::kOk;
}
Outcome VmHub::read_run(const Requester& who, const Run& run, std::span<std::byte> to) {
  return impl_->memory_access.read(who, run, to);
}
Outcome VmHub::write_run(const Requester& who, const Run& run, std::span<const std::byte> from) {
  return impl_->memory_access.write(who, run, from);
}
std::span<const std::byte> VmHub::source(const Requester& who, const Run& run) {
  return impl_->memory_access.source(who, run);
}
std::span<std::byte> VmHub::target(const Run& run) { return impl_->memory_access.target(run); }
void VmHub::stored(const Requester& who, const Run& run, std::uint64_t bytes) {
  impl_->memory_access.stored(who, run, bytes);
}

VmHub::Ticket VmHub::begin(std::uint8_t vmid, const Run& run) {
  Ticket ticket;
  ticket.vmid = vmid;
  ticket.epoch = impl_->invalidation.in_flight(vmid).begin();
  if (run.kind == Run::Kind::kRemote) {
    ticket.accel = npa_accel(run.address);
    ticket.accel_epoch = impl_->invalidation.in_flight_to(ticket.accel).begin();
  }
  return ticket;
}

void VmHub::end(const Ticket& ticket) {
  impl_->invalidation.in_flight(ticket.vmid).end(ticket.epoch);
  if (ticket.accel != kNoAccel)
    impl_->invalidation.in_flight_to(ticket.accel).end(ticket.accel_epoch);
}

const AccessError& VmHub::last_error() const { return impl_->error; }

std::uint64_t VmHub::flush_npa(std::uint16_t accel) {
  impl_->cache.drop_if([accel](const Leaf& leaf) {
    return leaf.kind == Leaf::Kind::kRemote && npa_accel(leaf.address) == accel;
  });
  return impl_->invalidation.in_flight_to(accel).mark();
}

bool VmHub::remote_done(std::uint16_t accel, std::uint64_t mark) const {
  const InFlight* accesses = impl_->invalidation.in_flight_to_if_any(accel);
  return accesses == nullptr || accesses->done(mark);
}

void VmHub::reset() {
  impl_->resetting = true;
  for (std::uint8_t vmid = 0; vmid < HubRegisters::kVmids; ++vmid)
    impl_->cache.flush(vmid, FlushScope::everything());
  impl_->resetting = false;
  impl_->invalidation.reset();
}

const HubCounters& VmHub::counters() const { return impl_->counters; }
std::size_t VmHub::cached(std::uint8_t vmid) const { return impl_->cache.leaves(vmid); }
bool VmHub::mmhub() const { return impl_->config.mmhub; }
unsigned VmHub::index() const { return impl_->config.index; }

}  // namespace gpusim
