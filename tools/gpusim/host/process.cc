#include "tools/gpusim/host/process.h"

#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>

namespace gpusim {

namespace {

// The clients of one GPU.
class GpuListener final : public PollSource {
 public:
  GpuListener(Listener listener, GpuServer& server)
      : listener_(std::move(listener)), server_(server) {}

  void add_poll_fds(std::vector<pollfd>& fds) override {
    fds.push_back({listener_.fd(), POLLIN, 0});
  }
  void handle() override {
    while (base::UniqueFd client = listener_.accept()) server_.connect(std::move(client));
  }

 private:
  Listener listener_;
  GpuServer& server_;
};

}  // namespace

ProcessHost::ProcessHost(std::unique_ptr<Pod> pod, Runner runner, const ProcessOptions& options)
    : options_(options), pod_(std::move(pod)), runner_(std::move(runner)), control_(*pod_) {}

// The lock file stays: removing it would let two processes lock two files of one name.
ProcessHost::~ProcessHost() { sources_.clear(); }

base::Result<std::unique_ptr<ProcessHost>> ProcessHost::open(std::unique_ptr<Pod> pod,
                                                             const ProcessOptions& options) {
  auto runner = Runner::create(*pod);
  if (!runner) return std::unexpected(runner.error());
  std::unique_ptr<ProcessHost> host(new ProcessHost(std::move(pod), std::move(*runner), options));
  if (auto done = host->lock(); !done) return std::unexpected(done.error());
  if (!options.scenario_file.empty()) {
    if (auto done = host->control_.run_file(options.scenario_file); !done)
      return std::unexpected(done.error());
  }
  if (auto done = host->listen(); !done) return std::unexpected(done.error());
  return host;
}

base::Result<void> ProcessHost::lock() {
  const std::string& directory = options_.directory;
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return base::fail(base::Errc::kSystem, "make directory " + directory, errno);
  base::UniqueFd file(
      ::open((directory + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file) return base::fail(base::Errc::kSystem, "open " + directory + "/lock", errno);
  if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0)
    return base::fail(base::Errc::kBusy, directory + " is in use by another gpusim");
  lock_ = std::move(file);
  return {};
}

base::Result<void> ProcessHost::listen() {
  for (std::size_t i = 0; i < pod_->size(); ++i) {
    const std::string path = options_.directory + "/gpu" + std::to_string(i) + ".sock";
    auto listener = Listener::open(path);
    if (!listener) return std::unexpected(listener.error());
    sources_.push_back(std::make_unique<GpuListener>(std::move(*listener), pod_->server(i)));
    sockets_.push_back(path);
  }
  auto control = Listener::open(options_.directory + "/control.sock");
  if (!control) return std::unexpected(control.error());
  sources_.push_back(std::make_unique<ControlSocket>(control_, std::move(*control)));
  for (auto& source : sources_) runner_.add(*source);
  return {};
}

base::Result<void> ProcessHost::run() {
  runner_.run();
  if (options_.log_file.empty()) return {};
  return pod_->log().write_file(options_.log_file);
}

}  // namespace gpusim
