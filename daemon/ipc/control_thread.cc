#include "daemon/ipc/control_thread.h"

#include <pthread.h>
#include <sys/epoll.h>

#include <cerrno>
#include <future>
#include <thread>

#include "daemon/ipc/control_loop.h"

namespace gpuumd {
namespace {

class ControlThreadImpl final : public ControlThread {
 public:
  ControlThreadImpl(std::shared_ptr<Mailbox> mailbox, std::unique_ptr<ControlLoop> loop)
      : mailbox_(std::move(mailbox)), loop_(std::move(loop)), thread_([this] {
          ::pthread_setname_np(::pthread_self(), "gpuumd-control");
          loop_->run();
        }) {}
  ~ControlThreadImpl() override { (void)stop(std::chrono::seconds(1)); }

  base::Result<void> stop(std::chrono::milliseconds deadline) override {
    if (!thread_.joinable()) return {};
    auto quiet = std::make_shared<std::promise<void>>();
    auto when_quiet = quiet->get_future();
    mailbox_->post([this, quiet] { loop_->close_all([quiet] { quiet->set_value(); }); });
    const bool done = when_quiet.wait_for(deadline) == std::future_status::ready;
    mailbox_->post([this] { loop_->end(); });
    thread_.join();
    mailbox_->close();
    if (!done)
      return base::fail(base::Errc::kTimeout, std::to_string(loop_->counters().sessions.load()) +
                                                  " sessions did not close");
    return {};
  }

  void update_device(const wire::DeviceInfo& info) override {
    mailbox_->post([this, info] { loop_->update_device(info); });
  }

  ControlCounters counters() const override {
    const SharedCounters& from = loop_->counters();
    return {from.connections,   from.sessions,           from.accepted,
            from.refused_limit, from.handshake_timeouts, from.protocol_errors};
  }

 private:
  std::shared_ptr<Mailbox> mailbox_;
  std::unique_ptr<ControlLoop> loop_;
  std::thread thread_;
};

}  // namespace

base::Result<std::unique_ptr<ControlThread>> ControlThread::start(
    ControlConfig config, std::vector<ControlDevice> devices) {
  auto listener = Listener::open(config.runtime_dir, config.socket_mode);
  if (!listener) return std::unexpected(listener.error());
  return start(std::move(config), std::move(*listener), std::move(devices));
}

base::Result<std::unique_ptr<ControlThread>> ControlThread::start(
    ControlConfig config, Listener listener, std::vector<ControlDevice> devices) {
  if (devices.size() > wire::kMaxDevices)
    return base::fail(base::Errc::kLimit, std::to_string(devices.size()) + " devices");
  base::UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return base::fail(base::Errc::kSystem, "control thread's epoll", errno);
  auto mailbox = Mailbox::create();
  if (!mailbox) return std::unexpected(mailbox.error());
  auto loop = std::make_unique<ControlLoop>(std::move(config), std::move(listener),
                                            std::move(epoll), *mailbox, std::move(devices));
  return std::make_unique<ControlThreadImpl>(std::move(*mailbox), std::move(loop));
}

}  // namespace gpuumd
