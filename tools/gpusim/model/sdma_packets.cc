// What the packets do (docs/hardware/sdma.md).

#include "tools/gpusim/model/sdma_packets.h"

#include <algorithm>
#include <atomic>

#include "base/address.h"
#include "base/bytes.h"
#include "tools/gpusim/model/sdma_queue.h"

namespace gpusim {
namespace {

using Header = SDMA_HEADER;

constexpr std::size_t kEntriesAtOnce = 512;
constexpr std::uint64_t kByteCountMask = 0x3FFF'FFFF;

// 100 MHz since the device started (D36).
std::uint64_t ticks(ModelTime at) { return static_cast<std::uint64_t>(at.count()) / 10; }

std::uint32_t repeated(std::uint32_t value, unsigned element) {
  if (element == 0) return (value & 0xFF) * 0x0101'0101u;
  if (element == 1) return (value & 0xFFFF) * 0x0001'0001u;
  return value;
}

}  // namespace

SdmaQueue::Progress SdmaQueue::execute(std::size_t& budget) {
  switch (header_.get<Header::OP>()) {
    case SdmaOp::kNop:
      return Progress::kDone;
    case SdmaOp::kCopy:
    case SdmaOp::kConstFill:
      return move(budget);
    case SdmaOp::kWrite:
      return write_linear(budget);
    case SdmaOp::kIndirect:
      return indirect();
    case SdmaOp::kFence:
      return fence();
    case SdmaOp::kTrap:
      return trap();
    case SdmaOp::kPollRegmem:
      return poll();
    case SdmaOp::kCondExe:
      return cond_exe();
    case SdmaOp::kAtomic:
      return atomic();
    case SdmaOp::kPtePde:
      return pte_pde(budget);
    case SdmaOp::kTimestamp:
      return timestamp();
    case SdmaOp::kRegisterWrite:
      return register_write();
  }
  return exception();
}

// --- copies and fills ---

SdmaQueue::Progress SdmaQueue::begin_move() {
  MoveJob job;
  if (header_.get<Header::OP>() == SdmaOp::kCopy) {
    if (header_.get<Header::COPY_BROADCAST>()) return exception();
    job.bytes = (word(1) & kByteCountMask) + std::uint64_t{1};
    job.source = address(3);
    job.target = address(5);
    job.backwards = header_.get<Header::COPY_BACKWARDS>();
  } else {
    const unsigned element = header_.get<Header::FILL_SIZE>();
    job.fill = true;
    job.bytes = (word(4) & kByteCountMask) + std::uint64_t{1};
    job.target = address(1);
    if (element > 2 || !base::is_aligned(job.bytes, 1u << element)) return exception();
    job.value = repeated(word(3), element);
  }
  mover_.start(job);
  progress_ = job.bytes;
  begun_ = true;
  return Progress::kDone;
}

SdmaQueue::Progress SdmaQueue::move(std::size_t& budget) {
  if (!begun_)
    if (const Progress begun = begin_move(); begun != Progress::kDone) return begun;
  const DataMover::Result result = mover_.run(who_, budget);
  switch (result.state) {
    case DataMover::State::kDone:
      (header_.get<Header::OP>() == SdmaOp::kCopy ? shared_.counters.bytes_copied
                                                  : shared_.counters.bytes_filled) += progress_;
      return Progress::kDone;
    case DataMover::State::kMore:
      return Progress::kMore;
    case DataMover::State::kLater:
      return Progress::kLater;
    case DataMover::State::kFailed:
      failure_ = {result.outcome, result.address, result.error};
      return Progress::kFailed;
  }
  return exception();
}

// --- small writes ---

SdmaQueue::Progress SdmaQueue::write_linear(std::size_t& budget) {
  const std::uint64_t to = address(1);
  const std::uint64_t dwords = std::uint64_t{word(3)} + 1;
  if (!base::is_aligned(to, sizeof(std::uint32_t))) return exception();
  const std::uint64_t data = position() + packet_dwords(SdmaOp::kWrite, 0) * sizeof(std::uint32_t);
  const auto read = [&](std::uint64_t index, std::uint32_t& value) {
    return stream().dword(shared_.hub, who_, data + index * sizeof value, value);
  };
  std::array<std::uint64_t, 64> words;
  while (progress_ < dwords) {
    if (budget == 0) return Progress::kMore;
    const std::uint64_t va = to + progress_ * sizeof(std::uint32_t);
    // Pairs at 8-byte addresses are stored whole: they may be page-table entries.
    const std::uint64_t pairs =
        base::is_aligned(va, 8) ? std::min<std::uint64_t>((dwords - progress_) / 2, words.size())
                                : 0;
    std::uint64_t count = pairs * 2;
    std::uint32_t low = 0, high = 0;
    Outcome outcome = Outcome::kOk;
    for (std::uint64_t i = 0; i < pairs && outcome == Outcome::kOk; ++i) {
      outcome = read(progress_ + 2 * i, low);
      if (outcome == Outcome::kOk) outcome = read(progress_ + 2 * i + 1, high);
      words[i] = (std::uint64_t{high} << 32) | low;
    }
    if (pairs == 0) {
      count = 1;
      outcome = read(progress_, low);
    }
    if (outcome != Outcome::kOk)
      return fail(outcome, stream().address(data + progress_ * sizeof low));
    outcome = pairs != 0 ? store_words(va, std::span(words).first(pairs))
                         : shared_.hub.write(who_, va, base::as_bytes(low));
    if (outcome != Outcome::kOk) return fail(outcome, va);
    progress_ += count;
    budget -= std::min<std::size_t>(budget, count * sizeof(std::uint32_t));
  }
  shared_.counters.bytes_written += dwords * sizeof(std::uint32_t);
  return Progress::kDone;
}

// Stores 64-bit words, each at once: a walker or a CPU may read them meanwhile.
Outcome SdmaQueue::store_words(std::uint64_t va, std::span<const std::uint64_t> words) {
  while (!words.empty()) {
    Run run;
    Outcome outcome = shared_.hub.translate(who_, va, words.size_bytes(), AccessType::kWrite, run);
    if (outcome != Outcome::kOk) return outcome;
    const auto to = shared_.hub.target(run);
    if (!to.empty()) run.bytes = to.size();
    if (to.empty()) {
      outcome = shared_.hub.write_run(who_, run, std::as_bytes(words).first(run.bytes));
      if (outcome != Outcome::kOk) return outcome;
    } else {
      auto* at = reinterpret_cast<std::uint64_t*>(to.data());
      for (std::size_t i = 0; i < run.bytes / sizeof(std::uint64_t); ++i)
        std::atomic_ref(at[i]).store(words[i], std::memory_order_release);
      shared_.hub.stored(who_, run, run.bytes);
    }
    va += run.bytes;
    words = words.subspan(run.bytes / sizeof(std::uint64_t));
  }
  return Outcome::kOk;
}

SdmaQueue::Progress SdmaQueue::pte_pde(std::size_t& budget) {
  const std::uint64_t table = address(1);
  const std::uint64_t flags = address(3);
  const std::uint64_t first = address(5);
  const std::uint64_t increment = word(7);
  const std::uint64_t entries = std::uint64_t{word(9)} + 1;
  if (!base::is_aligned(table, sizeof(std::uint64_t))) return exception();
  std::array<std::uint64_t, kEntriesAtOnce> words;
  while (progress_ < entries) {
    if (budget == 0) return Progress::kMore;
    const std::size_t count = std::min<std::uint64_t>(entries - progress_, words.size());
    for (std::size_t i = 0; i < count; ++i)
      words[i] = (first + (progress_ + i) * increment) | flags;
    const std::uint64_t va = table + progress_ * sizeof(std::uint64_t);
    const Outcome outcome = store_words(va, std::span(words).first(count));
    if (outcome != Outcome::kOk) return fail(outcome, va);
    progress_ += count;
    budget -= std::min<std::size_t>(budget, count * sizeof(std::uint64_t));
  }
  shared_.counters.bytes_written += entries * sizeof(std::uint64_t);
  return Progress::kDone;
}

// All data of the packets before it is in memory: they were done one after the other, and streamed
// data was fenced at the end of its packet. The store itself is a release.
SdmaQueue::Progress SdmaQueue::fence() {
  const std::uint64_t to = address(1);
  if (!base::is_aligned(to, sizeof(std::uint32_t))) return exception();
  const std::uint32_t value = word(3);
  const Outcome outcome = shared_.hub.write(who_, to, base::as_bytes(value));
  if (outcome != Outcome::kOk) return fail(outcome, to);
  shared_.counters.bytes_written += sizeof value;
  return Progress::kDone;
}

SdmaQueue::Progress SdmaQueue::timestamp() {
  const std::uint64_t now = ticks(shared_.context.clock.now());
  const unsigned form = header_.get<Header::SUB_OP>();
  if (form == 0) {
    timestamp_offset_ = static_cast<std::int64_t>(address(1) - now);
    return Progress::kDone;
  }
  const std::uint64_t to = address(1);
  if (!base::is_aligned(to, sizeof(std::uint64_t))) return exception();
  const std::uint64_t value = form == 1 ? now + static_cast<std::uint64_t>(timestamp_offset_) : now;
  const Outcome outcome = shared_.hub.write(who_, to, base::as_bytes(value));
  return outcome == Outcome::kOk ? Progress::kDone : fail(outcome, to);
}

// --- control ---

SdmaQueue::Progress SdmaQueue::indirect() {
  const base::Value<IB_CNTL> ib(registers_.ib_cntl->stored);
  const std::uint64_t at = address(1);
  const std::uint64_t dwords = word(3) & 0xF'FFFF;
  // The packet ends at a boundary of 8 dwords, so do buffers, and there is one level of them.
  const bool in_place = base::is_aligned(position() + length_, 32) && base::is_aligned(at, 32) &&
                        base::is_aligned(dwords, 8) && !in_buffer_;
  if (!in_place || !ib.get<IB_CNTL::IB_ENABLE>()) return exception();
  const std::uint8_t vmid = privileged_ ? header_.get<Header::IB_VMID>() : ring_.vmid();
  registers_.ib_base.set(at);
  registers_.ib_size->stored = static_cast<std::uint32_t>(dwords);
  buffer_ = CommandStream::buffer(at, dwords * sizeof(std::uint32_t), vmid);
  buffer_position_ = 0;
  in_buffer_ = true;
  who_.vmid = vmid;
  privileged_ = privileged_ && ib.get<IB_CNTL::IB_PRIV>();
  return Progress::kDone;
}

SdmaQueue::Progress SdmaQueue::trap() {
  ++shared_.counters.traps;
  if (shared_.registers.control().get<SDMA_CNTL::TRAP_ENABLE>()) {
    Iv iv = vector(SdmaSource::kTrap);
    iv.src_data[0] = word(1) & 0x0FFF'FFFF;
    shared_.context.interrupts.raise(iv);
  }
  return Progress::kDone;
}

SdmaQueue::Progress SdmaQueue::poll() {
  const ModelTime now = shared_.context.clock.now();
  if (header_.get<Header::POLL_HDP_FLUSH>()) return exception();
  std::uint32_t value = 0;
  if (header_.get<Header::POLL_MEMORY>()) {
    const std::uint64_t at = address(1);
    if (!base::is_aligned(at, sizeof value)) return exception();
    const Outcome outcome = shared_.hub.read(who_, at, base::as_writable_bytes(value));
    if (outcome != Outcome::kOk) return fail(outcome, at);
  } else {
    if (!privileged_) return stop(SdmaSource::kProtectedRegister, {word(1), 0, 0, 0});
    value = shared_.context.registers.read(word(1) / sizeof value);
  }
  const std::uint32_t mask = word(4);
  if (poll_matches(header_.get<Header::POLL_FUNCTION>(), value & mask, word(3) & mask))
    return Progress::kDone;
  const std::uint32_t retries = (word(5) >> 16) & 0xFFF;
  if (retries != 0xFFF && ++progress_ > retries) return stop(SdmaSource::kPollTimeout);
  const std::uint32_t interval = word(5) & 0xFFFF;
  not_before_ = now + std::max<ModelTime>(std::chrono::microseconds(1), ModelTime(interval * 10));
  return Progress::kLater;
}

SdmaQueue::Progress SdmaQueue::cond_exe() {
  const std::uint64_t at = address(1);
  if (!base::is_aligned(at, sizeof(std::uint32_t))) return exception();
  std::uint32_t value = 0;
  const Outcome outcome = shared_.hub.read(who_, at, base::as_writable_bytes(value));
  if (outcome != Outcome::kOk) return fail(outcome, at);
  if (value == word(3)) return Progress::kDone;
  const std::uint64_t skipped = std::uint64_t{word(4) & 0x3FFF} * sizeof(std::uint32_t);
  if (skipped > stream().end() - position() - length_) return exception();
  length_ += skipped;
  return Progress::kDone;
}

SdmaQueue::Progress SdmaQueue::atomic() {
  const unsigned field = header_.get<Header::ATOMIC_OP>();
  const auto op = atomic_op(field);
  const std::uint64_t at = address(1);
  if (!op || !base::is_aligned(at, *op == AtomicOp::kAdd32 || *op == AtomicOp::kSwap32 ||
                                           *op == AtomicOp::kCompareSwap32
                                       ? 4
                                       : 8))
    return exception();
  std::uint64_t old = 0;
  const Outcome outcome = shared_.hub.atomic(who_, at, *op, address(3), address(5), old);
  if (outcome != Outcome::kOk) return fail(outcome, at);
  const bool swap_32 = *op == AtomicOp::kCompareSwap32;
  const bool compares = swap_32 || *op == AtomicOp::kCompareSwap64;
  if (header_.get<Header::ATOMIC_LOOP>() && compares &&
      old != (swap_32 ? address(5) & 0xFFFF'FFFF : address(5))) {
    const std::uint32_t interval = word(7) & 0x1FFF;
    not_before_ = shared_.context.clock.now() +
                  std::max<ModelTime>(std::chrono::microseconds(1), ModelTime(interval * 10));
    return Progress::kLater;
  }
  const bool returns = (field & 64) == 0;
  if (returns && (shared_.registers.atomic_cntl->stored >> 31) != 0)
    shared_.context.interrupts.raise(vector(SdmaSource::kAtomicReturn));
  return Progress::kDone;
}

SdmaQueue::Progress SdmaQueue::register_write() {
  if (!privileged_) return stop(SdmaSource::kProtectedRegister, {word(1), 0, 0, 0});
  const std::uint32_t byte = (word(1) & 0x3'FFFF) | (word(1) >> 20) << 18;
  shared_.context.registers.write(byte / sizeof(std::uint32_t), word(2));
  return Progress::kDone;
}

}  // namespace gpusim
