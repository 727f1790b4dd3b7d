#include "tools/gpusim/server/gpu_server.h"

#include <string>
#include <utility>

namespace gpusim {

namespace {

bool hung_up(int fd) {
  pollfd entry{fd, POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLHUP | POLLRDHUP | POLLERR)) != 0;
}

}  // namespace

GpuServer::GpuServer(GpuDevice& device, ServerOptions options, ScenarioHooks* hooks, unsigned gpu)
    : device_(device), options_(std::move(options)), hooks_(hooks), gpu_(gpu), function_(device) {
  if (options_.step_bytes != 0) device_.limit_step(options_.step_bytes);
  if (hooks_ != nullptr) add_hooks();
}

GpuServer::~GpuServer() {
  if (hooks_ == nullptr) return;
  hooks_->remove(gpu_, "pci.disconnect");
  hooks_->remove(gpu_, "pci.mappings");
}

void GpuServer::add_hooks() {
  hooks_->add(gpu_, "pci.disconnect", "drop the client's connection",
              [this](const ScenarioValues&) -> base::Result<ScenarioValues> {
                session_.reset();
                return ScenarioValues{};
              });
  hooks_->add(
      gpu_, "pci.mappings", "what the client has mapped for DMA: IOVA+size, a blank between",
      [this](const ScenarioValues&) -> base::Result<ScenarioValues> {
        std::string text;
        if (session_ != nullptr)
          for (const auto& [at, size] : session_->dma_map().covered())
            text += (text.empty() ? "" : " ") + std::to_string(at) + "+" + std::to_string(size);
        return ScenarioValues{{"mappings", text}};
      });
}

void GpuServer::reap() {
  if (session_ != nullptr && !session_->alive()) session_.reset();
}

void GpuServer::connect(base::UniqueFd socket) {
  // A client that has left may have more to be served, then its place is free.
  while (session_ != nullptr && !stepping_ && hung_up(session_->fd())) serve();
  if (session_ != nullptr) {
    ++counters_.turned_away;
    return;
  }
  session_ = std::make_unique<Session>(std::move(socket), device_, function_, options_, counters_);
}

bool GpuServer::serve() {
  if (session_ == nullptr || stepping_) return false;
  const bool any = session_->serve();
  reap();
  return any;
}

bool GpuServer::step() {
  if (stepping_) return false;
  // Messages have looks of their own; a store that none of them found is taken after them.
  const bool stored = device_.stored();
  bool any = false;
  if (stored || worked_ || ++unlooked_ >= options_.steps_a_look) {
    unlooked_ = 0;
    any = serve();
  }
  stepping_ = true;
  if (stored && device_.look()) any = true;
  if (device_.step()) any = true;
  worked_ = any;
  stepping_ = false;
  reap();
  return any || (session_ != nullptr && session_->has_queued());
}

bool GpuServer::prepare_sleep() {
  unlooked_ = options_.steps_a_look;  // the first step after it looks
  if (session_ != nullptr && session_->wake() != nullptr) session_->wake()->publish(true);
  sleeping_ = true;
  if (!device_.look()) return true;
  wake_up();
  return false;
}

void GpuServer::wake_up() {
  if (!std::exchange(sleeping_, false)) return;
  if (session_ == nullptr || session_->wake() == nullptr) return;
  session_->wake()->publish(false);
  session_->wake()->drain();
}

void GpuServer::add_poll_fds(std::vector<pollfd>& fds) {
  if (session_ == nullptr) return;
  const short events = session_->output_waits() ? POLLOUT : POLLIN;
  fds.push_back({session_->fd(), events, 0});
  if (session_->wake() != nullptr) fds.push_back({session_->wake()->event_fd(), POLLIN, 0});
}

}  // namespace gpusim
