#include "daemon/config.h"

#include <toml++/toml.h>
#include <algorithm>
#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <set>

#include "gpuumd/wire.h"
#include "vfio/kernel/open_kernel.h"

namespace gpuumd {
namespace {

std::unexpected<base::Error> refuse(const std::string& path, const toml::source_region& where,
                                    const std::string& what) {
  return base::fail(base::Errc::kInvalidArgument,
                    path + ":" + std::to_string(where.begin.line) + ": " + what);
}

template <class T>
bool take(const toml::node& node, T& into) {
  const auto value = node.value_exact<T>();
  if (value) into = *value;
  return value.has_value();
}

bool take_unsigned(const toml::node& node, std::uint64_t& into) {
  std::int64_t value = 0;
  if (!take(node, value) || value < 0) return false;
  into = static_cast<std::uint64_t>(value);
  return true;
}

bool take_devices(const toml::node& node, std::vector<std::string>& into) {
  const auto* list = node.as_array();
  if (list == nullptr) return false;
  std::vector<std::string> names;
  for (const auto& entry : *list)
    if (std::string name; take(entry, name))
      names.push_back(std::move(name));
    else
      return false;
  into = std::move(names);
  return true;
}

// A device has one owner, once; a PCI function can be spelt in several ways.
base::Result<void> check_once_each(const std::vector<std::string>& devices) {
  std::set<std::string> seen;
  for (const auto& name : devices) {
    if (name == "sim" || name.starts_with("sim:")) continue;  // each a model of its own
    const auto function = vfio::KernelName::parse(name);
    if (!seen.insert(function ? function->address.text() : name).second)
      return base::fail(base::Errc::kInvalidArgument, "device \"" + name + "\" is given twice");
  }
  return {};
}

}  // namespace

base::Result<void> load_config(const std::string& path, DaemonConfig& config) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (status.type() == std::filesystem::file_type::not_found)
    return base::fail(base::Errc::kNotFound, "config " + path);
  if (error == std::errc::permission_denied)
    return base::fail(base::Errc::kPermission, "config " + path, error.value());
  if (!std::filesystem::is_regular_file(status))
    return base::fail(base::Errc::kUnsupported, "config " + path + " is no regular file");
  toml::table table;
  try {
    table = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    return refuse(path, error.source(), std::string(error.description()));
  }
  const std::map<std::string, std::pair<const char*, std::function<bool(const toml::node&)>>> keys =
      {{"devices",
        {"a list of names", [&](const toml::node& n) { return take_devices(n, config.devices); }}},
       {"runtime_dir",
        {"a path", [&](const toml::node& n) { return take(n, config.runtime_dir); }}},
       {"log_level", {"a name", [&](const toml::node& n) { return take(n, config.log_level); }}},
       {"same_host",
        {"true or false", [&](const toml::node& n) { return take(n, config.same_host); }}},
       {"fault_deadline_ms",
        {"a number",
         [&](const toml::node& n) { return take_unsigned(n, config.fault_deadline_ms); }}},
       {"turn_limit_ms",
        {"a number", [&](const toml::node& n) { return take_unsigned(n, config.turn_limit_ms); }}}};
  for (const auto& [key, node] : table) {
    const auto known = keys.find(std::string(key.str()));
    if (known == keys.end())
      return refuse(path, key.source(), "unknown key \"" + std::string(key.str()) + "\"");
    if (!known->second.second(node))
      return refuse(path, node.source(), known->first + " takes " + known->second.first);
  }
  return {};
}

base::Result<void> check_config(const DaemonConfig& config) {
  if (config.devices.empty())
    return base::fail(base::Errc::kInvalidArgument,
                      "no device given: --device pci:0000:03:00.0 for a GPU bound to vfio-pci "
                      "(gpuctl devices lists them), --device vfio-user:PATH for one that serves a "
                      "socket, or --device sim[:options] for the model in this process");
  for (const auto& name : config.devices)
    if (name != "sim" && !name.starts_with("sim:") && !name.starts_with("vfio-user:") &&
        !name.starts_with(vfio::KernelName::kPrefix))
      return base::fail(base::Errc::kInvalidArgument,
                        "device \"" + name +
                            "\": forms are pci:ADDRESS[,options], vfio-user:PATH and "
                            "sim[:options]");
  if (auto alone = check_once_each(config.devices); !alone) return alone;
  if (config.devices.size() > wire::kMaxDevices)
    return base::fail(base::Errc::kInvalidArgument, std::to_string(config.devices.size()) +
                                                        " devices: at most " +
                                                        std::to_string(wire::kMaxDevices));
  constexpr std::array kLevels{"debug", "info", "warn", "error", "off"};
  if (std::ranges::find(kLevels, config.log_level) == kLevels.end())
    return base::fail(base::Errc::kInvalidArgument,
                      "log level \"" + config.log_level + "\": debug, info, warn, error or off");
  if (config.fault_deadline_ms == 0 || config.fault_deadline_ms > 60'000)
    return base::fail(base::Errc::kInvalidArgument, "fault_deadline_ms is 1 to 60000");
  if (config.turn_limit_ms > 60'000)
    return base::fail(base::Errc::kInvalidArgument, "turn_limit_ms is 0 to 60000");
  return {};
}

}  // namespace gpuumd
