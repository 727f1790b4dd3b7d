#include "daemon/gpu/bringup/psp.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/fence.h"
#include "daemon/gpu/bringup/steps.h"
#include "daemon/gpu/registers/describe.h"
#include "daemon/gpu/registers/mp0.h"

namespace gpuumd {
namespace {

using namespace mp0;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// Places in PspMemory.
constexpr std::size_t kRing = 0, kRingBytes = base::kPageSize;
constexpr std::size_t kCommandAt = kRingBytes;
constexpr std::size_t kFenceAt = kCommandAt + psp::command::kBytes;
constexpr std::size_t kConfigAt = kFenceAt + 64;
static_assert(kConfigAt + psp::kConfigBytes <= PspMemory::kBytes);

constexpr std::uint32_t kFrameDwords = psp::frame::kBytes / 4;
constexpr std::uint32_t kRingDwords = kRingBytes / 4;

// What a ring command is given before the first look at its response.
constexpr auto kSettle = milliseconds(20);
constexpr auto kFencePoll = microseconds(200);

constexpr std::uint32_t low(base::McAddress at) { return static_cast<std::uint32_t>(at.value()); }
constexpr std::uint32_t high(base::McAddress at) {
  return static_cast<std::uint32_t>(at.value() >> 32);
}

// The body of a command from dwords at its start.
std::vector<std::byte> body_of(std::initializer_list<std::uint32_t> words) {
  std::vector<std::byte> body(words.size() * 4);
  std::memcpy(body.data(), std::data(words), body.size());
  return body;
}

}  // namespace

Psp::Psp(Reactor& reactor, const RegisterBlock& mp0, PspMemory memory)
    : reactor_(reactor), mp0_(mp0), memory_(memory) {
  assert(memory.cpu != nullptr && memory.address.aligned(base::kPageSize));
}

Step Psp::step() {
  Step step{.name = step_name::kPsp, .deadline = milliseconds(5000), .up = {}, .down = {}};
  step.up.start = [this] { return start_ring(); };
  step.up.poll = [this] { return poll_ring(); };
  step.up.waiting_for = [this] { return command_word(); };
  step.down.start = [this] { return start_destroy(); };
  step.down.poll = [this] { return poll_destroy(); };
  step.down.waiting_for = [this] { return command_word(); };
  return step;
}

std::string Psp::command_word() const {
  return reads("C2PMSG_64", mp0_.read<C2PMSG_64>().raw()) + ", bit 31 and status 0 expected";
}

base::Result<void> Psp::start_ring() {
  std::memset(memory_.cpu, 0, PspMemory::kBytes);
  wptr_ = 0;
  fence_ = 0;
  create_ = Create::kWaitReady;
  return {};
}

base::Result<bool> Psp::poll_ring() {
  const auto word = mp0_.read<C2PMSG_64>();
  if (create_ == Create::kWaitReady) {
    if (!word.get<C2PMSG_64::RESPONSE>()) return false;
    mp0_.write(base::Value<C2PMSG_69>(low(memory_.address + kRing)));
    mp0_.write(base::Value<C2PMSG_70>(high(memory_.address + kRing)));
    mp0_.write(base::Value<C2PMSG_71>(kRingBytes));
    mp0_.write(base::Value<C2PMSG_64>().with<C2PMSG_64::COMMAND>(RingCommand::kInitGpcom));
    create_ = Create::kSettle;
    settled_ = reactor_.now() + kSettle;
    return false;
  }
  if (create_ == Create::kSettle) {
    if (reactor_.now() < settled_) return false;
    create_ = Create::kWaitDone;
  }
  if (!word.get<C2PMSG_64::RESPONSE>()) return false;
  if (word.get<C2PMSG_64::STATUS>() != 0)
    return base::fail(base::Errc::kDeviceError, "ring create: " + reads("C2PMSG_64", word.raw()));
  ring_ = Ring::kReady;
  enable_interrupt(true);
  return true;
}

base::Result<void> Psp::start_destroy() {
  fail_all({base::Errc::kDisconnected, 0, "the security processor's ring was closed"});
  ring_ = Ring::kNone;
  if (create_ == Create::kWaitReady) return {};  // it never heard of a ring
  enable_interrupt(false);
  mp0_.write(base::Value<C2PMSG_64>().with<C2PMSG_64::COMMAND>(RingCommand::kDestroyRings));
  settled_ = reactor_.now() + kSettle;
  return {};
}

base::Result<bool> Psp::poll_destroy() {
  if (create_ == Create::kWaitReady) return true;
  if (reactor_.now() < settled_) return false;
  if (!mp0_.read<C2PMSG_64>().get<C2PMSG_64::RESPONSE>()) return false;
  create_ = Create::kWaitReady;
  return true;
}

void Psp::enable_interrupt(bool on) {
  if (on) mp0_.write(base::Value<IH_SW_INT>().with<IH_SW_INT::ID>(iv::kPspRequest));
  mp0_.modify<IH_SW_INT_CTRL>(
      [on](auto v) { return v.template with<IH_SW_INT_CTRL::INT_MASK>(!on); });
}

std::optional<psp::Request> Psp::on_interrupt(const InterruptVector& vector) {
  mp0_.modify<IH_SW_INT_CTRL>(
      [](auto v) { return v.template with<IH_SW_INT_CTRL::INT_ACK>(true); });
  auto request = psp::decode_request(vector);
  if (!request) ++counters_.bad_requests;
  return request;
}

void Psp::submit(psp::CommandId id, std::vector<std::byte> body, Done<Response> done) {
  assert(body.size() <= psp::command::kBodyBytes);
  if (ring_ != Ring::kReady || queue_.size() >= kMaxQueued) {
    const char* why = ring_ == Ring::kReady    ? "security processor: too many commands"
                      : ring_ == Ring::kBroken ? "security processor: does not answer"
                                               : "security processor: no ring";
    reactor_.post(
        [done = std::move(done), why]() mutable { done(base::fail(base::Errc::kBusy, why)); });
    return;
  }
  queue_.push_back({id, std::move(body), std::move(done)});
  if (!active_) begin();
}

// Puts the front of the queue into the command buffer and its frame into the ring.
void Psp::begin() {
  namespace cmd = psp::command;
  const Command& command = queue_.front();
  const std::span buffer(memory_.cpu + kCommandAt, cmd::kBytes);
  std::ranges::fill(buffer, std::byte{0});
  base::store(buffer, cmd::kSize, static_cast<std::uint32_t>(cmd::kBytes));
  base::store(buffer, cmd::kVersion, cmd::kVersionValue);
  base::store(buffer, cmd::kId, static_cast<std::uint32_t>(command.id));
  std::ranges::copy(command.body, buffer.begin() + cmd::kBody);

  // Never the value that the fence holds: 0 at first, then that of an earlier command.
  if (++fence_ == 0) ++fence_;
  write_frame(fence_);
  wptr_ = (wptr_ + kFrameDwords) % kRingDwords;
  base::full_fence();  // frame and command before the pointer that publishes them
  mp0_.write(base::Value<C2PMSG_67>(wptr_));

  ++counters_.commands;
  active_ = true;
  deadline_ = reactor_.now() + kCommandDeadline;
  timer_ = reactor_.after(kFencePoll, "psp fence", [this] { check_fence(); });
}

void Psp::write_frame(std::uint32_t fence) {
  namespace f = psp::frame;
  const std::span frame(memory_.cpu + kRing + std::size_t{wptr_} * 4, f::kBytes);
  const auto command = memory_.address + kCommandAt;
  const auto fence_at = memory_.address + kFenceAt;
  std::ranges::fill(frame, std::byte{0});
  base::store(frame, f::kCommandLo, low(command));
  base::store(frame, f::kCommandHi, high(command));
  base::store(frame, f::kCommandSize, static_cast<std::uint32_t>(psp::command::kBytes));
  base::store(frame, f::kFenceLo, low(fence_at));
  base::store(frame, f::kFenceHi, high(fence_at));
  base::store(frame, f::kFenceValue, fence);
}

void Psp::check_fence() {
  auto& word = *reinterpret_cast<std::uint32_t*>(memory_.cpu + kFenceAt);
  if (std::atomic_ref(word).load(std::memory_order_acquire) == fence_) {
    // One copy, then only the copy: the processor may still write its buffer.
    Response response;
    const std::span buffer(memory_.cpu + kCommandAt, psp::command::kBytes);
    const auto status = base::load<std::uint32_t>(buffer, psp::command::kStatus);
    std::ranges::copy(buffer.subspan(psp::command::kResponse), response.body.begin());
    if (status == 0) return finish(response);
    ++counters_.refused;
    return finish(base::fail(base::Errc::kDeviceError,
                             "security processor command " +
                                 hex(static_cast<std::uint32_t>(queue_.front().id), 2) +
                                 ": status " + hex(status)));
  }
  const bool lost = mp0_.io().lost();
  if (lost || reactor_.now() >= deadline_) {
    if (!lost) ++counters_.timeouts;
    ring_ = Ring::kBroken;
    return fail_all({lost ? base::Errc::kDeviceLost : base::Errc::kTimeout, 0,
                     "security processor command " +
                         hex(static_cast<std::uint32_t>(queue_.front().id), 2) + ", fence " +
                         std::to_string(fence_)});
  }
  timer_ = reactor_.after(kFencePoll, "psp fence", [this] { check_fence(); });
}

void Psp::finish(base::Result<Response> result) {
  auto done = std::move(queue_.front().done);
  queue_.pop_front();
  active_ = false;
  if (!queue_.empty()) begin();
  done(std::move(result));
}

void Psp::fail_all(const base::Error& error) {
  timer_.cancel();
  active_ = false;
  for (auto& command : std::exchange(queue_, {}))
    reactor_.post(
        [done = std::move(command.done), error]() mutable { done(std::unexpected(error)); });
}

namespace {

std::uint32_t response_word(std::span<const std::byte> body) {
  return base::load<std::uint32_t>(body, 0);
}

}  // namespace

void Psp::get_interface_version(Done<psp::InterfaceVersion> done) {
  submit(psp::CommandId::kGetInterfaceVersion, {},
         [done = std::move(done)](base::Result<Response> response) mutable {
           if (!response) return done(std::unexpected(std::move(response.error())));
           const auto word = response_word(response->body);
           if (word > psp::kNewestInterface)
             return done(base::fail(base::Errc::kUnsupported, "UAL interface " + hex(word)));
           done(psp::InterfaceVersion{static_cast<std::uint16_t>(word >> 16),
                                      static_cast<std::uint16_t>(word)});
         });
}

void Psp::get_config(Done<psp::Config> done) {
  const auto at = memory_.address + kConfigAt;
  const std::span record(memory_.cpu + kConfigAt, psp::kConfigBytes);
  submit(psp::CommandId::kGetConfig,
         // The address type stays 0: what the driver is known to send.
         body_of({high(at), low(at), static_cast<std::uint32_t>(psp::kConfigBytes), 0}),
         [done = std::move(done), record](base::Result<Response> response) mutable {
           if (!response) return done(std::unexpected(std::move(response.error())));
           const auto size = response_word(response->body);
           if (size != psp::kConfigBytes)
             return done(base::fail(base::Errc::kProtocol,
                                    "UAL config record of " + std::to_string(size) + " bytes"));
           std::array<std::byte, psp::kConfigBytes> copy;
           std::ranges::copy(record, copy.begin());
           done(psp::parse_config(copy));
         });
}

namespace {

// For commands that answer with a status alone.
template <class Response>
auto status_only(Psp::Done<void> done) {
  return [done = std::move(done)](base::Result<Response> response) mutable {
    if (!response) return done(std::unexpected(std::move(response.error())));
    done({});
  };
}

}  // namespace

void Psp::set_npa(base::Vmid vmid, bool enable, Done<void> done) {
  submit(psp::CommandId::kSetNpa, body_of({vmid.value(), enable ? 1u : 0u}),
         status_only<Response>(std::move(done)));
}

void Psp::send_completion(psp::Request::Kind kind, std::uint32_t status, Done<void> done) {
  submit(psp::CommandId::kSendCompletion, body_of({static_cast<std::uint32_t>(kind), status}),
         status_only<Response>(std::move(done)));
}

void Psp::set_physical_pod(base::AccelId self, const psp::PhysicalPod& pod,
                           std::span<const base::AccelId> local, Done<void> done) {
  constexpr std::size_t kBytes = 96, kLocal = 32;
  assert(local.size() <= psp::kLocalAccelerators);
  std::vector<std::byte> body(kBytes);
  const std::span bytes(body);
  base::store(bytes, 0, std::uint32_t{self.value()});
  std::ranges::copy(pod.id, body.begin() + 4);
  base::store(bytes, 20, pod.size);
  base::store(bytes, 24, pod.bandwidth);
  base::store(bytes, 28, pod.latency);
  for (std::size_t i = 0; i < psp::kLocalAccelerators; ++i)
    base::store(bytes, kLocal + 4 * i,
                i < local.size() ? std::uint32_t{local[i].value()} : 0xFFFFFFFFu);
  submit(psp::CommandId::kSetPhysicalPod, std::move(body), status_only<Response>(std::move(done)));
}

void Psp::set_virtual_pod(const psp::VirtualPod& pod, Done<void> done) {
  constexpr std::size_t kBytes = 140;
  std::vector<std::byte> body(kBytes);
  const std::span bytes(body);
  base::store(bytes, 0, pod.id);
  base::store(bytes, 4, pod.size);
  base::store(bytes, 8, pod.active);
  base::store(bytes, 136, pod.address_mode);
  submit(psp::CommandId::kSetVirtualPod, std::move(body), status_only<Response>(std::move(done)));
}

}  // namespace gpuumd
