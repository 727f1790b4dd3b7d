// Whether a device of the kernel's VFIO is lost, and why. Noted by its owner, by its BARs and by a
// signal handler; the first reason stays.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace vfio {

enum class LossReason : std::uint8_t {
  kNone,
  kLetGo,       // by ourselves
  kRequested,   // the kernel's request interrupt
  kError,       // the kernel's error interrupt (AER)
  kBarGone,     // SIGBUS; the detail is the BAR
  kAllOnes,     // configuration space
  kConfigGone,  // the kernel no longer reads configuration space; the detail is the errno
};

class Loss {
 public:
  // kSystem when there is no descriptor left.
  static base::Result<std::unique_ptr<Loss>> create();

  // Any thread and any signal handler.
  void note(LossReason reason, std::uint32_t detail = 0) noexcept;
  bool lost() const { return state_.load(std::memory_order_acquire) != 0; }
  std::string why() const;  // empty while it is not lost

  int event_fd() const { return event_.get(); }  // readable from note() on; -1 after close()
  void close() { event_.reset(); }               // when nobody can note() any more but its owner

 private:
  explicit Loss(base::UniqueFd event) : event_(std::move(event)) {}

  std::atomic<std::uint64_t> state_ = 0;  // the reason, and its detail above it
  base::UniqueFd event_;
};

}  // namespace vfio
