// Where rings, pointer words and records lie, for both address modes, in one place (errata A17;
// docs/hardware/nht.md "Ring memory", docs/hardware/ualink.md U05, U23, U46).
#pragma once

#include <cstdint>
#include <vector>

#include "fabric/types.h"

namespace fabric {

// Facts of one accelerator's own ring memory and of the remote addresses that it uses as a sender.
// A value: copy it freely.
class Layout {
 public:
  // `self` is this accelerator, `record_page` the page of its own NPA window at which the
  // alias-mode records are mapped (ident mode has them in the pointer pages).
  Layout(AddressMode mode, AccelId self, std::uint64_t record_page = 0)
      : mode_(mode), self_(self), record_page_(record_page) {}

  AddressMode mode() const { return mode_; }
  AccelId self() const { return self_; }

  // --- Own memory (byte offsets into the ring buffer or the record buffer) ---

  std::uint64_t ring_buffer_bytes() const;    // 2 MiB alias, 3 MiB ident
  std::uint64_t record_buffer_bytes() const;  // 8 KiB alias, 0 ident
  // The ring in which `sender` leaves entries for us.
  std::uint64_t ring_offset(AccelId sender, RingType ring) const;
  // The 64-bit word in which `sender` counts them.
  std::uint64_t pointer_offset(AccelId sender, RingType ring) const;
  // The record about our own ring at `peer`, written by `peer`'s firmware. Alias: offset into the
  // record buffer; ident: into the ring buffer.
  std::uint64_t record_offset(AccelId peer, RingType ring) const;

  // --- Own NPA window: what VMID 15 must map before the first HELLO (U30) ---

  struct Mapping {
    NpaRange range;
    bool records = false;            // from the record buffer, else from the ring buffer
    std::uint64_t offset_bytes = 0;  // into that buffer
  };
  // Alias: the ring buffer in one piece, and the records. Ident: three pages for `sender`.
  std::vector<Mapping> mappings(AccelId sender) const;
  // What opcode 3 tells the receiver's firmware (U04).
  Npa record_npa(AccelId peer, RingType ring) const;

  // --- Remote addresses (receiver's id in place) ---

  Npa remote_slot(AccelId receiver, RingType ring, std::uint64_t index) const;
  Npa remote_pointer(AccelId receiver, RingType ring) const;
  // Bits 51:12 name the receiver, 11:0 the port and the ring (U39, U49); a 4-byte store.
  static Npa doorbell(AccelId receiver, RingType ring, std::uint8_t port);

  // The pages that the sender's GART maps for one peer, as byte addresses of page starts.
  struct RemotePages {
    Npa interrupt_ring;
    Npa shootdown_ring;
    Npa pointers;
    Npa doorbell;
  };
  RemotePages remote_pages(AccelId receiver) const;

 private:
  AddressMode mode_;
  AccelId self_;
  std::uint64_t record_page_;
};

inline constexpr std::uint64_t kRingEntries = 64;
inline constexpr std::uint64_t kEntryBytes = 64;
inline constexpr std::uint64_t kRingBytes = kRingEntries * kEntryBytes;
inline constexpr std::uint64_t kWindowShift = 29;  // pages of one accelerator's window: 2^29
inline constexpr std::uint64_t kWindowPages = 1ULL << kWindowShift;

// The page `page` of `owner`'s window, as an address.
constexpr Npa npa_of(AccelId owner, std::uint64_t page) {
  return Npa(((static_cast<std::uint64_t>(owner.value()) << kWindowShift) | page) << kPageShift);
}

}  // namespace fabric
