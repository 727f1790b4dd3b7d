#include "tools/gpusim/model/nht_rules.h"

#include <algorithm>
#include <string>

namespace gpusim {
namespace {

constexpr std::uint32_t kTypeMask = 0x3FF;
constexpr std::uint64_t kLongest = 3'600'000'000;  // microseconds: an hour

base::Result<std::optional<std::uint64_t>> optional_number(const ScenarioValues& arguments,
                                                           std::string_view name,
                                                           std::uint64_t largest) {
  if (!arguments.text(name)) return std::optional<std::uint64_t>();
  const auto value = arguments.number(name);
  if (!value) return std::unexpected(value.error());
  if (*value > largest) return base::fail(base::Errc::kOutOfRange, std::string(name));
  return std::optional(*value);
}

base::Result<std::optional<unsigned>> ring_index(const ScenarioValues& arguments) {
  const auto name = arguments.text("ring");
  if (!name) return std::optional<unsigned>();
  if (*name == "interrupt") return std::optional(0u);
  if (*name == "shootdown") return std::optional(1u);
  return base::fail(base::Errc::kInvalidArgument, "ring, not \"interrupt\" or \"shootdown\"");
}

}  // namespace

NhtRules::Parsed NhtRules::parse(NhtRule::Effect effect, const ScenarioValues& arguments) {
  NhtRule rule;
  rule.effect = effect;
  const auto from = optional_number(arguments, "from", 0x3FF);
  if (!from) return std::unexpected(from.error());
  const auto type = optional_number(arguments, "type", kTypeMask);
  if (!type) return std::unexpected(type.error());
  const auto ring = ring_index(arguments);
  if (!ring) return std::unexpected(ring.error());
  const auto status = arguments.number_or("status", 1);
  if (!status) return std::unexpected(status.error());
  const auto count = arguments.number_or("count", 1);
  if (!count) return std::unexpected(count.error());
  const auto time = optional_number(arguments, "us", kLongest);
  if (!time) return std::unexpected(time.error());
  if (*from) rule.from = static_cast<std::uint16_t>(**from);
  if (*type) rule.type = static_cast<std::uint32_t>(**type);
  rule.ring = *ring;
  rule.status = static_cast<std::uint32_t>(*status);
  rule.left = *count;
  rule.time = std::chrono::microseconds(time->value_or(100'000));
  return rule;
}

std::optional<NhtRule> NhtRules::take(std::uint16_t sender, unsigned ring, bool message,
                                      std::uint32_t dword) {
  const auto about_message = [](NhtRule::Effect effect) {
    return effect != NhtRule::Effect::kFail && effect != NhtRule::Effect::kNoWriteBack;
  };
  const auto found = std::ranges::find_if(rules_, [&](const NhtRule& rule) {
    if (rule.from && *rule.from != sender) return false;
    if (rule.ring && *rule.ring != ring) return false;
    if (about_message(rule.effect) && !message) return false;
    return !rule.type || (message && *rule.type == (dword & kTypeMask));
  });
  if (found == rules_.end()) return std::nullopt;
  const NhtRule rule = *found;
  if (--found->left == 0) rules_.erase(found);
  return rule;
}

}  // namespace gpusim
