// Interrupts and reset of a vfio-user device.
#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "vfio/eventfds.h"
#include "vfio/user/user_device.h"

namespace vfio {

using wire::Command;

namespace {

std::string name_of(std::uint32_t index, unsigned count) {
  return index == wire::kIntxIndex ? "INTx" : std::to_string(count) + " MSI-X vectors";
}

}  // namespace

base::Result<void> UserDevice::check_irqs(std::uint32_t index, unsigned count,
                                          Clock::time_point deadline) {
  if (count == 0) return base::fail(base::Errc::kInvalidArgument, "no MSI-X vectors");
  if (armed_ && *armed_ != index)
    return base::fail(base::Errc::kBusy, "interrupts of another kind are armed");
  if (irq_count_ <= index) return base::fail(base::Errc::kUnsupported, name_of(index, count));
  const wire::IrqInfo request{sizeof(request), 0, index, 0};
  wire::IrqInfo info{};
  auto reply = transport_.call({.command = Command::kDeviceGetIrqInfo,
                                .head = base::as_bytes(request),
                                .reply = base::as_writable_bytes(info),
                                .reply_min = sizeof(info)},
                               deadline);
  if (!reply) return std::unexpected(reply.error());
  if (info.index != index)
    return transport_.broken(Command::kDeviceGetIrqInfo, "another interrupt than asked for");
  if ((info.flags & wire::kIrqEventfd) == 0 || info.count < count)
    return base::fail(base::Errc::kUnsupported,
                      name_of(index, count) + " of " + std::to_string(info.count));
  if ((info.flags & wire::kIrqNoResize) != 0 && count > server_.max_msg_fds)
    return base::fail(base::Errc::kUnsupported, name_of(index, count) + " in one message");
  return {};
}

base::Result<std::vector<base::UniqueFd>> UserDevice::arm_msix(unsigned count) {
  const auto deadline = within(options_.call);
  if (auto ok = check_irqs(wire::kMsixIndex, count, deadline); !ok)
    return std::unexpected(ok.error());
  auto eventfds = make_eventfds(count);
  if (!eventfds) return eventfds;
  if (auto armed = arm(wire::kMsixIndex, numbers_of(*eventfds), deadline); !armed)
    return std::unexpected(armed.error());
  return eventfds;
}

base::Result<base::UniqueFd> UserDevice::arm_intx() {
  const auto deadline = within(options_.call);
  if (auto ok = check_irqs(wire::kIntxIndex, 1, deadline); !ok) return std::unexpected(ok.error());
  auto fd = make_eventfd();
  if (!fd) return fd;
  const int raw = fd->get();
  if (auto armed = arm(wire::kIntxIndex, std::span(&raw, 1), deadline); !armed)
    return std::unexpected(armed.error());
  return fd;
}

base::Result<void> UserDevice::unmask_intx() {
  if (lost()) return base::fail(base::Errc::kDeviceLost, "INTx");
  if (armed_ != wire::kIntxIndex) return base::fail(base::Errc::kInvalidArgument, "INTx not armed");
  const wire::IrqSet request{sizeof(request), wire::kIrqDataNone | wire::kIrqActionUnmask,
                             wire::kIntxIndex, 0, 1};
  auto reply = transport_.call(
      {.command = Command::kDeviceSetIrqs, .head = base::as_bytes(request)}, within(options_.call));
  if (!reply) return std::unexpected(reply.error());
  return {};
}

base::Result<void> UserDevice::arm(std::uint32_t index, std::span<const int> eventfds,
                                   Clock::time_point deadline) {
  armed_ = index;  // even if only some will be
  const auto at_once = std::min<std::uint64_t>(server_.max_msg_fds, kMaxMessageFds);
  for (std::size_t start = 0; start < eventfds.size(); start += at_once) {
    const auto some =
        eventfds.subspan(start).first(std::min<std::size_t>(at_once, eventfds.size() - start));
    auto sent = set_irqs(index, wire::kIrqDataEventfd | wire::kIrqActionTrigger,
                         static_cast<std::uint32_t>(start), some, deadline);
    if (!sent) {
      if (!lost()) (void)disarm(deadline);
      return sent;
    }
  }
  return {};
}

base::Result<void> UserDevice::set_irqs(std::uint32_t index, std::uint32_t flags,
                                        std::uint32_t start, std::span<const int> eventfds,
                                        Clock::time_point deadline) {
  const wire::IrqSet request{sizeof(request), flags, index, start,
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
  auto done = set_irqs(*armed_, wire::kIrqDataNone | wire::kIrqActionTrigger, 0, {}, deadline);
  if (done) armed_.reset();
  return done;
}

base::Result<void> UserDevice::reset() {
  if (!can_reset_) return base::fail(base::Errc::kUnsupported, "reset of this device");
  const auto deadline = within(options_.reset);
  if (armed_)
    if (auto done = disarm(deadline); !done) return done;
  auto reply = transport_.call({.command = Command::kDeviceReset, .head = {}}, deadline);
  if (!reply) return std::unexpected(reply.error());
  return {};
}

}  // namespace vfio
