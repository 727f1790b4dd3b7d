#include "tools/gpusim/model/fabric_switch.h"

#include <algorithm>
#include <array>
#include <string>

#include "tools/gpusim/model/pte.h"

namespace gpusim {
namespace {

constexpr std::uint64_t kDoorbellSpace = 0xFFF;  // bits 51:40 (docs/hardware/nht.md)
constexpr unsigned kDoorbellShift = 40, kDoorbellIdShift = 30;
constexpr std::uint64_t kMemoryZero = std::uint64_t{1} << 51;

constexpr std::array kCommands = {"fabric.join", "fabric.cut", "fabric.lose",
                                  "fabric.lose_doorbell", "fabric.counters"};

bool is_doorbell(std::uint64_t npa) {
  return (npa >> kDoorbellShift & kDoorbellSpace) == kDoorbellSpace;
}

std::uint16_t target_id(std::uint64_t npa) {
  return is_doorbell(npa) ? static_cast<std::uint16_t>(npa >> kDoorbellIdShift & 0x3FF)
                          : npa_accel(npa);
}

bool in_a_pod(const PodConfig& config) {
  return config.vpod_id != 0 && config.vpod_id != 0xFFFF'FFFF && config.vpod_size != 0;
}

bool lists(const PodConfig& config, std::uint32_t id) {
  return id / 32 < config.active.size() && (config.active[id / 32] >> id % 32 & 1) != 0;
}

bool same_pod(const PodConfig& a, const PodConfig& b) {
  return in_a_pod(a) && in_a_pod(b) && a.ppod_id == b.ppod_id && a.vpod_id == b.vpod_id &&
         lists(a, b.accel_id) && lists(b, a.accel_id);
}

base::Result<std::optional<std::uint16_t>> optional_id(const ScenarioValues& arguments,
                                                       std::string_view name) {
  if (!arguments.text(name)) return std::optional<std::uint16_t>();
  const auto id = arguments.number(name);
  if (!id) return std::unexpected(id.error());
  if (*id > 0x3FF) return base::fail(base::Errc::kOutOfRange, std::string(name));
  return std::optional(static_cast<std::uint16_t>(*id));
}

}  // namespace

class FabricSwitch::Port : public FabricPort {
 public:
  Port(FabricSwitch& fabric, unsigned index) : fabric_(fabric), index_(index) {}

  Outcome access(RemoteAccess& access) override { return fabric_.access(index_, access); }

  std::span<const std::byte> source(std::uint64_t npa, std::uint64_t bytes) override {
    const Route route = usable(npa);
    if (route.target == nullptr) return {};
    return route.target->incoming_source(route.sender, npa, bytes);
  }
  std::span<std::byte> target(std::uint64_t npa, std::uint64_t bytes) override {
    const Route route = usable(npa);
    if (route.target == nullptr) return {};
    return route.target->incoming_target(route.sender, npa, bytes);
  }
  void stored(std::uint64_t npa, std::uint64_t bytes) override {
    const Route route = fabric_.route(index_, npa);
    if (route.target != nullptr) route.target->incoming_stored(route.sender, npa, bytes);
  }

 private:
  // A route for bulk moves: what a scenario might lose goes the long way, and doorbells do.
  Route usable(std::uint64_t npa) {
    if (is_doorbell(npa)) return {};
    const FabricCounters before = fabric_.counters_;
    Route route = fabric_.route(index_, npa);
    if (route.target == nullptr) fabric_.counters_ = before;  // access() will count it
    if (route.target != nullptr && fabric_.losses_possible(route)) return {};
    if (route.target != nullptr) ++fabric_.counters_.accesses;
    return route;
  }

  FabricSwitch& fabric_;
  unsigned index_;
};

FabricSwitch::FabricSwitch(const ModelClock& clock, ScenarioHooks* hooks)
    : clock_(clock), hooks_(hooks) {
  add_scenarios();
}

FabricSwitch::~FabricSwitch() {
  if (hooks_ == nullptr) return;
  for (const char* name : kCommands) hooks_->remove(ScenarioHooks::kPod, name);
}

FabricPort& FabricSwitch::port(unsigned index) {
  Plugged& plugged = plugged_[index];
  if (!plugged.port) plugged.port = std::make_unique<Port>(*this, index);
  return *plugged.port;
}

void FabricSwitch::plug(unsigned index, FabricTarget& target) {
  port(index);
  plugged_[index].target = &target;
  plugged_[index].usable_from = {};
}

void FabricSwitch::unplug(unsigned index) { plugged_[index].target = nullptr; }

void FabricSwitch::link_changed(unsigned index, bool up) {
  plugged_[index].usable_from = up ? clock_.now() + training_time_ : ModelTime::max();
}

void FabricSwitch::set_way(std::uint16_t a, std::uint16_t b, bool up) {
  const auto way = std::minmax(a, b);
  if (up)
    cut_.erase(way);
  else
    cut_.insert(way);
}

bool FabricSwitch::carries(const Plugged& plugged) const {
  return plugged.target != nullptr && plugged.target->link_up() &&
         plugged.usable_from <= clock_.now();
}

FabricSwitch::Plugged* FabricSwitch::find(std::uint16_t id) {
  for (auto& [index, plugged] : plugged_)
    if (plugged.target != nullptr && plugged.target->pod_config().accel_id == id) return &plugged;
  return nullptr;
}

// The sender's own link first, then whether it may know of the target at all, then the way there.
FabricSwitch::Route FabricSwitch::route(unsigned index, std::uint64_t npa) {
  Route route;
  const Plugged& from = plugged_[index];
  const auto lost = [&] {
    ++counters_.link_down;
    route.failed = Outcome::kPeerLost;
    return route;
  };
  if (!carries(from)) return lost();
  const PodConfig& sender = from.target->pod_config();
  route.id = target_id(npa);
  const Plugged* to = is_doorbell(npa) || (npa & kMemoryZero) == 0 ? find(route.id) : nullptr;
  if (to == nullptr) {
    ++counters_.no_target;
    return route;
  }
  if (!same_pod(sender, to->target->pod_config())) {
    ++counters_.outsiders;
    return route;
  }
  route.sender = static_cast<std::uint16_t>(sender.accel_id);
  if (!carries(*to) || cut_.contains(std::minmax(route.sender, route.id))) return lost();
  route.target = to->target;
  return route;
}

std::vector<FabricSwitch::Loss>::iterator FabricSwitch::loss(const Route& route, bool doorbell) {
  return std::ranges::find_if(losses_, [&](const Loss& loss) {
    return (!loss.doorbells || doorbell) && (!loss.from || *loss.from == route.sender) &&
           (!loss.to || *loss.to == route.id);
  });
}

bool FabricSwitch::losses_possible(const Route& route) {
  return loss(route, false) != losses_.end();
}

Outcome FabricSwitch::access(unsigned index, RemoteAccess& access) {
  const Route to = route(index, access.npa);
  if (to.target == nullptr) return to.failed;
  const bool doorbell = is_doorbell(access.npa);
  ++(doorbell ? counters_.doorbells : counters_.accesses);
  access.sender = to.sender;
  const auto found = loss(to, doorbell);
  if (found == losses_.end()) {
    const Outcome outcome = to.target->incoming(access);
    if (outcome == Outcome::kRetry) ++counters_.retried;
    if (outcome == Outcome::kRefused) ++counters_.refused;
    return outcome;
  }
  const Loss lost = *found;
  if (--found->left == 0) losses_.erase(found);
  ++counters_.lost;
  if (lost.done) to.target->incoming(access);
  return lost.doorbells ? Outcome::kOk : Outcome::kPeerLost;
}

// --- fault injection ---

base::Result<ScenarioValues> FabricSwitch::add_loss(const ScenarioValues& arguments,
                                                    bool doorbells) {
  Loss loss;
  loss.doorbells = doorbells;
  const auto from = optional_id(arguments, "from");
  if (!from) return std::unexpected(from.error());
  const auto to = optional_id(arguments, "to");
  if (!to) return std::unexpected(to.error());
  const auto count = arguments.number_or("count", 1);
  if (!count) return std::unexpected(count.error());
  const auto done = arguments.flag_or("done", false);
  if (!done) return std::unexpected(done.error());
  loss.from = *from;
  loss.to = *to;
  loss.done = *done && !doorbells;
  loss.left = *count;
  if (loss.left != 0) losses_.push_back(loss);
  return ScenarioValues();
}

void FabricSwitch::add_scenarios() {
  if (hooks_ == nullptr) return;
  using Values = ScenarioValues;
  using Answer = base::Result<ScenarioValues>;
  for (const bool up : {false, true}) {
    hooks_->add(ScenarioHooks::kPod, up ? "fabric.join" : "fabric.cut",
                up ? "the way between two accelerators carries again (a, b)"
                   : "the way between two accelerators goes down (a, b)",
                [this, up](const Values& arguments) -> Answer {
                  const auto a = optional_id(arguments, "a");
                  const auto b = optional_id(arguments, "b");
                  if (!a) return std::unexpected(a.error());
                  if (!b) return std::unexpected(b.error());
                  if (!*a || !*b)
                    return base::fail(base::Errc::kInvalidArgument, "accelerator ids a and b");
                  set_way(**a, **b, up);
                  return Values{};
                });
  }
  hooks_->add(ScenarioHooks::kPod, "fabric.lose",
              "the next accesses get no answer (from, to, count=1, done=false: they take effect)",
              [this](const Values& arguments) { return add_loss(arguments, false); });
  hooks_->add(ScenarioHooks::kPod, "fabric.lose_doorbell",
              "the next doorbells vanish, unnoticed by their sender (from, to, count=1)",
              [this](const Values& arguments) { return add_loss(arguments, true); });
  hooks_->add(ScenarioHooks::kPod, "fabric.counters", "what the switch counted",
              [this](const Values&) -> Answer {
                Values values;
                values.set("accesses", counters_.accesses);
                values.set("doorbells", counters_.doorbells);
                values.set("retried", counters_.retried);
                values.set("refused", counters_.refused);
                values.set("no_target", counters_.no_target);
                values.set("outsiders", counters_.outsiders);
                values.set("link_down", counters_.link_down);
                values.set("lost", counters_.lost);
                return values;
              });
}

}  // namespace gpusim
