#include "daemon/device_host.h"

#include <spdlog/spdlog.h>

#include <future>
#include <optional>
#include <random>
#include <utility>

#include "daemon/gpu/memory/memory_worker.h"
#include "tools/gpusim/host/assembly.h"
#include "tools/gpusim/host/embedded.h"
#include "tools/gpusim/host/setup.h"
#include "tools/gpusim/host/steady_clock.h"
#include "vfio/pci_device.h"
#include "vfio/user/user_device.h"

namespace gpuumd {
namespace {

// The steps have deadlines of their own. But the kernel waits a minute for a device that does not
// come back from a reset: when it is opened, and when the daemon asks for one.
constexpr std::chrono::seconds kBringUpDeadline{180};
constexpr std::chrono::seconds kShutDownDeadline{30};

// Runs `call` on the reactor; it is given a function to be called once with the outcome.
base::Result<void> run_on(Reactor& reactor, std::chrono::seconds deadline, const char* what,
                          std::move_only_function<void(Done)> call) {
  auto outcome = std::make_shared<std::promise<base::Result<void>>>();
  auto future = outcome->get_future();
  reactor.post([outcome, call = std::move(call)]() mutable {
    call([outcome](base::Result<void> result) { outcome->set_value(std::move(result)); });
  });
  if (future.wait_for(deadline) != std::future_status::ready)
    return base::fail(base::Errc::kTimeout, what);
  return future.get();
}

}  // namespace

// Either host of the model; the daemon's code is the same for both.
struct DeviceThread::Model {
  gpusim::SteadyClock clock;
  std::unique_ptr<gpusim::ThreadHost> thread;
  std::unique_ptr<gpusim::InlineHost> in_line;
  vfio::PciDevice* device = nullptr;  // who serves the model's own requests
  Registration poller;
  Registration watch;
};

DeviceThread::DeviceThread() = default;

DeviceThread::~DeviceThread() {
  if (!thread_) return;
  (void)run_on(thread_->reactor(), kShutDownDeadline, "end of a device", [this](Done done) {
    device_.reset();
    worker_.reset();
    if (model_) {
      model_->poller.cancel();
      model_->watch.cancel();
    }
    done({});
  });
}

base::Result<std::unique_ptr<DeviceThread>> DeviceThread::start(Options options) {
  std::unique_ptr<DeviceThread> self(new DeviceThread);
  ReactorOptions reactor;
  reactor.name = options.name;
  reactor.census = options.census;
  reactor.turn_limit = std::chrono::milliseconds(options.config->turn_limit_ms);
  reactor.on_long_turn = [name = options.name](std::string_view handler, Duration took) {
    spdlog::warn("{}: handler \"{}\" took {} us", name, handler,
                 std::chrono::duration_cast<std::chrono::microseconds>(took).count());
  };
  auto thread = ReactorThread::start(std::move(reactor));
  if (!thread) return std::unexpected(thread.error());
  self->thread_ = std::move(*thread);
  const auto name = options.name;
  auto up = run_on(self->reactor(), kBringUpDeadline, "bring-up", [&](Done done) {
    if (auto opened = self->open(options); !opened) return done(std::move(opened));
    self->device_->start(std::move(done));
  });
  if (!up) {
    (void)self->stop();
    return base::fail_within(name, up.error());
  }
  return self;
}

// On the reactor thread.
base::Result<void> DeviceThread::open(const Options& options) {
  std::unique_ptr<vfio::PciDevice> device;
  if (options.name == "sim" || options.name.starts_with("sim:")) {
    gpusim::PodSetup setup;
    std::string list = options.name.size() > 4 ? options.name.substr(4) : "";
    // "inline" is ours; the rest is the model's.
    const bool in_line = list == "inline" || list.starts_with("inline,");
    if (in_line) list = list.size() > 7 ? list.substr(7) : "";
    if (auto set = setup.set_list(list); !set) return set;
    if (auto valid = setup.check(); !valid) return valid;
    model_ = std::make_unique<Model>();
    auto& model = *model_;
    vfio::UserOptions user;
    base::Result<base::UniqueFd> socket;
    if (in_line) {
      auto host = gpusim::InlineHost::create(gpusim::gpu_pod(setup), model.clock, [&model] {
        if (model.device != nullptr) model.device->handle_events();
      });
      if (!host) return std::unexpected(host.error());
      model.in_line = std::move(*host);
      user.pump = [&model] { model.in_line->pump(); };
      socket = model.in_line->connect(0);
    } else {
      auto host = gpusim::ThreadHost::start(gpusim::gpu_pod(setup));
      if (!host) return std::unexpected(host.error());
      model.thread = std::move(*host);
      socket = model.thread->connect(0);
    }
    if (!socket) return std::unexpected(socket.error());
    auto connected = vfio::connect_vfio_user(std::move(*socket), options.name, user);
    if (!connected) return std::unexpected(connected.error());
    device = std::move(*connected);
    model.device = device.get();
    if (in_line) {
      model.poller =
          reactor().add_poller({"model", [&model] { return model.in_line->step(); },
                                [&model](bool sleeping) { model.in_line->arm(sleeping); }});
      model.watch = reactor().watch(model.in_line->wake_fd(), "model", false,
                                    [&model] { model.in_line->step(); });
    }
  } else {
    auto opened = vfio::open_device(options.name);
    if (!opened) return std::unexpected(opened.error());
    device = std::move(*opened);
  }
  auto worker = MemoryWorker::create(reactor());
  if (!worker) return std::unexpected(worker.error());
  worker_ = std::move(*worker);

  DeviceOptions device_options;
  device_options.index = options.index;
  device_options.gpu.seed = std::random_device()();
  device_options.exports.same_host = options.config->same_host;
  device_options.fault_deadline = std::chrono::milliseconds(options.config->fault_deadline_ms);
  // Ids of objects are unique in the daemon: each device has a range of its own.
  device_options.first_object_id = (std::uint64_t{options.index} << 48) + 1;
  device_ = std::make_unique<Device>(reactor(), *worker_, std::move(device), device_options,
                                     options.changed);
  return {};
}

base::Result<void> DeviceThread::stop() {
  return run_on(reactor(), kShutDownDeadline, "shutdown", [this](Done done) {
    if (!device_) return done({});
    device_->shut_down(std::move(done));
  });
}

wire::DeviceInfo DeviceThread::info() {
  std::promise<wire::DeviceInfo> info;
  auto future = info.get_future();
  reactor().post([&] { info.set_value(device_->info()); });
  return future.get();
}

}  // namespace gpuumd
