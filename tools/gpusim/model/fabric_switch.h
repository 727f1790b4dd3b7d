// The switch of a pod: which accelerator an address names, whether its sender may reach it, and
// what goes wrong on the way (docs/model-fabric.md).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "tools/gpusim/model/ports.h"
#include "tools/gpusim/model/scenario.h"

namespace gpusim {

struct FabricCounters {
  std::uint64_t accesses = 0;
  std::uint64_t doorbells = 0;
  std::uint64_t retried = 0;    // answered "retry" by the exporter
  std::uint64_t refused = 0;    // by the exporter
  std::uint64_t no_target = 0;  // nobody has that id
  std::uint64_t outsiders = 0;  // not members of one virtual pod
  std::uint64_t link_down = 0;
  std::uint64_t lost = 0;  // by a scenario
};

// Model thread only.
class FabricSwitch {
 public:
  // Both outlive the switch; `hooks` may be null: no fault injection.
  FabricSwitch(const ModelClock& clock, ScenarioHooks* hooks);
  ~FabricSwitch();
  FabricSwitch(const FabricSwitch&) = delete;
  FabricSwitch& operator=(const FabricSwitch&) = delete;

  // Where accelerator `index` (any number, of the caller's choice) puts its accesses. Valid as long
  // as the switch; all its accesses end kPeerLost until plug().
  FabricPort& port(unsigned index);
  // `target` is called from inside accesses of others, until it is unplugged.
  void plug(unsigned index, FabricTarget& target);
  void unplug(unsigned index);
  // The link of an accelerator went down or came up. One that came up needs a while before it
  // carries anything, so that peers see a reset (D56).
  void link_changed(unsigned index, bool up);
  void set_training_time(ModelTime time) { training_time_ = time; }
  static constexpr ModelTime kTrainingTime = std::chrono::milliseconds(1);

  // The way between two accelerators, by id, both directions. Ways are up until taken down.
  void set_way(std::uint16_t a, std::uint16_t b, bool up);

  const FabricCounters& counters() const { return counters_; }

 private:
  class Port;
  struct Plugged {
    std::unique_ptr<Port> port;
    FabricTarget* target = nullptr;
    ModelTime usable_from{};  // the link's training ends
  };
  struct Route {
    FabricTarget* target = nullptr;  // null: `failed` says why
    Outcome failed = Outcome::kRefused;
    std::uint16_t sender = 0;
    std::uint16_t id = 0;
  };
  // Scenario: accesses that do not arrive, or whose answer does not.
  struct Loss {
    std::optional<std::uint16_t> from, to;
    bool doorbells = false;  // only these, and their sender does not notice
    bool done = false;       // the access takes effect, the answer is lost
    std::uint64_t left = 0;
  };

  Outcome access(unsigned index, RemoteAccess& access);
  Route route(unsigned index, std::uint64_t npa);
  bool carries(const Plugged& plugged) const;
  Plugged* find(std::uint16_t id);
  std::vector<Loss>::iterator loss(const Route& route, bool doorbell);
  bool losses_possible(const Route& route);
  void add_scenarios();
  base::Result<ScenarioValues> add_loss(const ScenarioValues& arguments, bool doorbells);

  const ModelClock& clock_;
  ScenarioHooks* hooks_;
  std::map<unsigned, Plugged> plugged_;
  std::set<std::pair<std::uint16_t, std::uint16_t>> cut_;  // smaller id first
  std::vector<Loss> losses_;
  ModelTime training_time_ = kTrainingTime;
  FabricCounters counters_;
};

}  // namespace gpusim
