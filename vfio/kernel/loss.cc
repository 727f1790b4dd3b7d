#include "vfio/kernel/loss.h"

#include <unistd.h>

#include <cerrno>

#include "vfio/eventfds.h"

namespace vfio {
namespace {

constexpr unsigned kDetailAt = 8;

}  // namespace

base::Result<std::unique_ptr<Loss>> Loss::create() {
  auto event = make_eventfd("eventfd of a device");
  if (!event) return std::unexpected(event.error());
  return std::unique_ptr<Loss>(new Loss(std::move(*event)));
}

void Loss::note(LossReason reason, std::uint32_t detail) noexcept {
  std::uint64_t none = 0;
  const auto state = static_cast<std::uint64_t>(reason) | std::uint64_t{detail} << kDetailAt;
  if (!state_.compare_exchange_strong(none, state, std::memory_order_acq_rel)) return;
  const int kept = errno;  // a signal handler may be here
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = ::write(event_.get(), &one, sizeof(one));
  errno = kept;
}

std::string Loss::why() const {
  const std::uint64_t state = state_.load(std::memory_order_acquire);
  const std::string detail = std::to_string(state >> kDetailAt);
  switch (static_cast<LossReason>(state & ((1u << kDetailAt) - 1))) {
    case LossReason::kNone:
      return "";
    case LossReason::kLetGo:
      return "let go of";
    case LossReason::kRequested:
      return "the kernel wants the device back (unbind or hot-unplug)";
    case LossReason::kError:
      return "the kernel reports an error of the device that cannot be corrected (PCIe AER; its "
             "log "
             "says which)";
    case LossReason::kBarGone:
      return "BAR " + detail + " went away under an access (the device was removed, or lost power)";
    case LossReason::kAllOnes:
      return "configuration space reads all ones: the device does not answer";
    case LossReason::kConfigGone:
      return "the kernel cannot read configuration space any more (errno " + detail + ")";
  }
  return "unknown";
}

}  // namespace vfio
