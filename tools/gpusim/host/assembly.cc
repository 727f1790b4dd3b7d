#include "tools/gpusim/host/assembly.h"

#include "tools/gpusim/host/local_switch.h"
#include "tools/gpusim/host/pod_file.h"

namespace gpusim {

namespace {

base::Result<std::vector<PodOptions>> pod_records(const PodSetup& setup) {
  if (!setup.pod_file.empty()) return read_pod_file(setup.pod_file, setup.gpus);
  using Pod = PodSetup::Pod;
  const bool configured =
      setup.pod == Pod::kConfigured || (setup.pod == Pod::kAuto && setup.gpus > 1);
  if (!configured) return std::vector<PodOptions>(setup.gpus);
  return default_pod(setup.gpus, setup.ident);
}

base::Result<PodParts> build(const PodSetup& setup, const SwitchFactory& make_switch,
                             ScenarioHooks& hooks, AccessLog& log, const ModelClock& clock) {
  PodParts made;
  auto records = pod_records(setup);
  if (!records) return std::unexpected(records.error());
  PodSwitch* pod_switch = nullptr;
  if (make_switch) {
    auto created = make_switch(setup, hooks, log, clock);
    if (!created) return std::unexpected(created.error());
    pod_switch = created->get();
    made.parts.push_back(std::move(*created));
  }
  for (unsigned i = 0; i < setup.gpus; ++i) {
    GpuOptions options = setup.gpu;
    options.index = i;
    options.name = "gpusim" + std::to_string(i);
    // Each GPU differs from its neighbours in all that is drawn; base seed 0 means nominal bases.
    options.seed += i;
    if (options.bases_seed != 0) options.bases_seed += i;
    options.pod = (*records)[i];
    FabricPort* port = pod_switch != nullptr ? &pod_switch->port(i) : nullptr;
    auto gpu = Gpu::create(options, {clock, port, &log, &hooks});
    if (!gpu) return base::fail_within("GPU " + std::to_string(i), gpu.error());
    if (pod_switch != nullptr) pod_switch->plug(i, **gpu);
    made.gpus.push_back(std::move(*gpu));
  }
  return made;
}

}  // namespace

PodFactory gpu_pod(const PodSetup& setup) { return gpu_pod(setup, local_switch()); }

PodFactory gpu_pod(const PodSetup& setup, SwitchFactory make_switch) {
  return [setup, make_switch = std::move(make_switch)](ScenarioHooks& hooks, AccessLog& log,
                                                       const ModelClock& clock) {
    return build(setup, make_switch, hooks, log, clock);
  };
}

}  // namespace gpusim
