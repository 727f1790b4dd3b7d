#include "tools/gpusim/model/security_processor.h"

#include <algorithm>
#include <array>
#include <string>

#include "base/bytes.h"
#include "tools/gpusim/model/reset_noise.h"

namespace gpusim {
namespace {

// Offsets in dwords from MP0 segment 1 (docs/hardware/psp.md).
constexpr std::uint32_t message(unsigned n) { return 0x40 + n; }  // C2PMSG_n
constexpr std::uint32_t kIhCredit = 0x140, kIhSwInt = 0x141, kIhSwIntCtrl = 0x142;
constexpr std::uint32_t kIpDiscoveryVersion = 0xA00;

constexpr std::uint32_t kReady = 1u << 31;
constexpr std::uint32_t kRingFrameDwords = 16;
constexpr std::uint32_t kMailboxRefused = 0x0001;

// C2PMSG_64 bits 19:16.
enum MailboxCommand : std::uint32_t {
  kInitRbiRing = 1,
  kInitGpcomRing = 2,
  kDestroyRings = 3,
  kInterruptsOn = 5,
  kInterruptsOff = 6,
  kMode1Reset = 7,
  kDestroyGpcomRing = 0xC,
};

constexpr std::size_t kCommandBytes = 1024;
constexpr std::size_t kBodyAt = 28;
constexpr std::size_t kResponseAt = 864;
constexpr std::size_t kResponseBytes = kCommandBytes - kResponseAt;
constexpr std::size_t kResponseBodyAt = 64;  // from the start of the response
constexpr std::uint32_t kCommandVersion = 1;
constexpr std::uint32_t kUnknownCommand = 0xFFFF'0006;
constexpr std::uint32_t kFailed = 1;
constexpr std::uint32_t kInterfaceVersion = 0x0001'0000;  // 1.0

constexpr std::uint16_t kCidMp0 = 39;  // MMHUB client (docs/hardware/vmhub.md)
constexpr Requester kSelf{.engine = "psp", .vmid = 0, .cid_read = kCidMp0, .cid_write = kCidMp0};

}  // namespace

struct SecurityProcessor::Frame {
  std::uint64_t command = 0;
  std::uint32_t command_bytes = 0;
  std::uint64_t fence = 0;
  std::uint32_t fence_value = 0;
};

SecurityProcessor::SecurityProcessor(RegisterFile& registers, const Bases& bases,
                                     const GpuOptions& options, const ModelClock& clock,
                                     InterruptSink& interrupts)
    : clock_(clock),
      interrupts_(interrupts),
      registers_(registers),
      segment1_(bases.at(Ip::kMp0, 0, 1)),
      config_(options.pod.config),
      completes_(options.pod.completes) {
  define_mailbox(options.seed);
  define_interrupt();
  registers_.define(segment1_ + kIpDiscoveryVersion, "IP_DISCOVERY_VERSION",
                    options.binary_major << 16);
}

void SecurityProcessor::define_mailbox(std::uint64_t seed) {
  const auto define = [&](unsigned n) -> RegisterFile::Register& {
    return registers_.define(segment1_ + message(n), "MP0_SMN_C2PMSG_" + std::to_string(n));
  };
  const auto boot_flag = [this](std::uint32_t) { return booted() ? kReady : 0; };
  define(33).on_read = boot_flag;
  define(35).on_read = boot_flag;
  auto& command = define(64);
  command.stored = command.reset = kReady;
  command.on_write = [this](std::uint32_t value, std::uint32_t stored) {
    if (!booted()) return stored;
    mailbox_ = value;
    mailbox_due_ = clock_.now() + answer_delay_;
    return value & ~kReady;
  };
  define(67).on_write = [this](std::uint32_t value, std::uint32_t) {
    write_ring_pointer(value);
    return value;
  };
  define(81).on_read = [this](std::uint32_t) {
    const auto tenths = clock_.now() / std::chrono::milliseconds(100);
    return booted() ? 1 + static_cast<std::uint32_t>(tenths) : 0;
  };
  define(127);
  for (const unsigned n : {59u, 69u, 70u, 71u, 101u, 102u, 103u})
    define_unused(registers_, seed, segment1_ + message(n), "MP0_SMN_C2PMSG_" + std::to_string(n));
  define_unused(registers_, seed, segment1_ + kIhCredit, "MP0_SMN_IH_CREDIT");
}

void SecurityProcessor::define_interrupt() {
  auto& source = registers_.define(segment1_ + kIhSwInt, "MP0_SMN_IH_SW_INT");
  source.on_read = [this](std::uint32_t) { return source_ | (valid_ ? 1u << 8 : 0u); };
  source.on_write = [this](std::uint32_t value, std::uint32_t) {
    source_ = static_cast<std::uint8_t>(value);
    return value & 0xFF;
  };
  auto& control = registers_.define(segment1_ + kIhSwIntCtrl, "MP0_SMN_IH_SW_INT_CTRL", 1);
  control.on_write = [this](std::uint32_t value, std::uint32_t) {
    masked_ = (value & 1) != 0;
    if ((value >> 8 & 1) != 0) valid_ = false;
    return value & ~(1u << 8);
  };
}

bool SecurityProcessor::step() {
  if (!booted()) return false;
  bool did = answer_mailbox();
  did |= serve_frame();
  did |= send_notice();
  return did;
}

bool SecurityProcessor::waiting() const {
  return !booted() || mailbox_.has_value() || frame_due_.has_value();
}

void SecurityProcessor::reset() {
  npa_enabled_ = false;
  mailbox_.reset();
  ring_open_ = false;
  frame_due_.reset();
  notices_.clear();
  outstanding_.reset();
  masked_ = true;
  valid_ = false;
  source_ = 0;
}

bool SecurityProcessor::answer_mailbox() {
  if (!mailbox_ || clock_.now() < mailbox_due_) return false;
  const std::uint32_t word = *mailbox_;
  mailbox_.reset();
  const std::uint32_t status = run_mailbox(word);
  registers_.find(segment1_ + message(64))->stored = kReady | (word & 0x000F'0000) | status;
  return true;
}

std::uint32_t SecurityProcessor::run_mailbox(std::uint32_t word) {
  switch (word >> 16 & 0xF) {
    case kInitGpcomRing:
      return open_ring() ? 0 : kMailboxRefused;
    case kDestroyRings:
    case kDestroyGpcomRing:
      ring_open_ = false;
      frame_due_.reset();
      return 0;
    case kInterruptsOn:
    case kInterruptsOff:
      return 0;  // the mask in IH_SW_INT_CTRL decides
    case kMode1Reset:
      if (!reset_request_) return kMailboxRefused;
      reset_request_();
      return 0;
    default:
      return kMailboxRefused;
  }
}

bool SecurityProcessor::open_ring() {
  const auto value = [&](unsigned n) { return registers_.find(segment1_ + message(n))->stored; };
  const std::uint32_t bytes = value(71);
  const std::uint64_t address = value(69) | std::uint64_t{value(70)} << 32;
  if (ring_open_ || bytes < 4 * kRingFrameDwords || bytes % (4 * kRingFrameDwords) != 0 ||
      address % 4096 != 0)
    return false;
  ring_open_ = true;
  ring_address_ = address;
  ring_dwords_ = bytes / 4;
  ring_read_ = ring_write_ = 0;
  registers_.find(segment1_ + message(67))->stored = 0;
  return true;
}

void SecurityProcessor::write_ring_pointer(std::uint32_t value) {
  if (!ring_open_) return;
  if (value % kRingFrameDwords != 0 || value >= ring_dwords_) {
    ++counters_.bad_pointers;
    return;
  }
  ring_write_ = value;
}

bool SecurityProcessor::serve_frame() {
  if (!ring_open_ || ring_read_ == ring_write_) return false;
  if (!frame_due_) frame_due_ = clock_.now() + answer_delay_;
  if (clock_.now() < *frame_due_) return false;
  frame_due_.reset();
  std::array<std::byte, 4 * kRingFrameDwords> raw;
  const bool read = copy_in(ring_address_ + 4 * std::uint64_t{ring_read_}, raw);
  ring_read_ = (ring_read_ + kRingFrameDwords) % ring_dwords_;
  if (!read) return true;
  serve(Frame{
      .command = base::load<std::uint64_t>(raw, 0),
      .command_bytes = base::load<std::uint32_t>(raw, 8),
      .fence = base::load<std::uint64_t>(raw, 12),
      .fence_value = base::load<std::uint32_t>(raw, 20),
  });
  return true;
}

// The fence goes after the response, which the driver reads when it sees the fence.
void SecurityProcessor::serve(const Frame& frame) {
  std::array<std::byte, kCommandBytes> command;
  std::array<std::byte, kResponseBytes> response{};
  if (!copy_in(frame.command, command)) return;
  const auto word = [&](std::size_t at) { return base::load<std::uint32_t>(command, at); };
  const bool well_formed = word(4) == kCommandVersion && frame.command_bytes >= kCommandBytes;
  const std::uint32_t status =
      well_formed ? run(word(8), std::span(command).subspan(kBodyAt, kResponseAt - kBodyAt),
                        std::span(response).subspan(kResponseBodyAt))
                  : kFailed;
  base::store(response, 0, status);
  ++counters_.commands;
  if (status != 0) ++counters_.failed;
  if (!copy_out(frame.command + kResponseAt, response)) return;
  copy_out(frame.fence, base::as_bytes(frame.fence_value));
}

bool SecurityProcessor::copy_in(std::uint64_t address, std::span<std::byte> to) {
  if (space_ != nullptr && space_->read(kSelf, address, to) == Outcome::kOk) return true;
  ++counters_.lost_accesses;
  return false;
}

bool SecurityProcessor::copy_out(std::uint64_t address, std::span<const std::byte> from) {
  if (space_ != nullptr && space_->write(kSelf, address, from) == Outcome::kOk) return true;
  ++counters_.lost_accesses;
  return false;
}

std::uint32_t SecurityProcessor::run(std::uint32_t id, std::span<const std::byte> body,
                                     std::span<std::byte> out) {
  switch (id) {
    case 0x53:
      base::store(out, 0, kInterfaceVersion);
      return 0;
    case 0x54:
      return get_config(body, out);
    case 0x55:
      return set_physical_pod(body);
    case 0x56:
      return set_virtual_pod(body);
    case 0x57:
      return set_stations(body);
    case 0x58:
      return get_stations(out);
    case 0x59:
      return set_npa(body);
    case 0x5A:
      return complete_notice(body);
    default:
      return kUnknownCommand;
  }
}

}  // namespace gpusim
