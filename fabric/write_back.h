// The record that the receiver's firmware writes into the sender's memory: the only place that
// knows where its words are (docs/hardware/ualink.md U03, errata A16).
#pragma once

#include <cstddef>
#include <cstdint>

namespace fabric {

struct WriteBackRecord {
  std::uint32_t data = 0;    // sequence of the last consumed entry
  std::uint32_t status = 0;  // of that entry; see NhtStatus
  std::uint64_t rptr = 0;    // entries consumed, counted from firmware load
  friend bool operator==(const WriteBackRecord&, const WriteBackRecord&) = default;
};

inline constexpr std::size_t kRecordBytes = 16;

// Reads the record at `at` (16-byte aligned, kRecordBytes long, written by the device meanwhile):
// data first with acquire, then the words that the firmware stored before it.
inline WriteBackRecord read_record(const std::byte* at) {
  WriteBackRecord record;
  const auto* data = reinterpret_cast<const std::uint32_t*>(at);
  const auto* rptr = reinterpret_cast<const std::uint64_t*>(at + 8);
  record.data = __atomic_load_n(data, __ATOMIC_ACQUIRE);
  record.status = __atomic_load_n(data + 1, __ATOMIC_RELAXED);
  record.rptr = __atomic_load_n(rptr, __ATOMIC_RELAXED);
  return record;
}

// Results of one ring entry (docs/hardware/nht.md, "Status").
enum class NhtStatus : std::uint32_t {
  kOk = 0,
  kFifoOverflow = 1,
  kBadCommand = 2,
  kTimeout = 3,
  kBadMetadata = 4,
  kRingOverflow = 5,
  kBadWritePointer = 6,
  kInterruptNotRaised = 7,
  kBadRingAddress = 8,
  kBadWriteBackAddress = 9,
};

}  // namespace fabric
