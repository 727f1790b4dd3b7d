#include "tools/gpusim/model/data_mover.h"

#include <unistd.h>

#include <emmintrin.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/address.h"
#include "tools/gpusim/model/pte.h"

namespace gpusim {
namespace {

// From this size on the copy passes by the caches: the data would push out more than it is worth.
constexpr std::uint64_t kStreamFrom = 2 * base::kMiB;
// A unit of a large copy; small copies are cut into pages, so that they too finish out of order.
constexpr std::uint64_t kLargestUnit = 64 * base::kKiB;
constexpr std::uint64_t kUnitsInCopy = 16;

bool aligned_16(const void* at) { return reinterpret_cast<std::uintptr_t>(at) % 16 == 0; }

// A cache line past the caches; `to` 16-byte aligned.
void stream_line(std::byte* to, const std::byte* from) {
  const auto* in = reinterpret_cast<const __m128i*>(from);
  auto* out = reinterpret_cast<__m128i*>(to);
  const __m128i a = _mm_loadu_si128(in), b = _mm_loadu_si128(in + 1);
  const __m128i c = _mm_loadu_si128(in + 2), d = _mm_loadu_si128(in + 3);
  _mm_stream_si128(out, a);
  _mm_stream_si128(out + 1, b);
  _mm_stream_si128(out + 2, c);
  _mm_stream_si128(out + 3, d);
}

// The processor's own prefetch ends with a page, and one page after another leaves memory idle at
// each start, so several go side by side. But their lines are all in one set of the first cache:
// with 8 ways there, eight pages were four times slower than two (docs/performance.md).
std::size_t pages_abreast() {
  static const std::size_t kPages = ::sysconf(_SC_LEVEL1_DCACHE_ASSOC) >= 12 ? 8 : 2;
  return kPages;
}

// `to` 16-byte aligned. The caller does the sfence.
void stream(std::byte* to, const std::byte* from, std::size_t bytes) {
  constexpr std::size_t kLine = 64, kAhead = 4 * kLine;
  const std::size_t sides = pages_abreast();
  std::size_t done = 0;
  for (; bytes - done >= sides * base::kPageSize; done += sides * base::kPageSize)
    for (std::size_t line = 0; line < base::kPageSize; line += kLine)
      for (std::size_t side = 0; side < sides; ++side) {
        const std::size_t at = done + side * base::kPageSize + line;
        _mm_prefetch(reinterpret_cast<const char*>(from + at + kAhead), _MM_HINT_T0);
        stream_line(to + at, from + at);
      }
  for (; bytes - done >= kLine; done += kLine) stream_line(to + done, from + done);
  std::memcpy(to + done, from + done, bytes - done);
}

// Whether `next` goes on where `run` ends, as the same kind of access.
bool follows(const Run& run, const Run& next) {
  const bool same_accel =
      run.kind != Run::Kind::kRemote || npa_accel(run.address) == npa_accel(next.address);
  const bool in_memory = run.kind == Run::Kind::kVram || run.kind == Run::Kind::kSystem ||
                         run.kind == Run::Kind::kRemote;
  return in_memory && next.kind == run.kind && next.address == run.address + run.bytes &&
         next.poison_reader == run.poison_reader && same_accel;
}

void repeat(std::byte* to, std::size_t bytes, std::uint32_t value) {
  if (const auto byte = static_cast<std::uint8_t>(value); value == byte * 0x0101'0101u) {
    std::memset(to, byte, bytes);
    return;
  }
  const std::size_t whole = bytes / sizeof value * sizeof value;
  for (std::size_t i = 0; i < whole; i += sizeof value) std::memcpy(to + i, &value, sizeof value);
  std::memcpy(to + whole, &value, bytes - whole);
}

}  // namespace

DataMover::DataMover(VmHub& hub, const ModelClock& clock, std::uint64_t seed,
                     unsigned in_flight_pages)
    : hub_(hub), clock_(clock), random_(seed), window_(in_flight_pages * base::kPageSize) {}

void DataMover::start(const MoveJob& job) {
  abort();
  job_ = job;
  issued_ = 0;
  const bool apart =
      job.fill || job.source + job.bytes <= job.target || job.target + job.bytes <= job.source;
  ordered_ = !apart;
  streaming_ = !job.fill && apart && job.bytes >= kStreamFrom;
}

std::uint64_t DataMover::unit() const {
  const std::uint64_t share = base::align_up(job_.bytes / kUnitsInCopy + 1, base::kPageSize);
  return std::clamp(share, base::kPageSize, std::min(kLargestUnit, window_));
}

DataMover::Piece DataMover::next_piece() const {
  if (!again_.empty()) return again_.back();
  const std::uint64_t left = job_.bytes - issued_;
  std::uint64_t bytes = std::min(left, unit());
  if (!job_.backwards) {
    // Pieces end at multiples of their size, so that a run seldom crosses a mapping of the host.
    return {issued_, std::min(bytes, unit() - (job_.target + issued_) % unit())};
  }
  // The end of what is left, inside one page: its start has to lie in the same runs.
  bytes = std::min(bytes, (job_.target + left - 1) % base::kPageSize + 1);
  if (!job_.fill) bytes = std::min(bytes, (job_.source + left - 1) % base::kPageSize + 1);
  return {left - bytes, bytes};
}

// `bytes` from the start of the piece are in flight.
void DataMover::took(const Piece& piece, std::uint64_t bytes) {
  flying_ += bytes;
  if (again_.empty()) {
    issued_ += bytes;
  } else if (bytes == piece.bytes) {
    again_.pop_back();
  } else {
    again_.back() = {piece.offset + bytes, piece.bytes - bytes};
  }
}

Outcome DataMover::translate(const Requester& who, MoveJob::Space space, std::uint64_t address,
                             std::uint64_t bytes, AccessType type, Run& run) {
  if (space == MoveJob::Space::kVirtual) return hub_.translate(who, address, bytes, type, run);
  return hub_.physical(address, bytes, space == MoveJob::Space::kBus, run);
}

bool DataMover::ahead(const Requester& who, MoveJob::Space space, std::uint64_t address,
                      std::uint64_t bytes, AccessType type, Run& run) {
  if (space == MoveJob::Space::kVirtual) return hub_.ahead(who, address, bytes, type, run);
  return translate(who, space, address, bytes, type, run) == Outcome::kOk;
}

// Makes the access longer while what follows the runs in the piece goes on where they end: an entry
// a page would otherwise make each page an access. It looks ahead only: where it stops, issue()
// goes on with an access of its own, and meets the faults.
void DataMover::extend(const Requester& who, const Piece& piece, Access& access) {
  while (access.target.bytes < piece.bytes) {
    const std::uint64_t offset = piece.offset + access.target.bytes;
    Run target, source;
    if (!ahead(who, job_.target_space, job_.target + offset, piece.bytes - access.target.bytes,
               AccessType::kWrite, target) ||
        !follows(access.target, target))
      return;
    if (!job_.fill) {
      if (!ahead(who, job_.source_space, job_.source + offset, target.bytes, AccessType::kRead,
                 source) ||
          !follows(access.source, source))
        return;
      target.bytes = source.bytes;
      access.source.bytes += source.bytes;
    }
    access.target.bytes += target.bytes;
  }
}

// Translates the next piece and puts it in flight; false, with blocked_ set, when it cannot.
bool DataMover::issue(const Requester& who) {
  const Piece piece = next_piece();
  Access access;
  access.offset = piece.offset;
  access.due = clock_.now() + delay_;
  std::uint64_t address = job_.target + piece.offset;
  bool write = true;
  Outcome outcome =
      translate(who, job_.target_space, address, piece.bytes, AccessType::kWrite, access.target);
  if (outcome == Outcome::kOk && !job_.fill) {
    address = job_.source + piece.offset;
    write = false;
    outcome = translate(who, job_.source_space, address, access.target.bytes, AccessType::kRead,
                        access.source);
    access.target.bytes = access.source.bytes;
  }
  if (outcome != Outcome::kOk) {
    blocked_ = Result{State::kFailed, outcome, address, write, hub_.last_error()};
    return false;
  }
  if (!job_.backwards) extend(who, piece, access);
  access.target_ticket = hub_.begin(who.vmid, access.target);
  if (!job_.fill) access.source_ticket = hub_.begin(who.vmid, access.source);
  took(piece, access.target.bytes);
  in_flight_.push_back(access);
  return true;
}

// `value`: its byte 0 goes to the first byte of the run.
Outcome DataMover::fill(const Requester& who, Run target, std::uint32_t value) {
  failed_write_ = true;
  while (target.bytes != 0) {
    const auto memory = hub_.target(target);
    if (memory.empty()) {
      bounce_.resize(target.bytes);
      repeat(bounce_.data(), bounce_.size(), value);
      return hub_.write_run(who, target, bounce_);
    }
    repeat(memory.data(), memory.size(), value);
    hub_.stored(who, target, memory.size());
    value = std::rotr(value, static_cast<int>(memory.size() % 4 * 8));
    moved_ += memory.size();
    target.address += memory.size();
    target.bytes -= memory.size();
  }
  return Outcome::kOk;
}

// The parts of a run that have memory behind them are moved in place; a side without goes through
// the other side's memory, or the bounce buffer when neither has any.
Outcome DataMover::copy(const Requester& who, Run source, Run target) {
  while (source.bytes != 0) {
    const std::span<std::byte> to = hub_.target(target);
    Run part = source;
    if (!to.empty()) part.bytes = std::min<std::uint64_t>(part.bytes, to.size());
    const std::span<const std::byte> from = hub_.source(who, part);
    std::uint64_t bytes = part.bytes;
    Outcome outcome = Outcome::kOk;
    if (!from.empty()) bytes = from.size();
    if (!from.empty() && !to.empty()) {
      if (streaming_ && aligned_16(to.data()))
        stream(to.data(), from.data(), bytes);
      else
        std::memmove(to.data(), from.data(), bytes);
      hub_.stored(who, target, bytes);
    } else if (!from.empty()) {
      failed_write_ = true;
      outcome = hub_.write_run(who, target, from);
    } else if (!to.empty()) {
      failed_write_ = false;
      outcome = hub_.read_run(who, part, to.first(bytes));
      if (outcome == Outcome::kOk) hub_.stored(who, target, bytes);
    } else {
      bounce_.resize(bytes);
      outcome = hub_.read_run(who, part, bounce_);
      failed_write_ = outcome == Outcome::kOk;
      if (failed_write_) outcome = hub_.write_run(who, target, bounce_);
    }
    if (outcome != Outcome::kOk) return outcome;
    moved_ += bytes;
    source.address += bytes;
    source.bytes -= bytes;
    target.address += bytes;
    target.bytes -= bytes;
  }
  return Outcome::kOk;
}

Outcome DataMover::finish(const Requester& who, const Access& access) {
  moved_ = 0;
  if (!job_.fill) return copy(who, access.source, access.target);
  return fill(who, access.target, std::rotr(job_.value, static_cast<int>(access.offset % 4 * 8)));
}

void DataMover::end(const Access& access) {
  flying_ -= access.target.bytes;
  hub_.end(access.target_ticket);
  if (!job_.fill) hub_.end(access.source_ticket);
}

void DataMover::abort() {
  for (const Access& access : in_flight_) end(access);
  in_flight_.clear();
  again_.clear();
  blocked_.reset();
  issued_ = job_.bytes;
}

// One that is due, at random; in_flight_.size() when none is.
std::size_t DataMover::pick() {
  const ModelTime now = delay_ == ModelTime{} ? ModelTime::max() : clock_.now();
  const std::size_t first = random_.below(in_flight_.size());
  for (std::size_t i = 0; i < in_flight_.size(); ++i) {
    const std::size_t at = (first + i) % in_flight_.size();
    if (in_flight_[at].due <= now) return at;
  }
  return in_flight_.size();
}

DataMover::Result DataMover::run(const Requester& who, std::size_t& budget) {
  const std::uint64_t window = ordered_ ? 1 : window_;
  for (;;) {
    while (!blocked_ && !all_issued() && flying_ < window)
      if (!issue(who)) break;
    if (in_flight_.empty()) {
      if (!blocked_) {
        if (streaming_) _mm_sfence();  // before any fence or pointer that tells of the data
        return {State::kDone, Outcome::kOk, 0, false, {}};
      }
      const Result result = *blocked_;
      blocked_.reset();
      return result;
    }
    if (budget == 0) return {State::kMore, Outcome::kOk, 0, false, {}};
    const std::size_t at = pick();
    if (at == in_flight_.size()) return {State::kLater, Outcome::kOk, 0, false, {}};
    const Access access = in_flight_[at];
    const Outcome outcome = finish(who, access);
    end(access);
    in_flight_[at] = in_flight_.back();
    in_flight_.pop_back();
    if (outcome != Outcome::kOk) {
      const std::uint64_t at = access.offset + moved_;
      if (outcome == Outcome::kRetry) again_.push_back({at, access.target.bytes - moved_});
      const std::uint64_t side = failed_write_ ? job_.target : job_.source;
      return {State::kFailed, outcome, side + at, failed_write_, hub_.last_error()};
    }
    budget -= std::min<std::size_t>(budget, access.target.bytes);
  }
}

}  // namespace gpusim
