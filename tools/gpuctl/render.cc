#include "tools/gpuctl/render.h"

#include <array>
#include <map>
#include <vector>

#include "tools/gpuctl/table.h"

namespace gpuctl {
namespace {

using nlohmann::json;

const json& member(const json& object, const char* name) {
  static const json kNone;
  const auto it = object.is_object() ? object.find(name) : object.end();
  return object.is_object() && it != object.end() ? *it : kNone;
}

std::string plain(const json& value) {
  if (value.is_null()) return "-";
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string cell(const json& object, const char* name) { return plain(member(object, name)); }

std::string bytes(const json& object, const char* name) {
  const auto& value = member(object, name);
  return value.is_number_unsigned() ? bytes_text(value.get<std::uint64_t>()) : plain(value);
}

std::string time(const json& object, const char* name) {
  const auto& value = member(object, name);
  return value.is_number_unsigned() ? duration_text(value.get<std::uint64_t>()) : plain(value);
}

std::string kind(const json& device) {
  return member(device, "simulated") == json(true) ? "SIM" : "PCI";
}

std::string heading(const json& device) {
  return "gpu " + cell(device, "index") + "  " + kind(device) + "  " + cell(device, "device") +
         "\n";
}

std::string render_list(const json& devices) {
  Table table({">GPU", "KIND", "STATE", ">VRAM", ">ACCEL", ">VPOD", "FABRIC", "FAULTS", "PCI ID",
               "DEVICE"});
  for (const auto& device : devices)
    table.add({cell(device, "index"), kind(device), cell(device, "state"),
               bytes(device, "vram_bytes"), cell(device, "accelerator_id"), cell(device, "vpod_id"),
               cell(device, "fabric"), cell(device, "page_faults"), cell(device, "pci_id"),
               cell(device, "device")});
  return table.text();
}

// Members in the daemon's own names, groups one level deep: what is new shows without a new gpuctl.
std::string render_status(const json& device) {
  Table table({"", ""});
  for (const auto& [name, value] : device.items()) {
    if (name == "index" || name == "device" || name == "simulated") continue;
    if (!value.is_object()) {
      table.add({name, name.ends_with("_bytes") ? bytes(device, name.c_str()) : plain(value)});
      continue;
    }
    for (const auto& [inner, number] : value.items())
      table.add({name + "." + inner,
                 inner.ends_with("bytes") ? bytes(value, inner.c_str()) : plain(number)});
  }
  const auto text = table.text("  ");
  return text.substr(text.find('\n') + 1);  // no header
}

struct Column {
  const char* title;
  const char* member;
  bool is_bytes = false;
};

std::string render_entries(const json& list, const std::vector<Column>& columns) {
  if (!list.is_array() || list.empty()) return "  none\n";
  std::vector<std::string> header;
  for (const auto& column : columns) header.emplace_back(column.title);
  Table table(std::move(header));
  for (const auto& entry : list) {
    std::vector<std::string> row;
    for (const auto& column : columns)
      row.push_back(column.is_bytes ? bytes(entry, column.member) : cell(entry, column.member));
    table.add(std::move(row));
  }
  return table.text("  ");
}

std::string render_faults(const json& device) {
  constexpr std::array kCounters = {"taken", "serviced", "joined", "present", "windows",
                                    "pages", "fatal",    "stray",  "timeouts"};
  std::string out = " ";
  for (const auto* name : kCounters) out += std::string(" ") + name + " " + cell(device, name);
  out += "\n";
  constexpr std::array kStages = {"drain", "resolve", "populate", "write", "acknowledge", "total"};
  Table table({"STAGE", ">COUNT", ">MEDIAN", ">P99"});
  for (const auto* name : kStages) {
    const auto& stage = member(member(device, "stages"), name);
    table.add({name, cell(stage, "count"), time(stage, "p50_ns"), time(stage, "p99_ns")});
  }
  return out + table.text("  ");
}

std::string render_demo(const json& device) {
  std::string out;
  for (const auto& step : member(device, "steps")) out += "  " + plain(step) + "\n";
  return out;
}

std::string render_device(const std::string& verb, const json& device) {
  if (verb == "status") return render_status(device);
  if (verb == "faults") return render_faults(device);
  if (verb == "demo") return render_demo(device);
  static const std::map<std::string, std::vector<Column>> kTables = {
      {"clients",
       {{">SESSION", "session"},
        {">UID", "uid"},
        {">PID", "pid"},
        {"NAME", "name"},
        {">VMS", "vms"},
        {">QUEUES", "queues"},
        {">BUFFERS", "buffers"},
        {">FENCES", "fences"}}},
      {"exports",
       {{"HANDLE", "handle"},
        {">BUFFER", "buffer"},
        {">SIZE", "bytes", true},
        {">IMPORTERS", "importers"}}},
      {"imports", {{"HANDLE", "handle"}, {">SIZE", "bytes", true}, {">REFERENCES", "references"}}},
      {"peers",
       {{">ACCEL", "accelerator_id"},
        {"STATE", "state"},
        {">GENERATION", "generation"},
        {"LINK UP", "link_up"}}},
  };
  return render_entries(member(device, verb.c_str()), kTables.at(verb));
}

}  // namespace

std::string render(const json& document) {
  const auto verb = cell(document, "verb");
  const auto& devices = member(document, "devices");
  if (devices.empty()) return "no devices\n";
  if (verb == "list") return render_list(devices);
  std::string out;
  for (const auto& device : devices) {
    out += heading(device);
    out += device.contains("error") ? "  " + cell(device, "error") + "\n"
                                    : render_device(verb, device);
  }
  return out;
}

}  // namespace gpuctl
