#include "tools/gpusim/host/local_switch.h"

#include <utility>

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
  LocalSwitch(const ModelClock& clock, ScenarioHooks& hooks) : fabric_(clock, &hooks) {}

  FabricPort& port(unsigned index) override { return fabric_.port(index); }
  void plug(unsigned index, Gpu& gpu) override {
    fabric_.plug(index, gpu);
    firmware_.push_back(make_firmware(gpu));
    gpu.set_nht(firmware_.back().get());
    gpu.set_link_observer([this, index](bool up) { fabric_.link_changed(index, up); });
  }
  // The firmware is stepped by its GPU, the switch acts inside the accesses.
  bool step() override { return false; }
  bool waiting() const override { return false; }

 private:
  FabricSwitch fabric_;
  std::vector<std::unique_ptr<Nht>> firmware_;
};

}  // namespace

SwitchFactory local_switch() {
  return [](const PodSetup&, ScenarioHooks& hooks, AccessLog&,
            const ModelClock& clock) -> base::Result<std::unique_ptr<PodSwitch>> {
    return std::make_unique<LocalSwitch>(clock, hooks);
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
