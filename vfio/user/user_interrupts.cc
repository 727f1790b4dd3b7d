// MSI-X and reset of a vfio-user device.
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/bytes.h"
#include "vfio/user/user_device.h"

namespace vfio {

using wire::Command;

base::Result<void> UserDevice::check_msix(unsigned count, Clock::time_point deadline) {
  if (count == 0) return base::fail(base::Errc::kInvalidArgument, "no MSI-X vectors");
  if (irq_count_ <= wire::kMsixIndex) return base::fail(base::Errc::kUnsupported, "MSI-X");
  const wire::IrqInfo request{sizeof(request), 0, wire::kMsixIndex, 0};
  wire::IrqInfo info{};
  auto reply = transport_.call({.command = Command::kDeviceGetIrqInfo,
                                .head = base::as_bytes(request),
                                .reply = base::as_writable_bytes(info),
                                .reply_min = sizeof(info)},
                               deadline);
  if (!reply) return std::unexpected(reply.error());
  if (info.index != wire::kMsixIndex)
    return transport_.broken(Command::kDeviceGetIrqInfo, "another interrupt than asked for");
  if ((info.flags & wire::kIrqEventfd) == 0 || info.count < count)
    return base::fail(base::Errc::kUnsupported,
                      std::to_string(count) + " MSI-X vectors of " + std::to_string(info.count));
  if ((info.flags & wire::kIrqNoResize) != 0 && count > server_.max_msg_fds)
    return base::fail(base::Errc::kUnsupported,
                      std::to_string(count) + " MSI-X vectors in one message");
  return {};
}

base::Result<std::vector<base::UniqueFd>> UserDevice::arm_msix(unsigned count) {
  const auto deadline = within(options_.call);
  if (auto ok = check_msix(count, deadline); !ok) return std::unexpected(ok.error());
  std::vector<base::UniqueFd> eventfds;
  std::vector<int> raw;
  for (unsigned i = 0; i < count; ++i) {
    base::UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!fd) return base::fail(base::Errc::kSystem, "eventfd of an MSI-X vector", errno);
    raw.push_back(fd.get());
    eventfds.push_back(std::move(fd));
  }
  armed_ = true;  // even if only some will be
  const auto at_once = std::min<std::uint64_t>(server_.max_msg_fds, kMaxMessageFds);
  for (std::size_t start = 0; start < raw.size(); start += at_once) {
    const auto some = std::span<const int>(raw).subspan(start).first(
        std::min<std::size_t>(at_once, raw.size() - start));
    auto sent = set_irqs(wire::kIrqDataEventfd | wire::kIrqActionTrigger,
                         static_cast<std::uint32_t>(start), some, deadline);
    if (!sent) {
      if (!lost()) (void)disarm(deadline);
      return std::unexpected(sent.error());
    }
  }
  return eventfds;
}

base::Result<void> UserDevice::set_irqs(std::uint32_t flags, std::uint32_t start,
                                        std::span<const int> eventfds, Clock::time_point deadline) {
  const wire::IrqSet request{sizeof(request), flags, wire::kMsixIndex, start,
                             static_cast<std::uint32_t>(eventfds.size())};
  auto reply = transport_.call(
      {.command = Command::kDeviceSetIrqs, .head = base::as_bytes(request), .fds = eventfds},
      deadline);
  if (!reply) return std::unexpected(reply.error());
  return {};
}

base::Result<void> UserDevice::disarm_msix() {
  if (!armed_) return {};
  return disarm(within(options_.call));
}

base::Result<void> UserDevice::disarm(Clock::time_point deadline) {
  // Zero vectors from 0 without data: the whole index is switched off.
  auto done = set_irqs(wire::kIrqDataNone | wire::kIrqActionTrigger, 0, {}, deadline);
  if (done) armed_ = false;
  return done;
}

base::Result<void> UserDevice::reset() {
  if (!can_reset_) return base::fail(base::Errc::kUnsupported, "reset of this device");
  auto reply =
      transport_.call({.command = Command::kDeviceReset, .head = {}}, within(options_.reset));
  if (!reply) return std::unexpected(reply.error());
  return {};
}

}  // namespace vfio
