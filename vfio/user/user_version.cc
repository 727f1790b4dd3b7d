#include "vfio/user/user_version.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "base/bytes.h"
#include "vfio/user/user_framing.h"
#include "vfio/user/user_wire.h"

namespace vfio {
namespace {

using nlohmann::json;

constexpr const char* kWakeName = "gpuumd.wake";
constexpr std::uint64_t kWakeVersion = 1;
constexpr std::uint32_t kBarCount = 6;

std::unexpected<base::Error> nonsense(std::string what) {
  return base::fail(base::Errc::kProtocol, std::move(what));
}

// Leaves `value` alone when the server does not state it.
base::Result<void> read_number(const json& object, const char* name, std::uint64_t& value) {
  const auto found = object.find(name);
  if (found == object.end()) return {};
  if (!found->is_number_unsigned())
    return nonsense(std::string("capability ") + name + " is not a number");
  value = found->get<std::uint64_t>();
  return {};
}

base::Result<void> read_wake(const json& wake, ServerCapabilities& server) {
  std::uint64_t version = 0;
  if (!wake.is_object()) return nonsense("capability gpuumd.wake is not an object");
  if (auto ok = read_number(wake, "version", version); !ok) return ok;
  if (version != kWakeVersion) return nonsense("capability gpuumd.wake of another version");
  const auto regions = wake.find("regions");
  if (regions == wake.end() || !regions->is_array() || regions->size() > kBarCount)
    return nonsense("capability gpuumd.wake without a list of regions");
  for (const json& region : *regions) {
    if (!region.is_number_unsigned() || region.get<std::uint64_t>() >= kBarCount)
      return nonsense("capability gpuumd.wake names a region that is no BAR");
    const auto index = region.get<std::uint32_t>();
    if (std::ranges::count(server.wake_regions, index) != 0)
      return nonsense("capability gpuumd.wake names a region twice");
    server.wake_regions.push_back(index);
  }
  server.wake = true;
  return {};
}

base::Result<void> read_capabilities(std::string_view text, bool offered_wake,
                                     ServerCapabilities& server) {
  if (text.ends_with('\0')) text.remove_suffix(1);
  if (text.empty()) return {};
  const json data = json::parse(text, nullptr, false);
  if (!data.is_object()) return nonsense("version data is not a JSON object");
  const auto capabilities = data.find("capabilities");
  if (capabilities == data.end()) return {};
  if (!capabilities->is_object()) return nonsense("capabilities are not a JSON object");
  struct Number {
    const char* name;
    std::uint64_t& value;
  };
  for (const Number number :
       {Number{"max_msg_fds", server.max_msg_fds},
        Number{"max_data_xfer_size", server.max_data_xfer_size},
        Number{"max_dma_maps", server.max_dma_maps}, Number{"pgsizes", server.page_sizes}})
    if (auto ok = read_number(*capabilities, number.name, number.value); !ok) return ok;
  const auto wake = capabilities->find(kWakeName);
  if (wake == capabilities->end()) return {};
  if (!offered_wake) return nonsense("capability gpuumd.wake was not offered");
  return read_wake(*wake, server);
}

}  // namespace

std::string offer_capabilities(std::uint64_t max_data_xfer_size, bool offer_wake) {
  json capabilities = {{"max_msg_fds", kMaxMessageFds}, {"max_data_xfer_size", max_data_xfer_size}};
  if (offer_wake) capabilities[kWakeName] = {{"version", kWakeVersion}};
  return json{{"capabilities", std::move(capabilities)}}.dump();
}

base::Result<ServerCapabilities> parse_version_reply(std::span<const std::byte> payload,
                                                     bool offered_wake, std::size_t fd_count) {
  if (payload.size() < sizeof(wire::Version)) return nonsense("no version");
  const auto version = base::load<wire::Version>(payload, 0);
  if (version.major != wire::kMajor || version.minor > wire::kMinor)
    return nonsense("version " + std::to_string(version.major) + "." +
                    std::to_string(version.minor) + " was not proposed");
  ServerCapabilities server;
  const auto text = payload.subspan(sizeof(version));
  if (auto ok = read_capabilities({reinterpret_cast<const char*>(text.data()), text.size()},
                                  offered_wake, server);
      !ok)
    return std::unexpected(ok.error());
  if (fd_count != (server.wake ? 1 + server.wake_regions.size() : 0))
    return nonsense("descriptors do not fit the capabilities");
  if (server.page_sizes == 0) return nonsense("no DMA page size");
  if (server.max_msg_fds == 0)
    return base::fail(base::Errc::kUnsupported, "a server that takes no descriptors");
  if (server.max_data_xfer_size < sizeof(std::uint64_t))
    return base::fail(base::Errc::kUnsupported, "a server without 8-byte accesses");
  return server;
}

}  // namespace vfio
