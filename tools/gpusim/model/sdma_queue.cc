#include "tools/gpusim/model/sdma_queue.h"

#include <utility>

#include "base/bytes.h"

namespace gpusim {
namespace {

constexpr ModelTime kRetryEvery = std::chrono::microseconds(10);
constexpr ModelTime kRemoteRetryLimit = std::chrono::milliseconds(100);
constexpr unsigned kPacketsInStep = 256;
constexpr std::uint8_t kClientGfx = 0x0A;
constexpr std::uint16_t kCid = 0x0A;  // D19

std::array<std::uint32_t, 4> page_data(std::uint32_t context, std::uint64_t address,
                                       std::uint32_t last) {
  const std::uint64_t page = address >> 12;
  return {context, static_cast<std::uint32_t>(page), static_cast<std::uint32_t>(page >> 32), last};
}

}  // namespace

SdmaQueue::SdmaQueue(const SdmaShared& shared, unsigned index)
    : shared_(shared),
      registers_(shared.registers.queues[index]),
      index_(index),
      name_("sdma" + std::to_string(shared.config.xcc) + "." +
            std::to_string(shared.config.instance) + " q" + std::to_string(index)),
      who_{name_, 0, kCid, kCid},
      mover_(shared.hub, shared.context.clock,
             shared.context.seed * 0x9E37'79B9 + shared.config.xcc * 64 +
                 shared.config.instance * 16 + index,
             shared.config.in_flight_pages) {}

bool SdmaQueue::has_work() const {
  const auto control = registers_.control();
  if (stopped_ || !control.get<RB_CNTL::RB_ENABLE>()) return false;
  if (registers_.minor_ptr_update->stored != 0) return false;
  return active_ || in_buffer_ || write_back_due_ || registers_.wptr.get() != ring_position_ ||
         control.get<RB_CNTL::WPTR_POLL_ENABLE>() || control.get<RB_CNTL::MCU_WPTR_POLL_ENABLE>();
}

void SdmaQueue::enabled() {
  abort_packet();
  const auto control = registers_.control();
  stopped_ = false;
  in_buffer_ = false;
  who_.vmid = control.get<RB_CNTL::RB_VMID>();
  ring_ = CommandStream::ring(registers_.rb_base.get() << 8,
                              std::uint64_t{4} << control.get<RB_CNTL::RB_SIZE>(), who_.vmid);
  privileged_ = control.get<RB_CNTL::RB_PRIV>();
  ring_position_ = registers_.rptr.get();
  written_back_ = ring_position_;
  write_back_due_ = false;
}

void SdmaQueue::disabled() {
  abort_packet();
  in_buffer_ = false;
}

void SdmaQueue::reset() {
  registers_.rb_cntl->stored &= ~static_cast<std::uint32_t>(RB_CNTL::RB_ENABLE::kMask);
  registers_.rptr.set(0);
  registers_.wptr.set(0);
  disabled();
  stopped_ = false;
  write_back_due_ = false;
  ring_position_ = 0;
}

void SdmaQueue::abort_packet() {
  mover_.abort();
  active_ = false;
  stalled_ = false;
  not_before_ = {};
  remote_since_.reset();
}

void SdmaQueue::doorbell(std::uint64_t value, bool wide) {
  registers_.doorbell->stored |= static_cast<std::uint32_t>(SDMA_DOORBELL::CAPTURED::kMask);
  if (wide)
    registers_.wptr.set(value);
  else
    registers_.wptr.lo->stored = static_cast<std::uint32_t>(value);
}

void SdmaQueue::poll_write_pointer() {
  const auto control = registers_.control();
  if (!control.get<RB_CNTL::WPTR_POLL_ENABLE>() && !control.get<RB_CNTL::MCU_WPTR_POLL_ENABLE>())
    return;
  Requester who = who_;
  who.vmid = control.get<RB_CNTL::RB_VMID>();
  std::uint64_t value = 0;
  const std::uint64_t at = registers_.wptr_poll_addr.get();
  const Outcome outcome = shared_.hub.read(who, at, base::as_writable_bytes(value));
  if (outcome == Outcome::kOk)
    registers_.wptr.set(value);
  else if (outcome == Outcome::kRetry)
    retry_later();
  else
    stop_for({outcome, at, shared_.hub.last_error()});
}

// --- packets ---

bool SdmaQueue::run(std::size_t& budget) {
  if (not_before_ > shared_.context.clock.now()) return false;
  const bool was_stalled = std::exchange(stalled_, false);
  if (!active_ && !in_buffer_) poll_write_pointer();
  bool worked = was_stalled;
  for (unsigned i = 0; i < kPacketsInStep && !stopped_ && !stalled_; ++i) {
    Progress progress = Progress::kDone;
    if (!active_ && !next_packet(progress)) {
      if (progress == Progress::kDone) break;  // nothing left
    } else {
      progress = execute(budget);
    }
    worked |= progress != Progress::kLater;
    if (!settle(progress)) break;
  }
  write_back_rptr();
  return worked;
}

// Makes the packet at the read position the active one. False when there is none (kDone), or when
// it could not be read or is none (any other progress).
bool SdmaQueue::next_packet(Progress& progress) {
  if (in_buffer_ && buffer_position_ == buffer_.end()) {
    in_buffer_ = false;
    who_.vmid = ring_.vmid();
    privileged_ = registers_.control().get<RB_CNTL::RB_PRIV>();
    ring_position_ += packet_dwords(SdmaOp::kIndirect, 0) * sizeof(std::uint32_t);
    registers_.rptr.set(ring_position_);
    write_back_due_ = true;
  }
  if (!in_buffer_) {
    const std::uint64_t wptr = registers_.wptr.get();
    if (wptr == ring_position_) {
      if (write_back_due_ && shared_.registers.control().get<SDMA_CNTL::CTXEMPTY_INT>())
        shared_.context.interrupts.raise(vector(SdmaSource::kContextEmpty));
      progress = Progress::kDone;
      return false;
    }
    const std::uint64_t size = std::uint64_t{4} << registers_.control().get<RB_CNTL::RB_SIZE>();
    if (wptr < ring_position_ || wptr - ring_position_ > size) {
      progress = stop(SdmaSource::kWptrBehind);
      return false;
    }
    ring_.set_end(wptr);
  }
  return decode(progress);
}

bool SdmaQueue::decode(Progress& progress) {
  CommandStream& from = stream();
  const std::uint64_t start = position();
  unsigned dwords = 1;
  for (unsigned i = 0; i < dwords; ++i) {
    if (start + (i + 1) * sizeof(std::uint32_t) > from.end()) {
      progress = exception();  // the packet is cut short
      return false;
    }
    const std::uint64_t at = start + i * sizeof(std::uint32_t);
    const Outcome outcome = from.dword(shared_.hub, who_, at, packet_[i]);
    if (outcome != Outcome::kOk) {
      progress = fail(outcome, from.address(at));
      return false;
    }
    if (i != 0) continue;
    header_ = base::Value<SDMA_HEADER>(packet_[0]);
    dwords = packet_dwords(header_.get<SDMA_HEADER::OP>(), header_.get<SDMA_HEADER::SUB_OP>());
    if (dwords == 0) {
      progress = exception();
      return false;
    }
  }
  length_ = dwords * sizeof(std::uint32_t);
  if (header_.get<SDMA_HEADER::OP>() == SdmaOp::kWrite)
    length_ += (std::uint64_t{word(3)} + 1) * sizeof(std::uint32_t);
  if (header_.get<SDMA_HEADER::OP>() == SdmaOp::kNop)
    length_ += header_.get<SDMA_HEADER::NOP_COUNT>() * sizeof(std::uint32_t);
  if (length_ > from.end() - start) {
    progress = exception();
    return false;
  }
  active_ = true;
  begun_ = false;
  progress_ = 0;
  return true;
}

// The active packet took effect: the read pointer moves past it.
void SdmaQueue::complete() {
  ++shared_.counters.packets;
  active_ = false;
  remote_since_.reset();
  if (header_.get<SDMA_HEADER::OP>() == SdmaOp::kIndirect) return;  // at the buffer's end
  position() += length_;
  if (in_buffer_) return;
  registers_.rptr.set(ring_position_);
  write_back_due_ = true;
}

// What follows from a packet's progress. True when the next one may be looked at.
bool SdmaQueue::settle(Progress progress) {
  switch (progress) {
    case Progress::kDone:
      complete();
      return true;
    case Progress::kFailed:
      if (failure_.outcome != Outcome::kRetry) {
        stop_for(failure_);
        return false;
      }
      retry_later();
      if (!failure_.error.exporter_retry) return false;
      if (const ModelTime now = shared_.context.clock.now(); !remote_since_)
        remote_since_ = now;
      else if (now - *remote_since_ >= kRemoteRetryLimit)
        stop_for({Outcome::kRefused, failure_.va, failure_.error});
      return false;
    case Progress::kMore:
    case Progress::kLater:
    case Progress::kStopped:
      return false;
  }
  return false;
}

SdmaQueue::Progress SdmaQueue::fail(Outcome outcome, std::uint64_t va) {
  failure_ = {outcome, va, shared_.hub.last_error()};
  return Progress::kFailed;
}

void SdmaQueue::retry_later() {
  ++shared_.counters.retries;
  stalled_ = true;
  not_before_ = shared_.context.clock.now() + kRetryEvery;
}

Iv SdmaQueue::vector(SdmaSource source) const {
  Iv iv;
  iv.client = kClientGfx;
  iv.source = static_cast<std::uint8_t>(source);
  iv.ring_id = static_cast<std::uint8_t>(index_ | shared_.config.instance << 4);
  iv.vmid = who_.vmid;
  iv.pasid = shared_.context.interrupts.pasid(false, who_.vmid);
  iv.node_id = shared_.config.node_id;
  return iv;
}

SdmaQueue::Progress SdmaQueue::stop(SdmaSource source, std::array<std::uint32_t, 4> data,
                                    bool raise) {
  ++shared_.counters.errors;
  if (raise) {
    Iv iv = vector(source);
    iv.src_data = data;
    shared_.context.interrupts.raise(iv);
  }
  abort_packet();
  stopped_ = true;
  return Progress::kStopped;
}

void SdmaQueue::stop_for(const Failure& failure) {
  const auto control = shared_.registers.control();
  switch (failure.outcome) {
    case Outcome::kBusError:
      stop(SdmaSource::kPageNull, page_data(0, failure.error.iova, 0),
           control.get<SDMA_CNTL::PAGE_NULL_INT>());
      return;
    case Outcome::kRefused:
      stop(SdmaSource::kRemote, page_data(1, failure.error.npa, 0));
      return;
    case Outcome::kPeerLost:
      stop(SdmaSource::kRemote, page_data(1, failure.error.npa, 1));
      return;
    case Outcome::kFault:
    case Outcome::kRetry:
    case Outcome::kOk:
      stop(SdmaSource::kPageFault, page_data(0, failure.va, 0),
           control.get<SDMA_CNTL::PAGE_FAULT_INT>());
      return;
  }
}

// At the end of each turn, so at the latest when the queue is empty (D32).
void SdmaQueue::write_back_rptr() {
  if (!write_back_due_) return;
  const auto control = registers_.control();
  if (control.get<RB_CNTL::RPTR_WRITEBACK_ENABLE>() && written_back_ != ring_position_) {
    Requester who = who_;
    who.vmid = ring_.vmid();
    const std::uint64_t at = registers_.rptr_addr.get() & ~std::uint64_t{7};
    const Outcome outcome = shared_.hub.write(who, at, base::as_bytes(ring_position_));
    if (outcome == Outcome::kRetry) {
      retry_later();
      return;
    }
    if (outcome != Outcome::kOk) {
      write_back_due_ = false;
      stop_for({outcome, at, shared_.hub.last_error()});
      return;
    }
    written_back_ = ring_position_;
  }
  write_back_due_ = false;
}

}  // namespace gpusim
