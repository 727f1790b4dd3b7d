// What a daemon says about its devices, as one JSON document (docs/gpuctl.md "JSON").
#pragma once

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "gpuumd/gpuumd.hpp"
#include "tools/gpuctl/exit_code.h"

namespace gpuctl {

// Why a command ends, in one line, and with what code.
struct Failure {
  ExitCode code;
  std::string text;
};
template <class T>
using Outcome = std::expected<T, Failure>;

// The end of a whole command: each call gets what is left of it.
class Deadline {
 public:
  explicit Deadline(std::chrono::nanoseconds timeout)
      : at_(std::chrono::steady_clock::now() + timeout) {}
  gpuumd::Wait wait() const {
    const auto left = at_ - std::chrono::steady_clock::now();
    return gpuumd::Wait(std::max(left, std::chrono::steady_clock::duration::zero()));
  }

 private:
  std::chrono::steady_clock::time_point at_;
};

struct Target {
  std::string runtime_dir;  // empty: $GPUUMD_RUNTIME_DIR, else /run/gpuumd
  std::string device;       // index or name; empty: all
  std::chrono::nanoseconds timeout{};
};

// A connected client and the devices that were asked for.
struct Daemon {
  gpuumd::Client client;
  std::vector<gpuumd_device_info> devices;
};
// kNoDaemon, kTimeout, kNotFound (the device), kPermission.
Outcome<Daemon> open_daemon(const Target& target, const Deadline& deadline);

struct Verb {
  std::string name;
  std::string help;
  // GPUUMD_QUERY_*; none for what the list of devices says already, without asking a device.
  std::optional<std::uint32_t> query;
};
const std::vector<Verb>& verbs();

// The runtime directory that is meant.
std::string shown_dir(const Target& target);

// {"verb": ..., "runtime_dir": ..., "devices": [...]}. A device that does not answer has "error" in
// place of its answer, and `worst` becomes its code.
Outcome<nlohmann::json> take_snapshot(const Verb& verb, const Target& target, ExitCode& worst);

// Of a failed call, said to be `what`.
Failure failure(const gpuumd::Failure& from, const std::string& what = {});
// index, device, simulated: what every device in every document has.
nlohmann::json device_head(const gpuumd_device_info& info);

}  // namespace gpuctl
