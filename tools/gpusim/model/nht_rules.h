// Fault injection of the nHT firmware: what becomes of the next entries of a sender
// (docs/model-fabric.md, "Scenario commands").
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/gpusim/model/scenario.h"
#include "tools/gpusim/model/types.h"

namespace gpusim {

struct NhtRule {
  enum class Effect : std::uint8_t {
    kDrop,         // taken and acknowledged, its vector is not raised
    kDelay,        // its vector is raised `time` later
    kDuplicate,    // its vector is raised twice
    kReorder,      // its vector is raised after the sender's next one, or `time` later
    kFail,         // consumed with `status`, without effect
    kNoWriteBack,  // takes effect, no record is written
  };
  Effect effect = Effect::kDrop;
  std::optional<std::uint16_t> from;  // any sender
  std::optional<unsigned> ring;       // 0 interrupt, 1 shootdown; any
  std::optional<std::uint32_t> type;  // message type, dword 12 bits 9:0; any
  std::uint32_t status = 0;
  ModelTime time{};
  std::uint64_t left = 1;
};

class NhtRules {
 public:
  using Parsed = base::Result<NhtRule>;
  // from, ring ("interrupt" or "shootdown"), type, count, us, status.
  static Parsed parse(NhtRule::Effect effect, const ScenarioValues& arguments);

  void add(const NhtRule& rule) {
    if (rule.left != 0) rules_.push_back(rule);
  }
  // The first rule for an entry, which is used up by one. `message`: an interrupt entry, whose
  // first message dword is `dword`.
  std::optional<NhtRule> take(std::uint16_t sender, unsigned ring, bool message,
                              std::uint32_t dword);
  void clear() { rules_.clear(); }

  // Until turned off:
  bool mute = false;          // entries are taken, nothing is raised
  bool no_shootdown = false;  // the shootdown ring is never looked at (U48)
  bool hang = false;          // no entry is taken; doorbells are remembered

 private:
  std::vector<NhtRule> rules_;
};

}  // namespace gpusim
