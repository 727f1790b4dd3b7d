#include "tools/gpusim/model/scenario.h"

#include <charconv>

namespace gpusim {

void ScenarioValues::set(std::string name, std::string value) {
  values_.insert_or_assign(std::move(name), std::move(value));
}

void ScenarioValues::set(std::string name, std::uint64_t value) {
  set(std::move(name), std::to_string(value));
}

void ScenarioValues::set(std::string name, bool value) {
  set(std::move(name), std::string(value ? "true" : "false"));
}

base::Result<std::uint64_t> ScenarioValues::number(std::string_view name) const {
  const auto found = values_.find(name);
  if (found == values_.end())
    return base::fail(base::Errc::kNotFound, "argument \"" + std::string(name) + "\"");
  std::string_view text = found->second;
  int base = 10;
  if (text.starts_with("0x")) {
    text.remove_prefix(2);
    base = 16;
  }
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc{} || end != text.data() + text.size())
    return base::fail(base::Errc::kInvalidArgument, "argument \"" + std::string(name) + "\"");
  return value;
}

base::Result<std::uint64_t> ScenarioValues::number_or(std::string_view name,
                                                      std::uint64_t otherwise) const {
  if (!values_.contains(name)) return otherwise;
  return number(name);
}

base::Result<bool> ScenarioValues::flag_or(std::string_view name, bool otherwise) const {
  const auto found = values_.find(name);
  if (found == values_.end()) return otherwise;
  if (found->second == "true") return true;
  if (found->second == "false") return false;
  return base::fail(base::Errc::kInvalidArgument, "argument \"" + std::string(name) + "\"");
}

std::optional<std::string> ScenarioValues::text(std::string_view name) const {
  const auto found = values_.find(name);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

void ScenarioHooks::add(unsigned gpu, std::string name, std::string help, Command command) {
  commands_[std::move(name)].insert_or_assign(gpu, Entry{std::move(help), std::move(command)});
}

void ScenarioHooks::remove(unsigned gpu) {
  for (auto& [name, entries] : commands_) entries.erase(gpu);
  std::erase_if(commands_, [](const auto& command) { return command.second.empty(); });
}

void ScenarioHooks::remove(unsigned gpu, std::string_view name) {
  const auto found = commands_.find(name);
  if (found == commands_.end()) return;
  found->second.erase(gpu);
  if (found->second.empty()) commands_.erase(found);
}

base::Result<ScenarioValues> ScenarioHooks::run(std::string_view name,
                                                const ScenarioValues& arguments) const {
  const auto found = commands_.find(name);
  if (found == commands_.end())
    return base::fail(base::Errc::kNotFound, "command \"" + std::string(name) + "\"");
  auto entry = found->second.find(kPod);
  if (entry == found->second.end()) {
    const auto gpu = arguments.number_or("gpu", 0);
    if (!gpu) return base::fail_within(name, gpu.error());
    entry = *gpu < kPod ? found->second.find(static_cast<unsigned>(*gpu)) : found->second.end();
  }
  if (entry == found->second.end())
    return base::fail(base::Errc::kNotFound, std::string(name) + ": GPU");
  // A command may remove itself or its GPU.
  const Command command = entry->second.command;
  return command(arguments);
}

std::vector<ScenarioHooks::Listed> ScenarioHooks::list() const {
  std::vector<Listed> all;
  for (const auto& [name, entries] : commands_) all.push_back({name, entries.begin()->second.help});
  return all;
}

}  // namespace gpusim
