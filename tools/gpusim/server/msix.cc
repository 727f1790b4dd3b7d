#include "tools/gpusim/server/msix.h"

#include "tools/gpusim/server/signal.h"

namespace gpusim {

namespace {

constexpr std::uint64_t kEntry = 16;
constexpr std::uint32_t kMasked = 1;

}  // namespace

Msix::Msix(const MsixLayout& layout) : layout_(layout), table_(layout.vectors) {}

bool Msix::owns(std::uint64_t offset) const {
  return (offset >= layout_.table_offset && offset - layout_.table_offset < vectors() * kEntry) ||
         (offset >= layout_.pba_offset && offset - layout_.pba_offset < 8);
}

std::uint32_t Msix::read(std::uint64_t offset) const {
  if (offset >= layout_.pba_offset && offset - layout_.pba_offset < 8) {
    std::uint32_t bits = 0;
    const auto first = static_cast<unsigned>(offset - layout_.pba_offset) / 4 * 32;
    for (unsigned i = 0; i < 32 && first + i < vectors(); ++i)
      bits |= std::uint32_t{table_[first + i].pending} << i;
    return bits;
  }
  const Vector& vector = table_[(offset - layout_.table_offset) / kEntry];
  switch ((offset - layout_.table_offset) % kEntry / 4) {
    case 0:
      return vector.address_low;
    case 1:
      return vector.address_high;
    case 2:
      return vector.data;
    default:
      return vector.control;
  }
}

void Msix::write(std::uint64_t offset, std::uint32_t value) {
  if (offset >= layout_.pba_offset && offset - layout_.pba_offset < 8) return;  // read-only
  Vector& vector = table_[(offset - layout_.table_offset) / kEntry];
  switch ((offset - layout_.table_offset) % kEntry / 4) {
    case 0:
      vector.address_low = value & ~3u;
      break;
    case 1:
      vector.address_high = value;
      break;
    case 2:
      vector.data = value;
      break;
    default:
      vector.control = value & kMasked;
      vector.control_written = true;
      send_pending();
  }
}

void Msix::set_function(bool enabled, bool masked) {
  enabled_ = enabled;
  masked_ = masked;
  send_pending();
}

void Msix::set_eventfd(unsigned vector, base::UniqueFd fd) {
  table_[vector].eventfd = std::move(fd);
  send_pending();
}

void Msix::clear_eventfds() {
  for (Vector& vector : table_) vector.eventfd.reset();
}

bool Msix::can_send(const Vector& vector) const {
  const bool vector_masked = vector.control_written && (vector.control & kMasked) != 0;
  return enabled_ && !masked_ && !vector_masked && static_cast<bool>(vector.eventfd);
}

void Msix::raise(unsigned vector) {
  if (vector >= table_.size()) return;
  table_[vector].pending = true;
  send_pending();
}

void Msix::trigger(unsigned vector) { signal_client(table_[vector].eventfd.get()); }

void Msix::send_pending() {
  for (unsigned i = 0; i < vectors(); ++i) {
    if (!table_[i].pending || !can_send(table_[i])) continue;
    table_[i].pending = false;
    trigger(i);
  }
}

void Msix::reset() {
  for (Vector& vector : table_) {
    base::UniqueFd kept = std::move(vector.eventfd);
    vector = Vector{};
    vector.eventfd = std::move(kept);
  }
}

}  // namespace gpusim
