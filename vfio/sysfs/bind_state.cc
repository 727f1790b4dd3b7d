#include "vfio/sysfs/bind_state.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

namespace vfio::sysfs {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;

json optional_json(const std::optional<std::string>& text) {
  return text ? json(*text) : json(nullptr);
}

std::optional<std::string> optional_text(const json& entry, const char* name) {
  const auto& value = entry.at(name);
  if (value.is_null()) return std::nullopt;
  return value.get<std::string>();
}

Remembered from_json(const json& entry) {
  return {entry.at("driver").get<std::string>(), entry.at("driver_override").get<std::string>(),
          optional_text(entry, "reset_method"), optional_text(entry, "power_control"),
          entry.value("part", "")};
}

json to_json(const Remembered& what) {
  return {{"driver", what.driver},
          {"driver_override", what.driver_override},
          {"reset_method", optional_json(what.reset_method)},
          {"power_control", optional_json(what.power_control)},
          {"part", what.part}};
}

base::Result<void> write_all(int fd, const std::string& path, const std::string& text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const auto wrote = ::write(fd, text.data() + done, text.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return std::unexpected(system_error("write " + path, errno));
    done += static_cast<std::size_t>(wrote);
  }
  if (::fsync(fd) != 0) return std::unexpected(system_error("write " + path, errno));
  return {};
}

}  // namespace

base::Result<BindState> BindState::read(const Roots& roots, const std::string& directory) {
  BindState state;
  state.file_ = directory + "/bind.json";
  if (auto loaded = state.load(roots); !loaded) return std::unexpected(loaded.error());
  return state;
}

base::Result<BindState> BindState::lock(const Roots& roots, const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) return std::unexpected(system_error("state directory " + directory, error.value()));
  BindState state;
  state.file_ = directory + "/bind.json";
  const auto path = directory + "/bind.lock";
  state.lock_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!state.lock_) return std::unexpected(system_error("open " + path, errno));
  if (::flock(state.lock_.get(), LOCK_EX | LOCK_NB) != 0)
    return base::fail(base::Errc::kBusy,
                      "another gpuctl binds or unbinds now (it holds " + path + ")");
  if (auto loaded = state.load(roots); !loaded) return std::unexpected(loaded.error());
  return state;
}

base::Result<void> BindState::load(const Roots& roots) {
  boot_id_ = read_text(roots.proc + "/sys/kernel/random/boot_id").value_or("");
  const auto text = read_text(file_, 1 << 20);
  if (!text && text.error().code == base::Errc::kNotFound) return {};
  if (!text) return std::unexpected(text.error());
  const auto damaged = base::fail(
      base::Errc::kProtocol, file_ + " is damaged: remove it (the drivers it named are forgotten)");
  try {
    const auto document = json::parse(*text);
    if (document.at("version").get<int>() != kVersion) return damaged;
    if (document.at("boot_id").get<std::string>() != boot_id_) return {};
    for (const auto& [name, entry] : document.at("devices").items()) {
      const auto address = PciAddress::parse(name);
      if (!address) return damaged;
      devices_[*address] = from_json(entry);
    }
  } catch (const json::exception&) {
    return damaged;
  }
  return {};
}

base::Result<void> BindState::save() const {
  json devices = json::object();
  for (const auto& [address, what] : devices_) devices[address.text()] = to_json(what);
  const json document = {{"version", kVersion}, {"boot_id", boot_id_}, {"devices", devices}};
  const auto text = document.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  const auto fresh = file_ + ".new";
  const base::UniqueFd file(
      ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644));
  if (!file) return std::unexpected(system_error("open " + fresh, errno));
  if (auto written = write_all(file.get(), fresh, text); !written) return written;
  if (::rename(fresh.c_str(), file_.c_str()) != 0)
    return std::unexpected(system_error("rename " + fresh, errno));
  return {};
}

std::optional<Remembered> BindState::find(const PciAddress& address) const {
  const auto it = devices_.find(address);
  return it == devices_.end() ? std::nullopt : std::optional(it->second);
}

std::optional<Remembered> BindState::find(const PciAddress& address,
                                          const std::string& part) const {
  auto found = find(address);
  if (found && !found->part.empty() && found->part != part) return std::nullopt;
  return found;
}

base::Result<void> BindState::remember(const PciAddress& address, const Remembered& what) {
  devices_[address] = what;
  return save();
}

base::Result<void> BindState::forget(const PciAddress& address) {
  if (devices_.erase(address) == 0) return {};
  return save();
}

}  // namespace vfio::sysfs
