// The fabric commands of the security processor, 0x54 to 0x5A (docs/hardware/psp.md).
#include <array>
#include <cstddef>
#include <cstring>

#include "base/bytes.h"
#include "tools/gpusim/model/security_processor.h"

namespace gpusim {
namespace {

constexpr std::uint32_t kRefused = 1;
constexpr std::size_t kConfigBytes = 180;
constexpr std::uint32_t kNpaVmid = 15;
constexpr std::uint32_t kMaxPod = 256;

enum ConfigState : std::uint32_t { kPhysical = 1, kVirtual = 2, kStation = 4, kComplete = 5 };

// Nobody set one up: 0 as amdgpu reads it, all ones as AMD's other host driver does.
bool no_virtual_pod(const PodConfig& config) {
  return config.vpod_id == 0 || config.vpod_id == 0xFFFF'FFFF || config.vpod_size == 0;
}

bool open_for_changes(const PodConfig& config) {
  return config.config_state < kComplete || no_virtual_pod(config);
}

template <class T>
T take(std::span<const std::byte> body, std::size_t at) {
  return base::load<T>(body, at);
}

std::array<std::byte, kConfigBytes> encode(const PodConfig& config) {
  std::array<std::byte, kConfigBytes> record{};
  base::store(record, 0, config.link_type);
  base::store(record, 4, config.accel_id);
  base::store(record, 8, config.ppod_id);
  base::store(record, 24, config.ppod_size);
  base::store(record, 28, config.bandwidth);
  base::store(record, 32, config.latency);
  base::store(record, 36, config.vpod_id);
  base::store(record, 40, config.vpod_size);
  base::store(record, 44, config.active);
  base::store(record, 172, config.addr_mode);
  base::store(record, 176, config.config_state);
  return record;
}

}  // namespace

// Address types 0 (automatic) and 3 (GPU virtual) are addresses in VMID 0; the others are refused.
std::uint32_t SecurityProcessor::get_config(std::span<const std::byte> body,
                                            std::span<std::byte> out) {
  const std::uint64_t address =
      std::uint64_t{take<std::uint32_t>(body, 0)} << 32 | take<std::uint32_t>(body, 4);
  const auto size = take<std::uint32_t>(body, 8);
  const auto type = take<std::uint32_t>(body, 12);
  if (size < kConfigBytes || (type != 0 && type != 3)) return kRefused;
  if (!copy_out(address, encode(config_))) return kRefused;
  base::store(out, 0, static_cast<std::uint32_t>(kConfigBytes));
  return 0;
}

std::uint32_t SecurityProcessor::set_physical_pod(std::span<const std::byte> body) {
  const auto accel_id = take<std::uint32_t>(body, 0);
  const auto size = take<std::uint32_t>(body, 20);
  if (!open_for_changes(config_) || size == 0 || size > kMaxPod || accel_id >= size)
    return kRefused;
  config_.accel_id = accel_id;
  config_.ppod_id = take<decltype(config_.ppod_id)>(body, 4);
  config_.ppod_size = size;
  config_.bandwidth = take<std::uint32_t>(body, 24);
  config_.latency = take<std::uint32_t>(body, 28);
  config_.local_accelerators = take<decltype(config_.local_accelerators)>(body, 32);
  config_.config_state = kPhysical;
  return 0;
}

std::uint32_t SecurityProcessor::set_virtual_pod(std::span<const std::byte> body) {
  const auto size = take<std::uint32_t>(body, 4);
  const auto addr_mode = take<std::uint32_t>(body, 136);
  if (!open_for_changes(config_) || config_.ppod_size == 0 || size > config_.ppod_size ||
      addr_mode > 1)
    return kRefused;
  config_.vpod_id = take<std::uint32_t>(body, 0);
  config_.vpod_size = size;
  config_.active = take<decltype(config_.active)>(body, 8);
  config_.addr_mode = addr_mode;
  if (no_virtual_pod(config_)) {
    config_.config_state = kPhysical;
    return 0;
  }
  config_.config_state = kVirtual;
  if (completes_) {
    config_.config_state = kComplete;
    notify(Notice::kConfigUpdate);
  }
  return 0;
}

std::uint32_t SecurityProcessor::set_stations(std::span<const std::byte> body) {
  if (!open_for_changes(config_)) return kRefused;
  config_.station_count = take<std::uint8_t>(body, 0);
  config_.station_flags = take<std::uint8_t>(body, 1);
  config_.lane_enable = take<decltype(config_.lane_enable)>(body, 4);
  config_.config_state = kStation;
  return 0;
}

// The layout of command 0x57, in the response.
std::uint32_t SecurityProcessor::get_stations(std::span<std::byte> out) const {
  base::store(out, 0, config_.station_count);
  base::store(out, 1, config_.station_flags);
  base::store(out, 4, config_.lane_enable);
  return 0;
}

std::uint32_t SecurityProcessor::set_npa(std::span<const std::byte> body) {
  const auto vmid = take<std::uint32_t>(body, 0);
  const auto enable = take<std::uint32_t>(body, 4);
  const bool configured = config_.accel_id != 0xFFFF'FFFF;
  if (vmid != kNpaVmid || enable > 1 || (enable == 1 && !configured)) return kRefused;
  npa_enabled_ = enable == 1;
  return 0;
}

std::uint32_t SecurityProcessor::complete_notice(std::span<const std::byte> body) {
  const auto command = take<std::uint32_t>(body, 0);
  if (!outstanding_ || command != static_cast<std::uint32_t>(*outstanding_)) return kRefused;
  last_completion_ = Completion{command, take<std::uint32_t>(body, 4)};
  outstanding_.reset();
  return 0;
}

void SecurityProcessor::update_config(const PodConfig& config) {
  config_ = config;
  notify(Notice::kConfigUpdate);
}

// A notice that waits already says it all.
void SecurityProcessor::notify(Notice notice) {
  for (const Notice waiting : notices_)
    if (waiting == notice) return;
  notices_.push_back(notice);
}

// One at a time: the next one goes out after the driver acknowledged the interrupt and completed
// the command.
bool SecurityProcessor::send_notice() {
  if (notices_.empty() || masked_ || valid_ || outstanding_) return false;
  constexpr std::uint32_t kCategoryCommand = 1u << 24;
  Iv iv{.client = 0x1E, .source = source_};
  iv.src_data[0] = kCategoryCommand | static_cast<std::uint32_t>(notices_.front());
  if (!interrupts_.raise(iv)) return false;
  outstanding_ = notices_.front();
  notices_.pop_front();
  valid_ = true;
  ++counters_.notices;
  return true;
}

}  // namespace gpusim
