// Words that the parts of the model share. gpusim is a second reading of the hardware contract
// (docs/hardware/): it shares machinery with the daemon (include/base) and no definition of a
// register, page-table entry, packet, interrupt vector, discovery, PSP or nHT layout. Where such a
// definition stands twice in this repository, that is wanted; tests/contract/ compares both.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace gpusim {

using ModelTime = std::chrono::nanoseconds;  // since the device started

// Time comes from outside, so that a test can turn it.
class ModelClock {
 public:
  virtual ~ModelClock() = default;
  virtual ModelTime now() const = 0;
};

// How one access of an engine ended.
enum class Outcome : std::uint8_t {
  kOk,
  kRetry,     // not yet: the engine keeps the access and tries again about every 10 us
  kFault,     // a final page fault of the requester's own translation (D14 "nack")
  kBusError,  // the host bus refused (docs/hardware/choices.md D21)
  kRefused,   // the remote accelerator refused (D46)
  kPeerLost,  // link down, or no answer in 100 ms
};

// An interrupt vector before it gets its time stamp (docs/hardware/ih.md).
struct Iv {
  std::uint8_t client = 0;
  std::uint8_t source = 0;
  std::uint8_t ring_id = 0;
  std::uint8_t vmid = 0;
  bool vmid_src_mmhub = false;
  std::uint16_t pasid = 0;
  std::uint8_t node_id = 0;
  std::array<std::uint32_t, 4> src_data{};
};

// Who makes an access: for fault reports, the access log and bus-error counts.
struct Requester {
  std::string_view engine;  // "sdma0.1 q3", "lsdma", "ih", "psp", "nht"
  std::uint8_t vmid = 0;
  std::uint16_t cid_read = 0;  // client ids as the hub reports them
  std::uint16_t cid_write = 0;
};

enum class AtomicOp : std::uint8_t {
  kAdd32,
  kAdd64,
  kSwap32,
  kSwap64,
  kCompareSwap32,
  kCompareSwap64,
};

}  // namespace gpusim
