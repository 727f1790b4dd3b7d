// Tables and plans of gpuctl devices, bind, unbind and doctor.
#include <string>
#include <vector>

#include "tools/gpuctl/machine.h"
#include "tools/gpuctl/table.h"

namespace gpuctl {
namespace {

using nlohmann::json;

std::string shown(const json& value) {
  if (value.is_null()) return "-";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string shown_list(const json& list, const std::string& between = " ") {
  std::string out;
  for (const auto& part : list) out += (out.empty() ? "" : between) + shown(part);
  return out.empty() ? "-" : out;
}

std::string bars(const json& device) {
  std::string out;
  for (const auto& bar : device["bars"]) {
    if (bar["ports"] == true) continue;
    out += (out.empty() ? "" : ", ") + bar["index"].dump() + ": " +
           bytes_text(bar["bytes"].get<std::uint64_t>());
  }
  return out.empty() ? "-" : out;
}

// The other members of the group, with their drivers. Of one that cannot be read the driver is all
// that is known.
std::string companions(const json& device) {
  std::string out;
  for (const auto& member : device["group_members"]) {
    if (member["address"] == device["address"]) continue;
    out += (out.empty() ? "" : ", ") + shown(member["address"]);
    if (!member["driver"].is_null()) out += " (" + shown(member["driver"]) + ")";
    if (!member["unread"].empty()) out += " (cannot be read)";
  }
  for (const auto& stranger : device["group_strangers"])
    out += (out.empty() ? "" : ", ") + shown(stranger);
  return out;
}

std::string hidden_text(const json& document) {
  const auto hidden = document["hidden_processes"].get<std::uint64_t>();
  if (hidden == 0) return {};
  return "processes it may not look into: " + std::to_string(hidden) +
         "; one of them may hold a device (root sees all)\n";
}

std::string render_devices(const json& document) {
  const auto& devices = document["devices"];
  if (devices.empty()) return "no devices\n";
  Table table(
      {"ADDRESS", "PCI ID", "DRIVER", ">GROUP", ">NUMA", "POWER", "RESET", "BARS", "STATE"});
  std::string notes;
  for (const auto& device : devices) {
    const auto address = shown(device["address"]);
    table.add({address, shown(device["pci_id"]), shown(device["driver"]),
               shown(device["iommu_group"]), shown(device["numa_node"]),
               shown(device["power_state"]), shown_list(device["reset_methods"]), bars(device),
               shown(device["state"])});
    if (!device["why"].is_null()) notes += address + ": " + shown(device["why"]) + "\n";
    if (const auto others = companions(device); !others.empty())
      notes += address + ": in its group too: " + others + "\n";
    if (device["dies_of_reset"] == true)
      notes += address + ": does not survive some resets (docs/vfio.md \"Reset\")\n";
    for (const auto& text : device["unread"]) notes += address + ": " + shown(text) + "\n";
  }
  return table.text() + (notes.empty() ? "" : "\n" + notes) + hidden_text(document);
}

std::string render_doctor(const json& document) {
  Table table({"CHECK", "", "FOUND"});
  std::string remedies;
  for (const auto& check : document["checks"]) {
    table.add({shown(check["name"]), shown(check["level"]), shown(check["found"])});
    if (!check["remedy"].is_null())
      remedies += "  " + shown(check["name"]) + ": " + shown(check["remedy"]) + "\n";
  }
  const auto problems = document["problems"].get<std::uint64_t>();
  const auto last = problems == 0   ? std::string("no problem")
                    : problems == 1 ? std::string("1 problem")
                                    : std::to_string(problems) + " problems";
  return table.text() + (remedies.empty() ? "" : "\nwhat to do\n" + remedies) + "\n" + last + "\n";
}

std::string outcome(const json& device) {
  const auto driver = [](const json& name) {
    return name.is_null() ? std::string("no driver") : shown(name);
  };
  return driver(device["from"]) + " -> " +
         (device["kernel_chooses"] == true ? "whom the kernel chooses" : driver(device["to"]));
}

// What a shell would write to do the same.
std::string command(const json& step) {
  auto value = shown(step["value"]);
  if (value.ends_with('\n')) value.pop_back();
  return "echo " + (value.empty() ? "\"\"" : value) + " > " + shown(step["path"]);
}

std::string render_plan(const json& document) {
  std::string out;
  for (const auto& device : document["devices"]) {
    out += shown(device["address"]) + "  " + outcome(device) + "\n";
    if (device["steps"].empty()) out += "  nothing to do\n";
    for (const auto& step : device["steps"])
      out += "  " + shown(step["what"]) + "\n    " + command(step) + "\n";
    for (const auto& warning : device["warnings"]) out += "  WARNING: " + shown(warning) + "\n";
  }
  out += hidden_text(document);
  return document.value("under_way", false) ? out
                                            : out + "nothing has been written yet; --yes does it\n";
}

std::string render_done(const json& document) {
  std::string out;
  for (const auto& device : document["devices"]) {
    out += "done: " + shown(device["address"]) + "  " + outcome(device) + "\n";
    for (const auto& text : device["not_restored"]) out += "  WARNING: " + shown(text) + "\n";
  }
  return out;
}

}  // namespace

std::string render_machine(const json& document) {
  const auto verb = shown(document["verb"]);
  if (verb == "devices") return render_devices(document);
  if (verb == "doctor") return render_doctor(document);
  return document["done"] == true ? render_done(document) : render_plan(document);
}

}  // namespace gpuctl
