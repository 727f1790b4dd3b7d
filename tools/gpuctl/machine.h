// What gpuctl says of this machine's devices, and does with them, without a daemon: devices, bind,
// unbind, doctor (docs/gpuctl.md "Devices of the machine").
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/gpuctl/snapshot.h"

namespace gpuctl {

struct Machine {
  std::string sysroot;    // whose sys, dev and proc; empty: this machine's
  std::string state_dir;  // empty: /var/lib/gpuumd below sysroot
};

struct BindRequest {
  bool binds = true;                 // else: unbinds
  std::vector<std::string> devices;  // "0000:03:00.0", "03:00.0", "pci:0000:03:00.0"
  bool yes = false;                  // carry the plan out
  bool any = false;
  bool accept_deadly_reset = false;
  std::chrono::milliseconds patience{};
};

// {"verb": "devices", "devices": [...]}. `device` empty: all that gpuumd drives, or every one with
// `any`; else the one of that address, of whatever kind. kNotFound.
Outcome<nlohmann::json> list_devices(const Machine& machine, const std::string& device, bool any);

// {"verb": "doctor", "problems": n, "checks": [...]}.
Outcome<nlohmann::json> examine(const Machine& machine, const std::string& runtime_dir);

// {"verb": "bind" or "unbind", "done": ..., "devices": [...]}. With `yes` the plan is made and
// carried out while no other gpuctl can change anything; `show` gets the document before that,
// with "done" false and "under_way" true. kBusy, kNotFound, kPermission, kTimeout, kDeviceLost,
// kUsage.
Outcome<nlohmann::json> bind_devices(const Machine& machine, const BindRequest& request,
                                     const std::function<void(const nlohmann::json&)>& show);

// Of a document of these verbs.
std::string render_machine(const nlohmann::json& document);

}  // namespace gpuctl
