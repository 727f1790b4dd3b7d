// Words that the parts of fabric/ share. Nothing here does I/O, reads a clock or starts a thread:
// time comes in as an argument, work goes out as actions (fabric/action.h).
#pragma once

#include <bitset>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/address.h"
#include "base/result.h"

namespace fabric {

using base::AccelId;
using base::Errc;
using base::Npa;

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;

// Names one action that will be answered (fabric/event.h); never used twice in the life of a Node.
using OpId = base::Id<struct OpIdTag, std::uint64_t>;
// Chosen by the caller for a request, given back once in `Complete`.
using Token = base::Id<struct TokenTag, std::uint64_t>;
// The daemon's name for a buffer. fabric/ only compares it.
using BufferId = base::Id<struct BufferIdTag, std::uint64_t>;
// One life of an imported object; a handle imported again after a revoke has a new one.
using ImportId = base::Id<struct ImportIdTag, std::uint64_t>;

// How often the connection to one peer has been made; 0 is "never". Local, never on the wire
// (docs/hardware/ualink.md U45). 64 bits, so that it does not come round to 0 (errata A22).
using Generation = std::uint64_t;

inline constexpr std::uint64_t kPageShift = 12;
inline constexpr std::size_t kMaxAccelerators = 256;  // of a pod (docs/hardware/nht.md, Limits)

// The two ways in which an exporter sees who accesses it (docs/hardware/nht.md, "Address modes").
enum class AddressMode : std::uint8_t {
  kAlias = 0,  // source aliasing: all importers share one address space
  kIdent = 1,  // source identification: each importer has its own
};

// The two rings that one accelerator has in another one's memory. The values are the type bit in
// the NPA of a ring; the doorbell's index is the opposite (U39).
enum class RingType : std::uint8_t { kShootdown = 0, kInterrupt = 1 };

// 4 KiB pages of local VRAM behind an exported buffer, in order.
struct VramRun {
  base::VramOffset at;
  std::uint64_t pages = 0;
  friend bool operator==(const VramRun&, const VramRun&) = default;
};

// Page numbers inside this accelerator's own NPA window, without accelerator id.
struct NpaRange {
  std::uint64_t page = 0;
  std::uint64_t pages = 0;
  std::uint64_t end() const { return page + pages; }
  friend bool operator==(const NpaRange&, const NpaRange&) = default;
};

// Members by accelerator id. The wire has room for 1024 ids, a pod for 256 accelerators.
using AccelSet = std::bitset<1024>;

constexpr std::string_view to_string(AddressMode mode) {
  return mode == AddressMode::kAlias ? "alias" : "ident";
}

// A source of random bits, handed in: the system's in the daemon, a seeded one in tests. Handles
// are capabilities, so the daemon's must be cryptographically good.
class RandomSource {
 public:
  virtual ~RandomSource() = default;
  virtual std::uint64_t next() = 0;
};

}  // namespace fabric
