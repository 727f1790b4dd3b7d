// The commands of the control socket.

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tools/gpusim/host/control.h"

namespace gpusim {

namespace {

using Json = nlohmann::json;

Json failure(std::string why) { return {{"ok", false}, {"error", std::move(why)}}; }

base::Result<ScenarioValues> to_values(const Json& command) {
  ScenarioValues values;
  for (const auto& [name, value] : command.items()) {
    if (name == "command") continue;
    if (value.is_string())
      values.set(name, value.get<std::string>());
    else if (value.is_boolean())
      values.set(name, value.get<bool>());
    else if (value.is_number_unsigned())
      values.set(name, value.get<std::uint64_t>());
    else
      return base::fail(base::Errc::kInvalidArgument,
                        "argument \"" + name + "\" (text, unsigned number or boolean)");
  }
  return values;
}

// Texts that are numbers or booleans become such.
Json to_json(const std::string& text) {
  if (text == "true") return true;
  if (text == "false") return false;
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc{} && end == text.data() + text.size() && !text.empty()) return number;
  return text;
}

Json counters(Pod& pod) {
  Json gpus = Json::array();
  for (unsigned i = 0; i < pod.size(); ++i) {
    const ServerCounters& c = pod.server(i).counters();
    Json gpu = {{"gpu", i},
                {"connected", pod.server(i).connected()},
                {"clients", c.clients},
                {"turned_away", c.turned_away},
                {"messages", c.messages},
                {"errors", c.errors},
                {"broken_sessions", c.broken_sessions},
                {"dma_messages", c.dma_messages},
                {"dma_refused", c.dma_refused},
                {"resets", c.resets}};
    ScenarioValues which;
    which.set("gpu", std::uint64_t{i});
    if (const auto model = pod.hooks().run("device.counters", which)) {
      for (const auto& [name, value] : model->all()) gpu["model"][name] = to_json(value);
    }
    gpus.push_back(std::move(gpu));
  }
  return {{"ok", true}, {"gpus", std::move(gpus)}};
}

Json totals(const AccessLog& log) {
  Json list = Json::array();
  for (const auto& [key, total] : log.totals()) {
    list.push_back({{"gpu", key.gpu},
                    {"engine", key.engine},
                    {"kind", to_string(key.kind)},
                    {"write", key.write},
                    {"accesses", total.accesses},
                    {"bytes", total.bytes},
                    {"failed", total.failed}});
  }
  return {{"ok", true}, {"totals", std::move(list)}, {"dropped", log.dropped()}};
}

Json accesses(const AccessLog& log, const ScenarioValues& arguments) {
  const auto gpu = arguments.number_or("gpu", 0);
  const auto limit = arguments.number_or("limit", 1000);
  if (!gpu) return failure(gpu.error().message());
  if (!limit) return failure(limit.error().message());
  auto found = log.find(static_cast<unsigned>(*gpu), arguments.text("engine").value_or(""));
  if (found.size() > *limit)
    found.erase(found.begin(), found.end() - static_cast<std::ptrdiff_t>(*limit));
  Json list = Json::array();
  for (const Access& access : found) {
    list.push_back({{"time_ns", access.time.count()},
                    {"engine", access.engine},
                    {"kind", to_string(access.kind)},
                    {"write", access.write},
                    {"address", access.address},
                    {"bytes", access.bytes},
                    {"outcome", to_string(access.outcome)}});
  }
  return {{"ok", true}, {"accesses", std::move(list)}};
}

Json list(const ScenarioHooks& hooks) {
  Json commands = {{"list", "the commands"},
                   {"counters", "of each GPU's server and model"},
                   {"totals", "accesses of engines since the start, by engine, kind and direction"},
                   {"log", "latest accesses of a GPU (gpu, engine, limit)"},
                   {"write_log", "write the access log to a file (path)"}};
  for (const auto& hook : hooks.list()) commands[hook.name] = hook.help;
  return {{"ok", true}, {"commands", std::move(commands)}};
}

Json write_log(const AccessLog& log, const ScenarioValues& arguments) {
  const auto path = arguments.text("path");
  if (!path) return failure("argument \"path\": not found");
  if (const auto written = log.write_file(*path); !written)
    return failure(written.error().message());
  return {{"ok", true}};
}

Json execute(Pod& pod, const std::string& name, const ScenarioValues& arguments) {
  if (name == "list") return list(pod.hooks());
  if (name == "counters") return counters(pod);
  if (name == "totals") return totals(pod.log());
  if (name == "log") return accesses(pod.log(), arguments);
  if (name == "write_log") return write_log(pod.log(), arguments);
  const auto result = pod.hooks().run(name, arguments);
  if (!result) return failure(result.error().message());
  Json answer = {{"ok", true}};
  for (const auto& [key, value] : result->all()) answer[key] = to_json(value);
  return answer;
}

Json run_json(Pod& pod, std::string_view line) {
  const Json command = Json::parse(line, nullptr, false);
  if (!command.is_object()) return failure("not a JSON object");
  const auto name = command.find("command");
  if (name == command.end() || !name->is_string()) return failure("no \"command\"");
  const auto arguments = to_values(command);
  if (!arguments) return failure(arguments.error().message());
  return execute(pod, name->get<std::string>(), *arguments);
}

}  // namespace

std::string Control::run(std::string_view line) {
  // Bytes that are no UTF-8 can come back in an error text.
  return run_json(pod_, line).dump(-1, ' ', false, Json::error_handler_t::replace);
}

base::Result<void> Control::run_file(const std::string& path) {
  std::ifstream file(path);
  if (!file) return base::fail(base::Errc::kNotFound, "scenario file " + path);
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown))
    return base::fail(base::Errc::kInvalidArgument, "scenario file " + path + " is a directory");
  std::string line;
  for (unsigned number = 1; std::getline(file, line); ++number) {
    const auto first = line.find_first_not_of(" \t\r");
    if (first == std::string::npos || line[first] == '#') continue;
    const Json answer = run_json(pod_, line);
    if (!answer["ok"].get<bool>())
      return base::fail(base::Errc::kInvalidArgument, path + ":" + std::to_string(number) + ": " +
                                                          answer["error"].get<std::string>());
  }
  return {};
}

}  // namespace gpusim
