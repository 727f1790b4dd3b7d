#include "daemon/gpu/bringup/psp_records.h"

#include <algorithm>
#include <string>

#include "base/bytes.h"

namespace gpuumd::psp {
namespace {

// Offsets of the config record.
constexpr std::size_t kLinkType = 0, kAccelId = 4, kPpodId = 8, kPpodSize = 24, kBandwidth = 28,
                      kLatency = 32, kVpodId = 36, kVpodSize = 40, kActive = 44, kAddrMode = 172,
                      kState = 176;
constexpr std::uint32_t kUnset = 0xFFFFFFFF;

std::unexpected<base::Error> bad(const char* field, std::uint32_t value) {
  return base::fail(base::Errc::kProtocol,
                    std::string("UAL config record: ") + field + " " + std::to_string(value));
}

bool known(ConfigState state) {
  return state <= ConfigState::kComplete || state == ConfigState::kInvalid;
}

}  // namespace

base::Result<Config> parse_config(std::span<const std::byte> record) {
  if (record.size() < kConfigBytes) return bad("size", static_cast<std::uint32_t>(record.size()));
  const auto u32 = [&](std::size_t at) { return base::load<std::uint32_t>(record, at); };

  Config config;
  config.link_type = LinkType(u32(kLinkType));
  if (config.link_type > LinkType::kUalink) return bad("link_type", u32(kLinkType));
  config.state = ConfigState(u32(kState));
  if (!known(config.state)) return bad("config_state", u32(kState));
  if (const auto id = u32(kAccelId); id != kUnset) {
    if (id >= kMaxAccelerators) return bad("accel_id", id);
    config.accel_id = base::AccelId(static_cast<std::uint16_t>(id));
  }
  std::ranges::copy(record.subspan(kPpodId, config.ppod.id.size()), config.ppod.id.begin());
  config.ppod.size = u32(kPpodSize);
  config.ppod.bandwidth = u32(kBandwidth);
  config.ppod.latency = u32(kLatency);
  config.address_mode = u32(kAddrMode);

  // "No virtual pod" is id 0 to one host driver, all ones or size 0 to another: any will do.
  VirtualPod vpod{u32(kVpodId), u32(kVpodSize), {}, config.address_mode};
  if (vpod.id == 0 || vpod.id == kUnset || vpod.size == 0) return config;
  if (vpod.size > kMaxAccelerators) return bad("vpod_size", vpod.size);
  for (std::size_t i = 0; i < vpod.active.size(); ++i) vpod.active[i] = u32(kActive + 4 * i);
  config.vpod = vpod;
  return config;
}

std::optional<Request> decode_request(const InterruptVector& vector) {
  if (vector.client() != IvClient::kMp0 || vector.source() != iv::kPspRequest) return {};
  const auto word = vector.source_data(0);
  const auto category = word >> 24;
  const auto kind = word & 0xFF;
  if (category != 1 && category != 2) return {};
  if (kind < 1 || kind > 3) return {};
  return Request{Request::Category(category), Request::Kind(kind)};
}

}  // namespace gpuumd::psp
