#include "tools/gpusim/server/session.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/bytes.h"

namespace gpusim {

namespace {

// One turn serves at most this many messages, so that a client that floods one GPU leaves the
// others of the pod their steps.
constexpr int kMessagesATurn = 64;

template <class T>
std::optional<T> payload(const Message& message) {
  if (message.body.size() < sizeof(T)) return std::nullopt;
  return base::load<T>(message.body, 0);
}

}  // namespace

template <class T>
Session::Answer Session::answer_with(const T& object) {
  const auto bytes = base::as_bytes(object);
  return {0, {bytes.begin(), bytes.end()}, {}};
}

Session::Session(base::UniqueFd socket, GpuDevice& device, PciFunction& function,
                 const ServerOptions& options, ServerCounters& counters)
    : device_(device),
      function_(function),
      options_(options),
      counters_(counters),
      channel_(std::move(socket)) {
  ++counters_.clients;
  function_.config.set_memory_space(true);
  device_.attach(*this);
}

Session::~Session() {
  device_.detach();
  function_.msix.clear_eventfds();
  function_.intx.set_eventfd({});
}

void Session::break_session(const char* why) {
  if (!alive_) return;
  alive_ = false;
  ++counters_.broken_sessions;
  spdlog::warn("{}: client dropped: {}", options_.name, why);
}

bool Session::serve() {
  bool any = false;
  for (int i = 0; i < kMessagesATurn && alive_; ++i) {
    if (channel_.output_waits()) {
      if (!channel_.flush()) alive_ = false;
      if (channel_.output_waits()) return any;
      continue;
    }
    Message message;
    if (!queued_.empty()) {
      message = std::move(queued_.front());
      queued_.pop_front();
    } else {
      const auto status = channel_.receive(message);
      if (status == Channel::Status::kClosed) alive_ = false;
      if (status != Channel::Status::kMessage) return any;
    }
    any = true;
    // A reply that nobody waits for came after its deadline.
    if (!message.is_reply()) dispatch(message);
  }
  return any;
}

void Session::dispatch(Message& message) {
  const wire::Header header = message.header;
  if ((header.flags & wire::kTypeMask) != wire::kCommand)
    return break_session("neither a command nor a reply");
  if (!negotiated_ && header.command != wire::kVersion)
    return break_session("a command before VERSION");
  device_.look();
  ++counters_.messages;
  const Answer answer = execute(message);
  if (answer.error != 0) ++counters_.errors;
  if ((header.flags & wire::kNoReply) != 0) return;
  wire::Header reply{};
  reply.id = header.id;
  reply.command = header.command;
  reply.flags = wire::kReply | (answer.error != 0 ? wire::kError : 0);
  reply.error = static_cast<std::uint32_t>(answer.error);
  reply.size = static_cast<std::uint32_t>(sizeof reply + answer.body.size());
  if (!channel_.send(reply, answer.body, {}, answer.fds)) alive_ = false;
}

Session::Answer Session::execute(Message& message) {
  switch (message.header.command) {
    case wire::kVersion:
      return version(message);
    case wire::kDmaMap:
      return dma_map(message);
    case wire::kDmaUnmap:
      return dma_unmap(message);
    case wire::kDeviceGetInfo:
      if (!payload<wire::DeviceInfo>(message)) return refuse(EINVAL);
      return device_info();
    case wire::kGetRegionInfo:
      return region_info(message);
    case wire::kGetRegionIoFds: {
      // Doorbells that cannot be mapped are trapped: no region has descriptors of its own.
      const auto request = payload<wire::RegionIoFds>(message);
      if (!request || request->index >= wire::kRegions) return refuse(EINVAL);
      return answer_with(wire::RegionIoFds{sizeof(wire::RegionIoFds), 0, request->index, 0});
    }
    case wire::kGetIrqInfo:
      return irq_info(message);
    case wire::kSetIrqs:
      return set_irqs(message);
    case wire::kRegionRead:
      return region_read(message);
    case wire::kRegionWrite:
      return region_write(message);
    case wire::kDeviceReset:
      if (!device_.features().function_reset) return refuse(EOPNOTSUPP);
      reset_device();
      return {};
    default:
      return refuse(EOPNOTSUPP);
  }
}

Session::Answer Session::version(const Message& message) {
  const auto request = payload<wire::Version>(message);
  if (!request || negotiated_) return refuse(EINVAL);
  if (request->major != wire::kMajor) return refuse(EPROTONOSUPPORT);

  bool offers_wake = false;
  const std::string text(reinterpret_cast<const char*>(message.body.data()) + sizeof *request,
                         message.body.size() - sizeof *request);
  if (const auto end = text.find('\0'); end != 0 && !text.empty()) {
    const auto json = nlohmann::json::parse(text.substr(0, end), nullptr, false);
    if (!json.is_object()) return refuse(EINVAL);
    const auto capabilities = json.value("capabilities", nlohmann::json::object());
    if (!capabilities.is_object()) return refuse(EINVAL);
    if (const auto size = capabilities.find("max_data_xfer_size"); size != capabilities.end()) {
      if (!size->is_number_unsigned() || *size == 0) return refuse(EINVAL);
      peer_transfer_ = std::min<std::uint64_t>(size->get<std::uint64_t>(), wire::kMaxTransfer);
    }
    if (const auto wake = capabilities.find("gpuumd.wake"); wake != capabilities.end())
      offers_wake = wake->is_object() && wake->value("version", nlohmann::json()) == 1;
  }

  nlohmann::json mine = {{"max_msg_fds", wire::kMaxFds},
                         {"max_data_xfer_size", wire::kMaxTransfer},
                         {"max_dma_maps", wire::kMaxDmaMaps},
                         {"pgsizes", base::kPageSize}};
  Answer answer = answer_with(*request);
  if (offers_wake && !device_.bar_memory(Bar::kDoorbells).areas.empty()) {
    auto wake = WakePage::create();
    if (!wake) return refuse(wake.error().sys);
    wake_ = std::move(*wake);
    mine["gpuumd.wake"] = {{"version", 1}, {"regions", {static_cast<unsigned>(Bar::kDoorbells)}}};
    answer.fds = {wake_->memory_fd(), wake_->event_fd()};
  }
  const std::string reply = nlohmann::json{{"capabilities", mine}}.dump();
  const auto bytes = std::as_bytes(std::span(reply.c_str(), reply.size() + 1));
  answer.body.insert(answer.body.end(), bytes.begin(), bytes.end());
  negotiated_ = true;
  return answer;
}

Session::Answer Session::device_info() const {
  const std::uint32_t reset = device_.features().function_reset ? wire::kDeviceCanReset : 0;
  return answer_with(wire::DeviceInfo{sizeof(wire::DeviceInfo), reset | wire::kDevicePci,
                                      wire::kRegions, wire::kIrqIndexes});
}

Session::Answer Session::irq_info(const Message& message) const {
  const auto request = payload<wire::IrqInfo>(message);
  if (!request || request->index >= wire::kIrqIndexes) return refuse(EINVAL);
  wire::IrqInfo info{sizeof(wire::IrqInfo), 0, request->index, 0};
  if (request->index == wire::kMsixIndex) {
    info.flags = wire::kIrqEventfd | wire::kIrqNoResize;
    info.count = function_.msix.vectors();
  }
  if (request->index == wire::kIntxIndex && function_.intx.present()) {
    info.flags = wire::kIrqEventfd | wire::kIrqMaskable | wire::kIrqAutomasked;
    info.count = 1;
  }
  return answer_with(info);
}

Session::Answer Session::set_irqs(Message& message) {
  const auto request = payload<wire::IrqSet>(message);
  if (request && request->index == wire::kIntxIndex) return set_intx(*request, message);
  if (!request || request->index != wire::kMsixIndex || function_.msix.vectors() == 0)
    return refuse(EINVAL);
  if (!base::fits(request->start, request->count, function_.msix.vectors())) return refuse(EINVAL);
  constexpr std::uint32_t kActions =
      wire::kIrqActionMask | wire::kIrqActionUnmask | wire::kIrqActionTrigger;
  // The mask bits of MSI-X are in its table; VFIO has no other way to them.
  if ((request->flags & kActions) != wire::kIrqActionTrigger) return refuse(EINVAL);
  if ((request->flags & ~kActions) != wire::kIrqDataEventfd) return trigger_irqs(*request, message);

  if (request->count == 0 || message.fds.size() > request->count) return refuse(EINVAL);
  // A vector without a descriptor of its own loses the one it had.
  for (std::uint32_t i = 0; i < request->count; ++i) {
    base::UniqueFd fd;
    if (i < message.fds.size()) fd = std::move(message.fds[i]);
    function_.msix.set_eventfd(request->start + i, std::move(fd));
  }
  function_.config.set_msix_enabled(true);
  function_.update_interrupts();
  return {};
}

// One line: what may be masked and unmasked as well, by hand only.
Session::Answer Session::set_intx(const wire::IrqSet& request, Message& message) {
  const std::uint32_t data =
      request.flags & (wire::kIrqDataNone | wire::kIrqDataBool | wire::kIrqDataEventfd);
  const std::uint32_t action = request.flags & ~data;
  auto& line = function_.intx;
  if (!line.present() || !base::fits(request.start, request.count, std::uint32_t{1}))
    return refuse(EINVAL);
  if (action == wire::kIrqActionTrigger && data == wire::kIrqDataEventfd && request.count == 1 &&
      message.fds.size() <= 1) {
    line.set_eventfd(message.fds.empty() ? base::UniqueFd() : std::move(message.fds.front()));
    return {};
  }
  if (data == wire::kIrqDataNone && request.count == 0 && action == wire::kIrqActionTrigger) {
    line.set_eventfd({});
    return {};
  }
  const auto chosen = std::span(message.body).subspan(sizeof request);
  if (request.count != 1 || (data != wire::kIrqDataNone && data != wire::kIrqDataBool) ||
      (data == wire::kIrqDataBool && chosen.empty()))
    return refuse(EINVAL);
  if (data == wire::kIrqDataBool && chosen.front() == std::byte{}) return {};
  switch (action) {
    case wire::kIrqActionMask:
      line.set_masked(true);
      return {};
    case wire::kIrqActionUnmask:
      line.set_masked(false);
      return {};
    case wire::kIrqActionTrigger:
      line.trigger();
      return {};
    default:
      return refuse(EINVAL);
  }
}

// Without descriptors: take all away (none, count 0), or trigger by hand.
Session::Answer Session::trigger_irqs(const wire::IrqSet& request, const Message& message) {
  const std::uint32_t data = request.flags & ~wire::kIrqActionTrigger;
  if (data == wire::kIrqDataNone && request.count == 0) {
    if (request.start != 0) return refuse(EINVAL);
    function_.msix.clear_eventfds();
    function_.config.set_msix_enabled(false);
    function_.update_interrupts();
    return {};
  }
  if (request.count == 0 || (data != wire::kIrqDataNone && data != wire::kIrqDataBool))
    return refuse(EINVAL);
  const auto chosen = std::span(message.body).subspan(sizeof request);
  if (data == wire::kIrqDataBool && chosen.size() < request.count) return refuse(EINVAL);
  for (std::uint32_t i = 0; i < request.count; ++i) {
    if (data == wire::kIrqDataNone || chosen[i] != std::byte{})
      function_.msix.trigger(request.start + i);
  }
  return {};
}

// The configuration space keeps its words, as it does for a user of the kernel's VFIO, which saves
// and restores them round a reset.
void Session::reset_device() {
  ++counters_.resets;
  if (device_.features().deaf_reset) return;
  device_.reset();
  function_.msix.reset();
  function_.lower();
}

}  // namespace gpusim
