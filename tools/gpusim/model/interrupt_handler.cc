#include "tools/gpusim/model/interrupt_handler.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/bytes.h"

namespace gpusim {
namespace {

constexpr unsigned kVectorsAStep = 64;
constexpr std::uint16_t kCidIh = 40;  // MMHUB write client (docs/hardware/vmhub.md)

// The word goes after everything that was stored before it.
bool store_word(HostBus& host, base::Iova at, std::uint32_t word) {
  if (std::byte* memory = host.direct(at, sizeof word, true)) {
    __atomic_store_n(reinterpret_cast<std::uint32_t*>(memory), word, __ATOMIC_RELEASE);
    return true;
  }
  return host.write(at, base::as_bytes(word));
}

bool store_vector(HostBus& host, base::Iova at, std::span<const std::byte> bytes) {
  if (std::byte* memory = host.direct(at, bytes.size(), true)) {
    std::ranges::copy(bytes, memory);
    return true;
  }
  return host.write(at, bytes);
}

}  // namespace

bool InterruptHandler::raise(const Iv& iv) {
  if (writing_) {  // our own access faulted: its report would fault again
    ++counters_.lost_writes;
    return true;
  }
  if (!rings_[0].enabled()) {
    ++counters_.off;
    return false;
  }
  const Verdict verdict = filter_ ? filter_(iv) : Verdict{};
  if (verdict.drop) {
    ++counters_.dropped_scenario;
    return true;
  }
  const ModelTime now = clock_.now();
  const IvImage image = encode(iv, ticks_of(now));
  for (unsigned i = 0; i <= verdict.duplicates; ++i) {
    ++counters_.raised;
    if (verdict.delay > ModelTime::zero()) {
      const ModelTime due = now + verdict.delay;
      delayed_.insert(std::ranges::upper_bound(delayed_, due, {}, &Delayed::due),
                      Delayed{due, image});
    } else {
      enqueue(image);
    }
  }
  return true;
}

void InterruptHandler::raise_retry_fault(unsigned hub, std::uint64_t page, const Iv& iv) {
  if (writing_) {
    ++counters_.lost_writes;
    return;
  }
  if (!rings_[0].enabled()) {  // no entry: nobody would ever acknowledge it
    ++counters_.off;
    return;
  }
  const auto index = cam_.fault(hub, page, iv, clock_.now());
  if (!index) return;
  Iv indexed = iv;
  indexed.src_data[3] = *index;
  raise(indexed);
}

std::uint16_t InterruptHandler::pasid(bool mmhub, std::uint8_t vmid) const {
  return static_cast<std::uint16_t>((mmhub ? lut_mm_ : lut_)[vmid & 0xF]->stored);
}

bool InterruptHandler::doorbell(std::uint32_t dword, std::uint64_t value, bool /*wide*/) {
  const auto low = static_cast<std::uint32_t>(value);
  for (unsigned ring = 0; ring < 2; ++ring) {
    if (!InterruptRing::doorbell_matches(rings_[ring].doorbell, dword)) continue;
    write_rptr(ring, low);
    return true;
  }
  if (!InterruptRing::doorbell_matches(cam_doorbell_, dword)) return false;
  cam_.acknowledge(low & 0x3FF);
  return true;
}

bool InterruptHandler::step() {
  bool did = release_delayed();
  did |= repeat_unacknowledged();
  for (unsigned n = 0; n < kVectorsAStep && deliver(1); ++n) did = true;
  did |= queue_self_interrupt();
  for (unsigned n = 0; n < kVectorsAStep && deliver(0); ++n) did = true;
  did |= announce_rest();
  return did;
}

bool InterruptHandler::waiting() const { return !delayed_.empty() || cam_.live() != 0; }

std::size_t InterruptHandler::queued() const {
  return queues_[0].size() + queues_[1].size() + delayed_.size();
}

void InterruptHandler::reset() {
  rings_ = {};
  for (auto& queue : queues_) queue.clear();
  delayed_.clear();
  cam_.configure(false, 0);
  last_ = {};
  armed_ = true;
  self_pending_ = false;
  ring1_routes_ = {};
  cam_doorbell_ = 0;
  cntl2_ = 0;
  if (host_ != nullptr) host_->lower_line();
}

// Client 0 is the interrupt handler itself, whose vectors never go to ring 1.
bool InterruptHandler::routed_to_ring1(std::uint8_t client, std::uint8_t source) const {
  if (!rings_[1].enabled() || client == 0) return false;
  return std::ranges::any_of(ring1_routes_, [&](std::uint32_t route) {
    const bool match_source = (route >> 16 & 1) != 0;
    return (route & 0xFF) == client && (!match_source || (route >> 8 & 0xFF) == source);
  });
}

void InterruptHandler::enqueue(const IvImage& image) {
  const bool ring1 = routed_to_ring1(image[0] & 0xFF, image[0] >> 8 & 0xFF);
  queues_[ring1 ? 1 : 0].push_back(image);
}

bool InterruptHandler::release_delayed() {
  bool did = false;
  while (!delayed_.empty() && delayed_.front().due <= clock_.now()) {
    enqueue(delayed_.front().image);
    delayed_.pop_front();
    did = true;
  }
  return did;
}

bool InterruptHandler::repeat_unacknowledged() {
  bool did = false;
  while (const auto iv = cam_.overdue(clock_.now())) {
    raise(*iv);
    did = true;
  }
  return did;
}

// One vector: ring, then write-back word, then MSI (D27).
bool InterruptHandler::deliver(unsigned number) {
  InterruptRing& ring = rings_[number];
  auto& queue = queues_[number];
  if (queue.empty() || !ring.enabled()) return false;
  if (ring.full() && !ring.overflow_enabled()) return false;  // waits for the driver
  const IvImage image = queue.front();
  queue.pop_front();
  write_memory(ring, ring.address() + ring.wptr, base::as_bytes(image));
  const bool overflowed = ring.overflow;
  ring.advance();
  if (ring.overflow && !overflowed) ++counters_.overflows;
  last_ = image;
  ++counters_.written;
  if (number == 1) {
    self_pending_ = (cntl2_ >> 8 & 1) != 0;
    return true;
  }
  write_back();
  announce_write();
  return true;
}

// An access that fails is lost, as on a real bus; the pointers go on.
bool InterruptHandler::write_memory(const InterruptRing& ring, std::uint64_t address,
                                    std::span<const std::byte> bytes) {
  bool done = false;
  writing_ = true;
  if (ring.mc_space() == static_cast<unsigned>(McSpace::kBus)) {
    const base::Iova at(address);
    if (host_ != nullptr) {
      done = bytes.size() == sizeof(std::uint32_t)
                 ? store_word(*host_, at, base::load<std::uint32_t>(bytes, 0))
                 : store_vector(*host_, at, bytes);
    }
  } else if (ring.mc_space() == static_cast<unsigned>(McSpace::kGpuVirtual) && space_ != nullptr) {
    const Requester who{.engine = "ih", .vmid = ring.vmid(), .cid_read = 0, .cid_write = kCidIh};
    done = space_->write(who, address, bytes) == Outcome::kOk;
  }
  writing_ = false;
  if (!done) ++counters_.lost_writes;
  return done;
}

void InterruptHandler::write_back() {
  const InterruptRing& ring = rings_[0];
  if (!ring.write_back_enabled()) return;
  const std::uint32_t word = ring.wptr_register();
  write_memory(ring, ring.write_back_address(), base::as_bytes(word));
}

bool InterruptHandler::queue_self_interrupt() {
  if (!self_pending_ || !rings_[0].enabled()) return false;
  self_pending_ = false;
  Iv iv{.client = 0, .source = 0, .ring_id = 1};
  iv.src_data[0] = rings_[1].wptr;
  ++counters_.self_interrupts;
  queues_[0].push_back(encode(iv, ticks_of(clock_.now())));
  return true;
}

// RPTR_REARM off: an MSI for each vector. On: one, until the read pointer is written.
void InterruptHandler::announce_write() {
  const InterruptRing& ring = rings_[0];
  if (host_ == nullptr || !ring.interrupt_enabled()) return;
  if (ring.rearm() && !std::exchange(armed_, false)) return;
  host_->raise_interrupt(0);
  ++counters_.msis;
}

// A read pointer written short of the write pointer, or ENABLE_INTR set over a ring that is not
// empty, fires at once.
bool InterruptHandler::announce_rest() {
  const InterruptRing& ring = rings_[0];
  const bool due = armed_ && ring.enabled() && ring.rearm() && ring.interrupt_enabled() &&
                   !ring.empty() && host_ != nullptr;
  if (due) announce_write();
  return due;
}

}  // namespace gpusim
