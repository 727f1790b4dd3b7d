// Fault injection: commands by name that the blocks of the model offer, and that a scenario file or
// the control socket calls (docs/model.md). No JSON here: a command is a name and named texts.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace gpusim {

// Arguments and answers: numbers as decimal or 0x-hexadecimal text, booleans as "true" and "false".
class ScenarioValues {
 public:
  ScenarioValues() = default;
  ScenarioValues(std::initializer_list<std::pair<const std::string, std::string>> values)
      : values_(values) {}

  void set(std::string name, std::string value);
  void set(std::string name, std::uint64_t value);
  void set(std::string name, bool value);
  void set(std::string name, const char* value) { set(std::move(name), std::string(value)); }

  // kNotFound when absent, kInvalidArgument when it is no number; the text names the argument.
  base::Result<std::uint64_t> number(std::string_view name) const;
  // Absent: `otherwise`; present and not a number (not "true" or "false"): kInvalidArgument.
  base::Result<std::uint64_t> number_or(std::string_view name, std::uint64_t otherwise) const;
  base::Result<bool> flag_or(std::string_view name, bool otherwise) const;
  std::optional<std::string> text(std::string_view name) const;

  const std::map<std::string, std::string, std::less<>>& all() const { return values_; }

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

// One registry a pod. Names are "block.verb" ("ih.delay_iv", "nht.drop", "link.down"); a command of
// a single GPU is registered under that GPU's index and picked by the argument "gpu" (absent: 0).
// Model thread only.
class ScenarioHooks {
 public:
  using Command = std::function<base::Result<ScenarioValues>(const ScenarioValues&)>;
  static constexpr unsigned kPod = ~0u;  // a command of the pod, without "gpu"

  // Registering a name twice for one GPU replaces the command. `help` is one line for the list.
  void add(unsigned gpu, std::string name, std::string help, Command command);
  // Forgets all commands of a GPU, before that GPU is destroyed.
  void remove(unsigned gpu);
  void remove(unsigned gpu, std::string_view name);  // one of them

  // kNotFound for an unknown name or GPU, else what the command returns.
  base::Result<ScenarioValues> run(std::string_view name, const ScenarioValues& arguments) const;

  struct Listed {
    std::string name;
    std::string help;
  };
  std::vector<Listed> list() const;  // each name once, sorted

 private:
  struct Entry {
    std::string help;
    Command command;
  };
  std::map<std::string, std::map<unsigned, Entry>, std::less<>> commands_;
};

}  // namespace gpusim
