#include "tools/gpusim/host/local_switch.h"

#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "tools/gpusim/host/fabric_link.h"
#include "tools/gpusim/model/fabric_switch.h"
#include "tools/gpusim/model/nht.h"

namespace gpusim {

namespace {

std::unique_ptr<Nht> make_firmware(Gpu& gpu) {
  std::vector<VmHub*> hubs;
  for (unsigned j = 0; j < gpu.options().xccs; ++j) hubs.push_back(&gpu.gfxhub(j));
  for (unsigned k = 0; k < gpu.options().mids; ++k) hubs.push_back(&gpu.mmhub(k));
  return std::make_unique<Nht>(gpu.context(), gpu.mmhub(0), std::move(hubs));
}

class LocalSwitch final : public PodSwitch {
 public:
  LocalSwitch(const ModelClock& clock, ScenarioHooks& hooks)
      : hooks_(hooks), fabric_(clock, &hooks) {
    hooks_.add(
        ScenarioHooks::kPod, kLinks, "links to other processes and what went over them",
        [this](const ScenarioValues&) -> base::Result<ScenarioValues> { return counters(); });
  }
  ~LocalSwitch() override {
    hooks_.remove(ScenarioHooks::kPod, kLinks);
    if (listener_) ::unlink(path_.c_str());
  }

  base::Result<void> connect(const PodSetup& setup) {
    if (!setup.listen_fabric.empty()) {
      auto socket = listen_fabric(setup.listen_fabric);
      if (!socket) return std::unexpected(socket.error());
      listener_ = std::move(*socket);
      path_ = setup.listen_fabric;
    }
    if (setup.join_fabric.empty()) return {};
    auto socket = join_fabric(setup.join_fabric);
    if (!socket) return std::unexpected(socket.error());
    add_link(std::move(*socket));
    return {};
  }

  FabricPort& port(unsigned index) override { return fabric_.port(index); }
  void plug(unsigned index, Gpu& gpu) override {
    fabric_.plug(index, gpu);
    firmware_.push_back(make_firmware(gpu));
    gpu.set_nht(firmware_.back().get());
    gpu.set_link_observer([this, index](bool up) { fabric_.link_changed(index, up); });
    gpus_.push_back(&gpu);
  }

  // The firmware is stepped by its GPU, and the switch acts inside the accesses: only links to
  // other processes have something to do by themselves.
  bool step() override {
    bool any = accept();
    for (auto& link : links_) any |= link->step();
    return any;
  }
  bool waiting() const override { return false; }
  void add_poll_fds(std::vector<pollfd>& fds) override {
    if (listener_) fds.push_back({listener_.get(), POLLIN, 0});
    for (auto& link : links_) link->add_poll_fds(fds);
  }

 private:
  // Ports of other processes' GPUs come after all of ours.
  void add_link(base::UniqueFd socket) {
    const auto first = static_cast<unsigned>((links_.size() + 1) * 2 * kLinkMostGpus);
    links_.push_back(std::make_unique<FabricLink>(std::move(socket), fabric_, gpus_, first));
  }
  ScenarioValues counters() const {
    LinkCounters all;
    std::uint64_t open = 0;
    for (const auto& link : links_) {
      const LinkCounters& one = link->counters();
      open += link->open() ? 1 : 0;
      all.asked += one.asked;
      all.served += one.served;
      all.by_reference += one.by_reference;
      all.timeouts += one.timeouts;
      all.bad_messages += one.bad_messages;
    }
    ScenarioValues values;
    values.set("open", open);
    values.set("asked", all.asked);
    values.set("served", all.served);
    values.set("by_reference", all.by_reference);
    values.set("timeouts", all.timeouts);
    values.set("bad_messages", all.bad_messages);
    return values;
  }
  bool accept() {
    if (!listener_) return false;
    base::UniqueFd socket(
        ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return false;
    add_link(std::move(socket));
    return true;
  }

  static constexpr const char* kLinks = "fabric.links";

  ScenarioHooks& hooks_;
  FabricSwitch fabric_;
  std::vector<std::unique_ptr<Nht>> firmware_;
  std::vector<Gpu*> gpus_;
  std::string path_;
  base::UniqueFd listener_;
  std::vector<std::unique_ptr<FabricLink>> links_;
};

}  // namespace

SwitchFactory local_switch() {
  return [](const PodSetup& setup, ScenarioHooks& hooks, AccessLog&,
            const ModelClock& clock) -> base::Result<std::unique_ptr<PodSwitch>> {
    auto made = std::make_unique<LocalSwitch>(clock, hooks);
    if (auto connected = made->connect(setup); !connected)
      return std::unexpected(connected.error());
    return made;
  };
}

std::vector<PodOptions> default_pod(unsigned gpus, bool ident) {
  constexpr std::uint32_t kFirstId = 3, kIdStep = 3;  // 64 GPUs end at id 192
  PodOptions common;
  PodConfig& config = common.config;
  for (std::size_t i = 0; i < config.ppod_id.size(); ++i)
    config.ppod_id[i] = static_cast<std::uint8_t>(0xA0 + i);
  config.ppod_size = 256;
  config.bandwidth = 800;
  config.latency = 500;
  config.vpod_id = 1;
  config.vpod_size = gpus;
  config.addr_mode = ident ? 1 : 0;
  config.config_state = 5;
  config.station_count = 1;
  config.station_flags = 1;
  config.lane_enable[0] = 0xF;
  for (unsigned i = 0; i < gpus; ++i) {
    const std::uint32_t id = kFirstId + kIdStep * i;
    config.active[id / 32] |= 1u << id % 32;
  }
  std::vector<PodOptions> all(gpus, common);
  for (unsigned i = 0; i < gpus; ++i) {
    all[i].config.accel_id = kFirstId + kIdStep * i;
    all[i].config.local_accelerators[0] = all[i].config.accel_id;
  }
  return all;
}

}  // namespace gpusim
