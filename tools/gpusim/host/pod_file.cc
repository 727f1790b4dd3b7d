#include "tools/gpusim/host/pod_file.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace gpusim {

namespace {

using Json = nlohmann::json;

base::Result<void> bad(const std::string& member, const char* takes) {
  return base::fail(base::Errc::kInvalidArgument, "\"" + member + "\" takes " + takes);
}

template <class Word>
base::Result<void> take_number(Word& word, const std::string& name, const Json& value,
                               std::uint64_t largest = std::numeric_limits<Word>::max()) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > largest)
    return bad(name, ("a number up to " + std::to_string(largest)).c_str());
  word = value.get<Word>();
  return {};
}

// 32 hexadecimal digits.
base::Result<void> take_id(std::array<std::uint8_t, 16>& id, const std::string& name,
                           const Json& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : "";
  if (text.size() != 2 * id.size() ||
      !std::ranges::all_of(text, [](unsigned char c) { return std::isxdigit(c) != 0; }))
    return bad(name, "32 hexadecimal digits");
  for (std::size_t i = 0; i < id.size(); ++i)
    id[i] = static_cast<std::uint8_t>(std::stoul(text.substr(2 * i, 2), nullptr, 16));
  return {};
}

base::Result<void> take_members(PodConfig& config, const std::string& name, const Json& value) {
  if (!value.is_array()) return bad(name, "a list of accelerator ids");
  config.active.fill(0);
  for (const Json& id : value) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= 32 * config.active.size())
      return bad(name, "accelerator ids up to 1023");
    config.active[id.get<unsigned>() / 32] |= 1u << id.get<unsigned>() % 32;
  }
  config.vpod_size = static_cast<std::uint32_t>(value.size());
  return {};
}

base::Result<void> take_local(PodConfig& config, const std::string& name, const Json& value) {
  if (!value.is_array() || value.size() > config.local_accelerators.size())
    return bad(name, "a list of at most 16 accelerator ids");
  config.local_accelerators.fill(0xFFFF'FFFF);
  for (std::size_t i = 0; i < value.size(); ++i) {
    if (auto done = take_number(config.local_accelerators[i], name, value[i]); !done) return done;
  }
  return {};
}

base::Result<void> take(PodOptions& pod, const std::string& name, const Json& value) {
  PodConfig& c = pod.config;
  if (name == "completes") {
    if (!value.is_boolean()) return bad(name, "true or false");
    pod.completes = value.get<bool>();
    return {};
  }
  if (name == "addr_mode") {
    if (value != "alias" && value != "ident") return bad(name, "\"alias\" or \"ident\"");
    c.addr_mode = value == "ident" ? 1 : 0;
    return {};
  }
  if (name == "ppod_id") return take_id(c.ppod_id, name, value);
  if (name == "members") return take_members(c, name, value);
  if (name == "local_accelerators") return take_local(c, name, value);
  if (name == "link_type") return take_number(c.link_type, name, value, 1);
  if (name == "accel_id") return take_number(c.accel_id, name, value, 1023);
  if (name == "ppod_size") return take_number(c.ppod_size, name, value);
  if (name == "bandwidth") return take_number(c.bandwidth, name, value);
  if (name == "latency") return take_number(c.latency, name, value);
  if (name == "vpod_id") return take_number(c.vpod_id, name, value);
  if (name == "vpod_size") return take_number(c.vpod_size, name, value);
  if (name == "config_state") return take_number(c.config_state, name, value, 255);
  if (name == "station_count") return take_number(c.station_count, name, value);
  if (name == "station_flags") return take_number(c.station_flags, name, value);
  return base::fail(base::Errc::kInvalidArgument, "unknown member \"" + name + "\"");
}

base::Result<void> take_all(PodOptions& pod, const Json& object) {
  if (!object.is_object()) return base::fail(base::Errc::kInvalidArgument, "not an object");
  for (const auto& [name, value] : object.items()) {
    if (name == "gpus") continue;
    if (auto done = take(pod, name, value); !done) return done;
  }
  return {};
}

}  // namespace

base::Result<std::vector<PodOptions>> read_pod_file(const std::string& path, unsigned gpus) {
  std::ifstream file(path);
  if (!file) return base::fail(base::Errc::kNotFound, "pod file " + path);
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown))
    return base::fail(base::Errc::kInvalidArgument, "pod file " + path + " is a directory");
  const Json json = Json::parse(file, nullptr, false);
  PodOptions common;
  if (auto done = take_all(common, json); !done) return base::fail_within(path, done.error());
  std::vector<PodOptions> all(gpus, common);
  const auto list = json.find("gpus");
  if (list == json.end() || !list->is_array() || list->size() != gpus)
    return base::fail(base::Errc::kInvalidArgument,
                      path + ": \"gpus\" takes a list of " + std::to_string(gpus) + " objects");
  for (unsigned i = 0; i < gpus; ++i) {
    if (auto done = take_all(all[i], (*list)[i]); !done)
      return base::fail_within(path + ": gpus[" + std::to_string(i) + "]", done.error());
  }
  return all;
}

}  // namespace gpusim
