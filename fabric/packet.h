// Entries of a ring and of the firmware's metadata table, as bytes (docs/hardware/nht.md, "Packets"
// and "Metadata").
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fabric/layout.h"
#include "fabric/message.h"
#include "fabric/types.h"

namespace fabric {

using Packet = std::array<std::uint32_t, 16>;

// All three ask for data, status and read pointer to be written back (D40).
Packet interrupt_packet(std::uint32_t sequence, const Dwords& message);
// Whole space always: a smaller range is not honoured by every receiver (U26).
Packet shootdown_packet(std::uint32_t sequence, bool heavy);
Packet write_back_packet(std::uint32_t sequence, Npa record);

inline constexpr std::size_t kMetadataEntryBytes = 40;
inline constexpr std::uint32_t kMetadataMagic = 0x4E48'5446;
// Value of the mailbox's DATA register for a table of 256 entries.
inline constexpr std::uint32_t kMetadataData = kMaxAccelerators << 8;

// The table for `layout.self()` whose ring buffer begins at `ring_buffer` in VMID 0 (U42): one
// entry a member, its own and everybody else's zero.
std::vector<std::byte> metadata_table(const Layout& layout, base::McAddress ring_buffer,
                                      const AccelSet& members);

}  // namespace fabric
