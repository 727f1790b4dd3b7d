#include "daemon/gpu/memory/flush_queue.h"

#include <algorithm>
#include <string>
#include <utility>

namespace gpuumd {
namespace {

using namespace vm_hub;

std::string name_of(const VmHub& hub) {
  return (hub.kind == HubKind::kMmhub ? "MMHUB " : "GFXHUB ") + std::to_string(hub.instance);
}

}  // namespace

FlushQueue::FlushQueue(Reactor& reactor, const std::vector<VmHub>& hubs, Options options,
                       std::move_only_function<void(const base::Error&)> on_error)
    : reactor_(reactor), options_(options), on_error_(std::move(on_error)) {
  for (const VmHub& hub : hubs) hubs_.push_back({.hub = hub});
  poller_ = reactor_.add_poller({"TLB flush", [this] { return poll(); }, {}});
}

FlushQueue::~FlushQueue() {
  broken_ = true;
  fail_all({base::Errc::kDeviceLost, 0, "TLB flush"});
}

void FlushQueue::submit(FlushTarget target, FlushType type,
                        const base::IntervalSet<base::GpuVa>& ranges, Done done) {
  ++counters_.requests;
  waiting_.push_back({target, type, ranges, std::move(done)});
}

bool FlushQueue::poll() {
  if (flying_.empty()) {
    if (waiting_.empty()) return false;
    if (broken_) {
      fail_all({base::Errc::kDeviceError, 0, "TLB flush: a hub does not answer"});
    } else {
      start();
    }
    return true;
  }
  if (reactor_.now() < eager_until_) {
    look();
    return true;
  }
  if (!timer_) {
    timer_ = reactor_.after(options_.pause, "TLB flush", [this] {
      timer_.cancel();
      look();
    });
  }
  return false;
}

// One flush for all that waits: the union of VMIDs on each hub, heavy if one of them is.
void FlushQueue::start() {
  flying_ = std::exchange(waiting_, {});
  ++counters_.flushes;
  type_ = FlushType::kLegacy;
  for (const Request& request : flying_) type_ = std::max(type_, request.type);
  if (type_ == FlushType::kHeavy) ++counters_.heavy;
  range_ = batch_range();
  for (Hub& hub : hubs_) {
    hub.vmids = 0;
    for (const Request& request : flying_) {
      if (request.target.on(hub.hub.kind)) hub.vmids |= 1u << request.target.vmid().value();
    }
    if (hub.vmids == 0) continue;
    hub.step = hub.hub.kind == HubKind::kMmhub ? Step::kSemaphore : Step::kAcknowledge;
    if (hub.step == Step::kAcknowledge) request(hub);
  }
  started_ = reactor_.now();
  eager_until_ = started_ + options_.eager;
  look();
}

std::uint64_t FlushQueue::batch_range() const {
  if (!options_.single_page_ranges) return kWholeSpace;
  base::IntervalSet<base::GpuVa> all;
  for (const Request& request : flying_) {
    if (request.ranges.empty() || request.target.vmid() != flying_.front().target.vmid())
      return kWholeSpace;
    request.ranges.for_each([&](base::GpuVa first, base::GpuVa end) { all.insert(first, end); });
  }
  std::uint64_t page = kWholeSpace;
  if (all.size() == base::kPageSize)
    all.for_each([&](base::GpuVa first, base::GpuVa) { page = first.page(); });
  return page;
}

void FlushQueue::request(Hub& hub) {
  const RegisterBlock& registers = hub.hub.registers;
  if (hub.range != range_) {
    using Lo = INVALIDATE_ENG_ADDR_RANGE_LO32;
    using Hi = INVALIDATE_ENG_ADDR_RANGE_HI32;
    base::Value<Lo> lo(0xFFFF'FFFF);
    base::Value<Hi> hi(0x3FFF);
    if (range_ != kWholeSpace) {
      lo = base::Value<Lo>().with<Lo::LOGICAL_PAGE_ADDR_RANGE_LO31>(range_ & 0x7FFF'FFFF);
      hi = base::Value<Hi>().with<Hi::LOGICAL_PAGE_ADDR_RANGE_HI14>(range_ >> 31);
    }
    registers.write(lo, kCpuEngine);
    registers.write(hi, kCpuEngine);
    hub.range = range_;
  }
  using R = INVALIDATE_ENG_REQ;
  registers.write(base::Value<R>()
                      .with<R::PER_VMID_INVALIDATE_REQ>(hub.vmids)
                      .with<R::FLUSH_TYPE>(type_)
                      .with<R::INVALIDATE_L2_PTES>(true)
                      .with<R::INVALIDATE_L2_PDE0>(true)
                      .with<R::INVALIDATE_L2_PDE1>(true)
                      .with<R::INVALIDATE_L2_PDE2>(true)
                      .with<R::INVALIDATE_L2_PDE3>(true)
                      .with<R::INVALIDATE_L1_PTES>(true),
                  kCpuEngine);
  hub.step = Step::kAcknowledge;
}

// One step of a hub's sequence (docs/hardware/vmhub.md "Sequences"). True when it is at its end.
bool FlushQueue::advance(Hub& hub) {
  const RegisterBlock& registers = hub.hub.registers;
  if (hub.step == Step::kSemaphore) {
    if (!registers.read<INVALIDATE_ENG_SEM>(kCpuEngine).get<INVALIDATE_ENG_SEM::SEMAPHORE>())
      return false;
    request(hub);
  }
  if (hub.step == Step::kAcknowledge) {
    using R = INVALIDATE_ENG_ACK;
    const auto done = registers.read<R>(kCpuEngine).get<R::PER_VMID_INVALIDATE_ACK>();
    if ((done & hub.vmids) != hub.vmids) return false;
    if (hub.hub.kind == HubKind::kMmhub) {  // errata C6: GFXHUB needs neither
      registers.write(base::Value<INVALIDATE_ENG_SEM>(0), kCpuEngine);
      registers.modify<L2_BANK_SELECT_RESERVED_CID2>([](auto value) {
        using C = L2_BANK_SELECT_RESERVED_CID2;
        return value.template with<C::RESERVED_CACHE_PRIVATE_INVALIDATION>(true);
      });
      (void)registers.read<L2_BANK_SELECT_RESERVED_CID2>();
    }
    hub.step = Step::kIdle;
  }
  return true;
}

void FlushQueue::look() {
  if (flying_.empty()) return;
  bool all = true;
  const Hub* late = nullptr;
  bool lost = false;
  for (Hub& hub : hubs_) {
    if (hub.step == Step::kIdle) continue;
    const bool done = advance(hub);
    all = all && done;
    if (!done) late = &hub;
    lost = lost || hub.hub.registers.io().lost();
  }
  // A lost device answers all ones, which would look like an acknowledgement.
  if (lost) {
    broken_ = true;
    return finish(base::fail(base::Errc::kDeviceLost, "TLB flush"));
  }
  if (all) return finish({});
  if (reactor_.now() - started_ < options_.deadline) return;
  ++counters_.timeouts;
  broken_ = true;
  const base::Error error{
      base::Errc::kDeviceError, 0,
      "TLB flush: no " +
          std::string(late->step == Step::kSemaphore ? "semaphore" : "acknowledgement") + " from " +
          name_of(late->hub)};
  auto on_error = std::move(on_error_);
  fail_all(error);  // nothing of this may be touched after on_error: it may end the device
  if (on_error) on_error(error);
}

void FlushQueue::finish(const base::Result<void>& result) {
  for (Hub& hub : hubs_) hub.step = Step::kIdle;
  for (Request& request : std::exchange(flying_, {})) {
    if (request.done) request.done(result);
  }
}

void FlushQueue::fail_all(const base::Error& error) {
  timer_.cancel();
  auto waiting = std::exchange(waiting_, {});
  finish(std::unexpected(error));
  for (Request& request : waiting) {
    if (request.done) request.done(std::unexpected(error));
  }
}

}  // namespace gpuumd
