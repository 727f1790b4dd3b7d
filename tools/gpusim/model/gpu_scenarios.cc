// Fault injection that the blocks of one GPU offer (docs/model.md).
#include <algorithm>
#include <memory>
#include <utility>

#include "base/bytes.h"
#include "tools/gpusim/model/discovery_table.h"
#include "tools/gpusim/model/gpu.h"

namespace gpusim {
namespace {

using Values = ScenarioValues;
using Answer = base::Result<ScenarioValues>;

// What happens to the next `left` vectors of a client and source; kAny matches all.
struct IvRule {
  static constexpr std::uint64_t kAny = ~std::uint64_t{0};
  std::uint64_t client = kAny;
  std::uint64_t source = kAny;
  std::uint64_t left = 0;
  InterruptHandler::Verdict verdict;

  bool matches(const Iv& iv) const {
    return left != 0 && (client == kAny || client == iv.client) &&
           (source == kAny || source == iv.source);
  }
};
using IvRules = std::vector<IvRule>;

base::Result<IvRule> parse_rule(const Values& arguments) {
  IvRule rule;
  const auto client = arguments.number_or("client", IvRule::kAny);
  if (!client) return std::unexpected(client.error());
  const auto source = arguments.number_or("source", IvRule::kAny);
  if (!source) return std::unexpected(source.error());
  const auto count = arguments.number_or("count", 1);
  if (!count) return std::unexpected(count.error());
  rule.client = *client;
  rule.source = *source;
  rule.left = *count;
  return rule;
}

base::Result<ModelTime> microseconds(const Values& arguments, std::string_view name,
                                     std::uint64_t otherwise) {
  constexpr std::uint64_t kLongest = 3'600'000'000;  // an hour
  const auto value = arguments.number_or(name, otherwise);
  if (!value) return std::unexpected(value.error());
  if (*value > kLongest) return base::fail(base::Errc::kOutOfRange, std::string(name));
  return ModelTime(std::chrono::microseconds(*value));
}

Answer raise_many(InterruptHandler& interrupts, const Values& arguments) {
  const auto client = arguments.number("client");
  if (!client) return std::unexpected(client.error());
  const auto source = arguments.number_or("source", 0);
  if (!source) return std::unexpected(source.error());
  const auto count = arguments.number_or("count", 1);
  if (!count) return std::unexpected(count.error());
  constexpr std::uint64_t kMost = 65536;  // eight times the largest ring
  if (*client > 0xFF || *source > 0xFF || *count > kMost)
    return base::fail(base::Errc::kOutOfRange, "ih.raise");
  Iv iv{.client = static_cast<std::uint8_t>(*client), .source = static_cast<std::uint8_t>(*source)};
  std::uint64_t raised = 0;
  for (std::uint64_t n = 0; n < *count; ++n) {
    iv.src_data[0] = static_cast<std::uint32_t>(n);
    raised += interrupts.raise(iv) ? 1 : 0;
  }
  Values values;
  values.set("raised", raised);
  return values;
}

Answer set_config(SecurityProcessor& security, const Values& arguments) {
  PodConfig config = security.config();
  const auto take = [&](std::string_view name, std::uint32_t& word) -> base::Result<void> {
    const auto value = arguments.number_or(name, word);
    if (!value) return std::unexpected(value.error());
    word = static_cast<std::uint32_t>(*value);
    return {};
  };
  for (const auto& [name, word] :
       {std::pair{"accel_id", &config.accel_id}, std::pair{"ppod_size", &config.ppod_size},
        std::pair{"vpod_id", &config.vpod_id}, std::pair{"vpod_size", &config.vpod_size},
        std::pair{"addr_mode", &config.addr_mode}, std::pair{"active0", &config.active[0]},
        std::pair{"state", &config.config_state}})
    if (auto taken = take(name, *word); !taken) return std::unexpected(taken.error());
  security.update_config(config);
  return Values{};
}

Values counters(Gpu& gpu) {
  Values values;
  const auto& ih = gpu.interrupts().counters();
  values.set("ih.raised", ih.raised);
  values.set("ih.written", ih.written);
  values.set("ih.off", ih.off);
  values.set("ih.lost_writes", ih.lost_writes);
  values.set("ih.overflows", ih.overflows);
  values.set("ih.msis", ih.msis);
  values.set("ih.bad_pointers", ih.bad_pointers);
  const auto& cam = gpu.interrupts().cam_counters();
  values.set("cam.raised", cam.raised);
  values.set("cam.filtered", cam.filtered);
  values.set("cam.full", cam.full);
  values.set("cam.repeated", cam.repeated);
  values.set("cam.acknowledged", cam.acknowledged);
  values.set("cam.acknowledged_free", cam.acknowledged_free);
  const auto& doorbells = gpu.doorbells().counters();
  values.set("doorbells.delivered", doorbells.delivered);
  values.set("doorbells.dropped", doorbells.dropped());
  const auto& psp = gpu.security_processor().counters();
  values.set("psp.commands", psp.commands);
  values.set("psp.failed", psp.failed);
  values.set("psp.bad_pointers", psp.bad_pointers);
  values.set("psp.lost_accesses", psp.lost_accesses);
  values.set("nbio.flushes", gpu.nbio().flushes());
  HubCounters hubs;
  const auto add = [&hubs](const HubCounters& hub) {
    hubs.faults += hub.faults;
    hubs.retries += hub.retries;
    hubs.bus_errors += hub.bus_errors;
    hubs.flushes_without_semaphore += hub.flushes_without_semaphore;
  };
  for (unsigned j = 0; j < gpu.options().xccs; ++j) add(gpu.gfxhub(j).counters());
  for (unsigned k = 0; k < gpu.options().mids; ++k) add(gpu.mmhub(k).counters());
  values.set("hubs.faults", hubs.faults);
  values.set("hubs.retries", hubs.retries);
  values.set("hubs.bus_errors", hubs.bus_errors);
  values.set("hubs.flushes_without_semaphore", hubs.flushes_without_semaphore);
  const auto& vram = gpu.vram().counters();
  values.set("vram.held_stores", vram.held_stores);
  values.set("vram.poisoned_pages", vram.poisoned_pages);
  values.set("vram.poison_reads", vram.poison_reads);
  values.set("vram.last_poison_read", vram.last_poison_read);
  return values;
}

}  // namespace

// All of VRAM but the discovery table.
void Gpu::poison_vram() {
  const auto table = build_discovery(options_, bases_);
  for (std::uint64_t at = 0; at < options_.vram_bytes; at += sizeof Vram::kPoisonPattern)
    base::store(vram_->cpu_view(), at, Vram::kPoisonPattern);
  std::ranges::copy(table, vram_->cpu_view().subspan(discovery_offset(options_)).begin());
  vram_->hdp_flush();
}

void Gpu::add_scenarios() {
  if (context_.hooks == nullptr) return;
  const auto add = [this](std::string name, std::string help, ScenarioHooks::Command command) {
    context_.hooks->add(options_.index, name, std::move(help), std::move(command));
    scenario_names_.push_back(std::move(name));
  };

  const auto rules = std::make_shared<IvRules>();
  interrupts_->set_filter([rules](const Iv& iv) -> InterruptHandler::Verdict {
    const auto rule = std::ranges::find_if(*rules, [&](const IvRule& r) { return r.matches(iv); });
    if (rule == rules->end()) return {};
    const auto verdict = rule->verdict;
    if (--rule->left == 0) rules->erase(rule);
    return verdict;
  });
  add("ih.drop_iv", "lose the next vectors (client, source, count=1)",
      [rules](const Values& arguments) -> Answer {
        auto rule = parse_rule(arguments);
        if (!rule) return std::unexpected(rule.error());
        rule->verdict.drop = true;
        rules->push_back(*rule);
        return Values{};
      });
  add("ih.delay_iv", "hold the next vectors back (client, source, count=1, us=1000)",
      [rules](const Values& arguments) -> Answer {
        auto rule = parse_rule(arguments);
        if (!rule) return std::unexpected(rule.error());
        const auto delay = microseconds(arguments, "us", 1000);
        if (!delay) return std::unexpected(delay.error());
        rule->verdict.delay = *delay;
        rules->push_back(*rule);
        return Values{};
      });
  add("ih.duplicate_iv", "raise the next vectors twice (client, source, count=1)",
      [rules](const Values& arguments) -> Answer {
        auto rule = parse_rule(arguments);
        if (!rule) return std::unexpected(rule.error());
        rule->verdict.duplicates = 1;
        rules->push_back(*rule);
        return Values{};
      });
  add("ih.raise", "raise vectors; more than the ring holds overflow it (client, source=0, count=1)",
      [this](const Values& arguments) { return raise_many(*interrupts_, arguments); });
  add("psp.late", "slow security processor (boot_us=0, answer_us=0)",
      [this](const Values& arguments) -> Answer {
        const auto boot = microseconds(arguments, "boot_us", 0);
        if (!boot) return std::unexpected(boot.error());
        const auto answer = microseconds(arguments, "answer_us", 0);
        if (!answer) return std::unexpected(answer.error());
        if (boot->count() != 0) security_->set_boot_delay(*boot);
        security_->set_answer_delay(*answer);
        return Values{};
      });
  add("psp.config",
      "the controller changes the configuration (accel_id, ppod_size, vpod_id, vpod_size, "
      "addr_mode, active0, state)",
      [this](const Values& arguments) { return set_config(*security_, arguments); });
  add("psp.pause", "the controller asks for a pause", [this](const Values&) -> Answer {
    security_->notify(SecurityProcessor::Notice::kPause);
    return Values{};
  });
  add("psp.resume", "the controller ends the pause", [this](const Values&) -> Answer {
    security_->notify(SecurityProcessor::Notice::kResume);
    return Values{};
  });
  add("device.gone",
      "surprise removal of the function (on=true), after so many register accesses (after=0)",
      [this](const Values& arguments) -> Answer {
        const auto on = arguments.flag_or("on", true);
        if (!on) return std::unexpected(on.error());
        const auto after = arguments.number_or("after", 0);
        if (!after) return std::unexpected(after.error());
        if (*on && *after != 0)
          go_after(*after);
        else
          set_gone(*on);
        return Values{};
      });
  add("device.reset", "reset as a function-level reset does (poison=false: VRAM too)",
      [this](const Values& arguments) -> Answer {
        const auto poison = arguments.flag_or("poison", false);
        if (!poison) return std::unexpected(poison.error());
        reset();
        if (*poison) poison_vram();
        return Values{};
      });
  add("device.counters", "what the blocks counted",
      [this](const Values&) -> Answer { return counters(*this); });
}

}  // namespace gpusim
