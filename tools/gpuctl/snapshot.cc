#include "tools/gpuctl/snapshot.h"

#include <charconv>
#include <cstdlib>
#include <utility>

namespace gpuctl {
namespace {

using nlohmann::json;

const char* state_text(std::uint32_t state) {
  switch (state) {
    case GPUUMD_DEVICE_STARTING:
      return "starting";
    case GPUUMD_DEVICE_READY:
      return "ready";
    case GPUUMD_DEVICE_IS_LOST:
      return "lost";
    default:
      return "unknown";
  }
}

json page_sizes(std::uint64_t mask) {
  json sizes = json::array();
  for (unsigned bit = 0; bit < 64; ++bit)
    if (mask >> bit & 1) sizes.push_back(std::uint64_t{1} << bit);
  return sizes;
}

json list_entry(const gpuumd_device_info& info) {
  char pci_id[16];
  std::snprintf(pci_id, sizeof(pci_id), "%04x:%04x", info.pci_id & 0xFFFF, info.pci_id >> 16);
  json out = device_head(info);
  out["state"] = state_text(info.state);
  out["pci_id"] = pci_id;
  out["vram_bytes"] = info.vram_bytes;
  out["accelerator_id"] = info.accelerator_id > 1023 ? json(nullptr) : json(info.accelerator_id);
  out["vpod_id"] = info.vpod_id;
  out["fabric"] = (info.flags & GPUUMD_DEVICE_FABRIC) != 0;
  out["page_faults"] = (info.flags & GPUUMD_DEVICE_FAULTS) != 0;
  out["page_sizes"] = page_sizes(info.page_sizes);
  return out;
}

bool is_wanted(const gpuumd_device_info& info, const std::string& device) {
  if (device.empty() || device == info.name) return true;
  std::uint32_t index = 0;
  const auto [end, error] = std::from_chars(device.data(), device.data() + device.size(), index);
  return error == std::errc{} && end == device.data() + device.size() && index == info.index;
}

// Where a document may carry on without this device.
bool is_of_one_device(ExitCode code) { return code == kFailed || code == kDeviceLost; }

Outcome<json> ask(Daemon& daemon, const Verb& verb, const gpuumd_device_info& info,
                  const Deadline& deadline) {
  const std::string what = "gpu " + std::to_string(info.index) + " (" + info.name + ")";
  const auto text = daemon.client.query(*verb.query, info.index, deadline.wait());
  if (!text) return std::unexpected(failure(text.error(), what));
  json answer = json::parse(*text, nullptr, false);
  if (!answer.is_object())
    return std::unexpected(Failure{kFailed, what + ": the daemon's answer is no JSON object"});
  return answer;
}

}  // namespace

Failure failure(const gpuumd::Failure& from, const std::string& what) {
  return {exit_code(from.status), what.empty() ? from.text : what + ": " + from.text};
}

json device_head(const gpuumd_device_info& info) {
  return {{"index", info.index},
          {"device", info.name},
          {"simulated", (info.flags & GPUUMD_DEVICE_SIMULATED) != 0}};
}

std::string shown_dir(const Target& target) {
  if (!target.runtime_dir.empty()) return target.runtime_dir;
  if (const char* set = std::getenv("GPUUMD_RUNTIME_DIR"); set != nullptr && *set != 0) return set;
  return "/run/gpuumd";
}

const std::vector<Verb>& verbs() {
  static const std::vector<Verb> kVerbs = {
      {"list", "the daemon's devices", std::nullopt},
      {"status", "state and counters of each device", GPUUMD_QUERY_STATUS},
      {"clients", "sessions and what they own", GPUUMD_QUERY_CLIENTS},
      {"exports", "memory that other accelerators may import", GPUUMD_QUERY_EXPORTS},
      {"imports", "memory imported from other accelerators", GPUUMD_QUERY_IMPORTS},
      {"peers", "the other accelerators of the pod", GPUUMD_QUERY_PEERS},
      {"faults", "GPU page faults, and how long each stage took", GPUUMD_QUERY_FAULTS},
  };
  return kVerbs;
}

Outcome<Daemon> open_daemon(const Target& target, const Deadline& deadline) {
  auto client =
      gpuumd::Client::connect(target.runtime_dir, "gpuctl", target.timeout, deadline.wait());
  if (!client) {
    auto why = failure(client.error());
    if (why.code == kNotFound) why.code = kNoDaemon;
    return std::unexpected(why);
  }
  const auto count = client->device_count(deadline.wait());
  if (!count) return std::unexpected(failure(count.error(), "list of devices"));
  Daemon daemon{std::move(*client), {}};
  for (std::uint32_t index = 0; index < *count; ++index) {
    const auto info = daemon.client.device_info(index, deadline.wait());
    if (!info) return std::unexpected(failure(info.error(), "gpu " + std::to_string(index)));
    if (is_wanted(*info, target.device)) daemon.devices.push_back(*info);
  }
  if (daemon.devices.empty() && !target.device.empty())
    return std::unexpected(Failure{kNotFound, "device " + target.device + ": not one of the " +
                                                  std::to_string(*count) + " of the daemon at " +
                                                  shown_dir(target)});
  return daemon;
}

Outcome<json> take_snapshot(const Verb& verb, const Target& target, ExitCode& worst) {
  const Deadline deadline(target.timeout);
  auto daemon = open_daemon(target, deadline);
  if (!daemon) return std::unexpected(daemon.error());
  json devices = json::array();
  for (const auto& info : daemon->devices) {
    if (!verb.query) {
      devices.push_back(list_entry(info));
      continue;
    }
    json entry = device_head(info);
    auto answer = ask(*daemon, verb, info, deadline);
    if (answer) {
      answer->update(entry);
      devices.push_back(std::move(*answer));
    } else if (is_of_one_device(answer.error().code)) {
      worst = answer.error().code;
      entry["error"] = answer.error().text;
      devices.push_back(std::move(entry));
    } else {
      return std::unexpected(answer.error());
    }
  }
  return json{
      {"verb", verb.name}, {"runtime_dir", shown_dir(target)}, {"devices", std::move(devices)}};
}

}  // namespace gpuctl
