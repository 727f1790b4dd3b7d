// Fault injection of the nHT firmware (docs/model-fabric.md, "Scenario commands").
#include <utility>

#include "tools/gpusim/model/nht.h"

namespace gpusim {

namespace {

using Values = ScenarioValues;
using Answer = base::Result<ScenarioValues>;

}  // namespace

void Nht::add_command(std::string name, std::string help, ScenarioHooks::Command command) {
  hooks_->add(gpu_, name, std::move(help), std::move(command));
  commands_.push_back(std::move(name));
}

void Nht::add_rules() {
  const auto rule = [this](std::string name, std::string help, NhtRule::Effect effect) {
    add_command(std::move(name), std::move(help),
                [this, effect](const Values& arguments) -> Answer {
                  const auto parsed = NhtRules::parse(effect, arguments);
                  if (!parsed) return std::unexpected(parsed.error());
                  rules_.add(*parsed);
                  return Values{};
                });
  };
  using Effect = NhtRule::Effect;
  rule("nht.drop", "take the next messages and lose them (from, type, count=1)", Effect::kDrop);
  rule("nht.delay", "raise the next messages later (from, type, us=100000, count=1)",
       Effect::kDelay);
  rule("nht.duplicate", "raise the next messages twice (from, type, count=1)", Effect::kDuplicate);
  rule("nht.reorder", "raise the next messages after the one behind (from, type, us, count=1)",
       Effect::kReorder);
  rule("nht.fail", "consume the next entries with a status (from, ring, type, status=1, count=1)",
       Effect::kFail);
  rule("nht.no_write_back", "take the next entries without a record (from, ring, type, count=1)",
       Effect::kNoWriteBack);
}

void Nht::add_flags() {
  const auto flag = [this](std::string name, std::string help, bool NhtRules::* which) {
    add_command(std::move(name), std::move(help), [this, which](const Values& arguments) -> Answer {
      const auto on = arguments.flag_or("on", true);
      if (!on) return std::unexpected(on.error());
      rules_.*which = *on;
      return Values{};
    });
  };
  flag("nht.mute", "take entries, raise nothing (on=true)", &NhtRules::mute);
  flag("nht.no_shootdown", "never look at shootdown rings, as a legacy peer (on=true)",
       &NhtRules::no_shootdown);
  flag("nht.hang", "take no entries (on=true)", &NhtRules::hang);
}

void Nht::add_scenarios() {
  if (hooks_ == nullptr) return;
  add_rules();
  add_flags();
  add_command("nht.status", "show this firmware status from now on (value)",
              [this](const Values& arguments) -> Answer {
                const auto value = arguments.number("value");
                if (!value) return std::unexpected(value.error());
                stop();
                status_->stored = static_cast<std::uint32_t>(*value);
                return Values{};
              });
  add_command("nht.counters", "what the firmware counted", [this](const Values&) -> Answer {
    Values values;
    values.set("loads", counters_.loads);
    values.set("doorbells", counters_.doorbells);
    values.set("dropped_doorbells", counters_.dropped_doorbells);
    values.set("entries", counters_.entries);
    values.set("failed", counters_.failed);
    values.set("messages", counters_.messages);
    values.set("shootdowns", counters_.shootdowns);
    values.set("unrecorded", counters_.unrecorded);
    values.set("lost_records", counters_.lost_records);
    return values;
  });
}

}  // namespace gpusim
