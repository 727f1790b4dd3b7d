#include "fabric/layout.h"

namespace fabric {
namespace {

constexpr std::uint64_t kSlotShift = 13;               // 8 KiB: two rings of one sender
constexpr std::uint64_t kRingsBytes = 2 * base::kMiB;  // 256 slots
constexpr std::uint64_t kAliasRingsPage = 0x200;       // NPA 2 MiB
constexpr std::uint64_t kAliasRecordsBytes = 8 * base::kKiB;
constexpr std::uint64_t kIdentPointerPage = 2;
constexpr std::uint64_t kIdentPages = 3;

std::uint64_t slot(AccelId id) { return static_cast<std::uint64_t>(id.value()) << kSlotShift; }
std::uint64_t type_offset(RingType ring) { return static_cast<std::uint64_t>(ring) << kPageShift; }
// Interrupt word first, in both modes.
std::uint64_t word(RingType ring) { return ring == RingType::kInterrupt ? 0 : 8; }

// Byte offsets into a window, as a sender addresses them.
std::uint64_t alias_rings() { return kAliasRingsPage << kPageShift; }
std::uint64_t alias_pointer(AccelId receiver, AccelId sender, RingType ring) {
  return slot(receiver) + 16ULL * sender.value() + word(ring);
}
std::uint64_t alias_record(AccelId peer, RingType ring) {
  return 32ULL * peer.value() + (ring == RingType::kInterrupt ? 0 : 16);
}
std::uint64_t ident_record(RingType ring) { return ring == RingType::kInterrupt ? 16 : 32; }

}  // namespace

std::uint64_t Layout::ring_buffer_bytes() const {
  return mode_ == AddressMode::kAlias ? kRingsBytes
                                      : kRingsBytes + kMaxAccelerators * base::kPageSize;
}

std::uint64_t Layout::record_buffer_bytes() const {
  return mode_ == AddressMode::kAlias ? kAliasRecordsBytes : 0;
}

std::uint64_t Layout::ring_offset(AccelId sender, RingType ring) const {
  return slot(sender) + type_offset(ring);
}

std::uint64_t Layout::pointer_offset(AccelId sender, RingType ring) const {
  if (mode_ == AddressMode::kAlias) return alias_pointer(self_, sender, ring);
  return kRingsBytes + sender.value() * base::kPageSize + word(ring);
}

std::uint64_t Layout::record_offset(AccelId peer, RingType ring) const {
  if (mode_ == AddressMode::kAlias) return alias_record(peer, ring);
  return kRingsBytes + peer.value() * base::kPageSize + ident_record(ring);
}

std::vector<Layout::Mapping> Layout::mappings(AccelId sender) const {
  if (mode_ == AddressMode::kAlias) {
    return {{.range = {kAliasRingsPage, kRingsBytes >> kPageShift}},
            {.range = {record_page_, kAliasRecordsBytes >> kPageShift}, .records = true}};
  }
  const std::uint64_t first = static_cast<std::uint64_t>(sender.value()) << kWindowShift;
  return {{.range = {first, 2}, .offset_bytes = slot(sender)},
          {.range = {first + kIdentPointerPage, kIdentPages - kIdentPointerPage},
           .offset_bytes = kRingsBytes + sender.value() * base::kPageSize}};
}

Npa Layout::record_npa(AccelId peer, RingType ring) const {
  if (mode_ == AddressMode::kAlias) return npa_of(self_, record_page_) + alias_record(peer, ring);
  return npa_of(self_, kIdentPointerPage) + ident_record(ring);
}

Npa Layout::remote_slot(AccelId receiver, RingType ring, std::uint64_t index) const {
  const Npa window = npa_of(receiver, 0);
  const std::uint64_t entry = index % kRingEntries * kEntryBytes;
  if (mode_ == AddressMode::kAlias) {
    return window + alias_rings() + slot(self_) + type_offset(ring) + entry;
  }
  return window + type_offset(ring) + entry;
}

Npa Layout::remote_pointer(AccelId receiver, RingType ring) const {
  const Npa window = npa_of(receiver, 0);
  if (mode_ == AddressMode::kAlias) {
    return window + alias_rings() + alias_pointer(receiver, self_, ring);
  }
  return window + (kIdentPointerPage << kPageShift) + word(ring);
}

Npa Layout::doorbell(AccelId receiver, RingType ring, std::uint8_t port) {
  const std::uint64_t index = ring == RingType::kInterrupt ? 0 : 1;  // not the ring's type (U39)
  return Npa(0xFFFULL << 40 | static_cast<std::uint64_t>(receiver.value()) << 30 |
             static_cast<std::uint64_t>(port & 0xF) << 8 | index << 6);
}

Layout::RemotePages Layout::remote_pages(AccelId receiver) const {
  const auto page_of = [](Npa at) { return Npa(base::align_down(at.value(), base::kPageSize)); };
  return {.interrupt_ring = remote_slot(receiver, RingType::kInterrupt, 0),
          .shootdown_ring = remote_slot(receiver, RingType::kShootdown, 0),
          .pointers = page_of(remote_pointer(receiver, RingType::kInterrupt)),
          .doorbell = page_of(doorbell(receiver, RingType::kInterrupt, 0))};
}

}  // namespace fabric
