// Retry faults between the interrupt ring and the fault pipeline: the soft ring.
//
// The device's CAM holds one entry for each page that waits, and reports no other page in its place
// until the entry is acknowledged. So there is one slot for each entry, the ring cannot overflow,
// and whoever takes a fault gets an owner of its entry: the acknowledgement happens on every path,
// when the owner goes (docs/hardware/errata.md C3).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "daemon/gpu/interrupt/page_fault.h"
#include "daemon/gpu/registers/osssys.h"

namespace gpuumd {

class RetryFaults;

// One fault taken out, and the duty to acknowledge it. Move-only; must not outlive its RetryFaults.
class RetryFault {
 public:
  RetryFault(RetryFault&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)), fault_(other.fault_) {}
  RetryFault& operator=(RetryFault&& other) noexcept {
    if (this != &other) {
      acknowledge();
      owner_ = std::exchange(other.owner_, nullptr);
      fault_ = other.fault_;
    }
    return *this;
  }
  ~RetryFault() { acknowledge(); }

  const PageFault& fault() const { return fault_; }

  // Frees the CAM entry now: the access tries again, and if it fails again a new fault arrives.
  void acknowledge();

 private:
  friend class RetryFaults;
  RetryFault(RetryFaults& owner, const PageFault& fault) : owner_(&owner), fault_(fault) {}

  RetryFaults* owner_;
  PageFault fault_;
};

// Device thread.
class RetryFaults {
 public:
  struct Counters {
    std::uint64_t queued = 0;
    std::uint64_t repeated = 0;  // of an entry that is queued or in service: dropped
    std::uint64_t acknowledged = 0;
  };

  // `acknowledge` tells the device that an entry is free.
  explicit RetryFaults(std::move_only_function<void(std::uint16_t)> acknowledge)
      : acknowledge_(std::move(acknowledge)) {}
  RetryFaults(const RetryFaults&) = delete;

  // False when the entry's fault is already here: the device says it again after a second, and once
  // the entry is acknowledged the access speaks up for itself.
  bool arrive(const PageFault& fault);

  // The oldest one.
  std::optional<RetryFault> next();

  // Acknowledges all that is queued, unserved. What is in service stays with its owners.
  void clear();
  // The device was reset and has forgotten its entries: forgets the queue without a word to it.
  void forget();

  std::size_t queued() const { return count_; }
  std::size_t in_service() const { return in_service_; }
  const Counters& counters() const { return counters_; }

 private:
  friend class RetryFault;
  enum class Slot : std::uint8_t { kFree, kQueued, kInService };

  PageFault pop();
  void release(std::uint16_t index);

  std::move_only_function<void(std::uint16_t)> acknowledge_;
  std::array<Slot, osssys::kCamEntries> slots_{};
  std::array<PageFault, osssys::kCamEntries> ring_;  // in order of arrival
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::size_t in_service_ = 0;
  Counters counters_;
};

inline void RetryFault::acknowledge() {
  if (owner_ != nullptr) std::exchange(owner_, nullptr)->release(fault_.cam_index);
}

}  // namespace gpuumd
