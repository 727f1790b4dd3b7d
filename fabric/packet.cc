#include "fabric/packet.h"

#include "base/bytes.h"

namespace fabric {
namespace {

constexpr std::uint32_t kOpTlbInvalidate = 1;
constexpr std::uint32_t kOpInterrupt = 2;
constexpr std::uint32_t kOpUpdateWriteBack = 3;
constexpr std::uint32_t kUpdateHeadPointer = 1U << 28;
constexpr std::uint32_t kWriteBackEnable = 1U << 29;
constexpr std::uint64_t kWholeSpace = 0x000F'FFFF'FFFF'F800;
constexpr std::uint64_t kFlushLight = 1;
constexpr std::uint64_t kFlushHeavy = 2;

Packet packet(std::uint32_t opcode, std::uint32_t sequence) {
  return {opcode | kUpdateHeadPointer | kWriteBackEnable, sequence};
}

}  // namespace

Packet interrupt_packet(std::uint32_t sequence, const Dwords& message) {
  Packet p = packet(kOpInterrupt, sequence);
  for (std::size_t i = 0; i < message.size(); ++i) p[12 + i] = message[i];
  return p;
}

Packet shootdown_packet(std::uint32_t sequence, bool heavy) {
  Packet p = packet(kOpTlbInvalidate, sequence);
  const std::uint64_t what = kWholeSpace | (heavy ? kFlushHeavy : kFlushLight);
  p[8] = static_cast<std::uint32_t>(what);
  p[9] = static_cast<std::uint32_t>(what >> 32);
  return p;
}

Packet write_back_packet(std::uint32_t sequence, Npa record) {
  Packet p = packet(kOpUpdateWriteBack, sequence);
  p[2] = static_cast<std::uint32_t>(record.value()) & ~3U;
  p[3] = static_cast<std::uint32_t>(record.value() >> 32) & 0xF'FFFF;
  return p;
}

std::vector<std::byte> metadata_table(const Layout& layout, base::McAddress ring_buffer,
                                      const AccelSet& members) {
  constexpr std::uint32_t kLog2Entries = 6;
  static_assert(1U << kLog2Entries == kRingEntries);
  std::vector<std::byte> table(kMaxAccelerators * kMetadataEntryBytes);
  for (std::size_t id = 0; id < kMaxAccelerators; ++id) {
    const AccelId sender(static_cast<std::uint16_t>(id));
    if (!members.test(id) || sender == layout.self()) continue;
    const std::span entry(table.data() + id * kMetadataEntryBytes, kMetadataEntryBytes);
    const auto at = [&](std::uint64_t offset) { return (ring_buffer + offset).value(); };
    base::store(entry, 0, kMetadataMagic);
    base::store(entry, 4, kLog2Entries);
    base::store(entry, 8, at(layout.ring_offset(sender, RingType::kInterrupt)));
    base::store(entry, 16, at(layout.ring_offset(sender, RingType::kShootdown)));
    base::store(entry, 24, at(layout.pointer_offset(sender, RingType::kInterrupt)));
    base::store(entry, 32, at(layout.pointer_offset(sender, RingType::kShootdown)));
  }
  return table;
}

}  // namespace fabric
