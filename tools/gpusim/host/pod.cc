#include "tools/gpusim/host/pod.h"

namespace gpusim {

base::Result<std::unique_ptr<Pod>> Pod::create(const PodFactory& factory, const ModelClock& clock,
                                               const ServerOptions& server) {
  std::unique_ptr<Pod> pod(new Pod);
  auto parts = factory(pod->hooks_, pod->log_, clock);
  if (!parts) return std::unexpected(parts.error());
  pod->parts_ = std::move(*parts);
  for (unsigned i = 0; i < pod->parts_.gpus.size(); ++i) {
    ServerOptions options = server;
    options.name += " " + std::to_string(i);
    pod->servers_.push_back(
        std::make_unique<GpuServer>(*pod->parts_.gpus[i], std::move(options), &pod->hooks_, i));
  }
  return pod;
}

Pod::~Pod() {
  servers_.clear();
  parts_.gpus.clear();
  while (!parts_.parts.empty()) parts_.parts.pop_back();
}

bool Pod::step() {
  bool any = false;
  for (auto& server : servers_) any |= server->step();
  for (auto& part : parts_.parts) any |= part->step();
  return any;
}

bool Pod::serve() {
  bool any = false;
  for (auto& server : servers_) any |= server->serve();
  return any;
}

bool Pod::waiting() const {
  for (const auto& server : servers_) {
    if (server->waiting()) return true;
  }
  for (const auto& part : parts_.parts) {
    if (part->waiting()) return true;
  }
  return false;
}

bool Pod::prepare_sleep() {
  for (auto& server : servers_) {
    if (server->prepare_sleep()) continue;
    wake_up();
    return false;
  }
  return true;
}

void Pod::wake_up() {
  for (auto& server : servers_) server->wake_up();
}

void Pod::add_poll_fds(std::vector<pollfd>& fds) {
  for (auto& server : servers_) server->add_poll_fds(fds);
  for (auto& part : parts_.parts) part->add_poll_fds(fds);
}

}  // namespace gpusim
