#include "libgpuumd/client.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

#include "libgpuumd/session.h"

namespace gpuumd::client {
namespace {

constexpr nanoseconds kDefaultTimeout = std::chrono::seconds(5);

}  // namespace

Outcome<std::shared_ptr<Client>> Client::connect(const gpuumd_connect_options* in,
                                                 const gpuumd_wait* wait_in) {
  gpuumd_connect_options defaults{};
  defaults.size = sizeof(defaults);
  const auto options = read_options(in, defaults, "gpuumd_connect_options");
  if (!options) return std::unexpected(options.error());
  if (options->flags != 0) return invalid("connect flags " + std::to_string(options->flags));
  if (options->default_timeout_ns < 0)
    return invalid("default timeout " + std::to_string(options->default_timeout_ns) + " ns");
  nanoseconds timeout = kDefaultTimeout;
  if (options->default_timeout_ns != 0)
    timeout = nanoseconds(std::min(options->default_timeout_ns, kMaxTimeout));
  const auto wait = client::make_wait(wait_in, timeout);
  if (!wait) return std::unexpected(wait.error());
  std::string directory = "/run/gpuumd";
  if (const char* set = std::getenv("GPUUMD_RUNTIME_DIR"); set != nullptr && *set != 0)
    directory = set;
  if (options->runtime_dir != nullptr) directory = options->runtime_dir;
  const char* name = options->name != nullptr ? options->name : program_invocation_short_name;

  auto guard = ForkGuard::create();
  if (!guard) return std::unexpected(guard.error());
  base::UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll) return system_failure("epoll", errno);
  auto connection = Connection::open(directory + "/" + wire::kSocketName, name, *wait);
  if (!connection) return std::unexpected(connection.error());
  return std::shared_ptr<Client>(
      new Client(std::move(*connection), std::move(*guard), std::move(epoll), timeout));
}

Client::~Client() = default;

Outcome<void> Client::check_process() const {
  if (guard_.in_child())
    return fail(GPUUMD_WRONG_PROCESS, "object of the parent process used after fork()");
  return {};
}

Outcome<void> Client::add(const std::shared_ptr<Session>& session) {
  epoll_event event{};
  event.events = EPOLLIN;
  const std::lock_guard lock(mutex_);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, session->event_fd(), &event) != 0)
    return system_failure("watch for events", errno);
  sessions_.push_back({session.get(), session});
  return {};
}

void Client::remove(Session& session) {
  const std::lock_guard lock(mutex_);
  (void)::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, session.event_fd(), nullptr);
  std::erase_if(sessions_, [&](const Entry& entry) { return entry.address == &session; });
}

Outcome<gpuumd_event> Client::next_event() {
  std::vector<std::shared_ptr<Session>> keep;  // the last reference must not go under the lock
  const std::lock_guard lock(mutex_);
  bool over = false;
  for (std::size_t i = 0; i < sessions_.size(); ++i) {
    auto session = sessions_[(next_ + i) % sessions_.size()].session.lock();
    if (session == nullptr) continue;
    keep.push_back(session);
    wire::EventSlot slot;
    gpuumd_event event{};
    if (session->next_event(slot, event.lost)) {
      next_ = (next_ + i + 1) % sessions_.size();
      event.size = sizeof(event);
      event.kind = slot.kind;
      event.device = session->device().index;
      event.count = slot.count;
      event.object = slot.object;
      event.va = slot.va;
      event.access = slot.access;
      event.reason = slot.reason;
      event.time_ns = slot.time_ns;
      return event;
    }
    over = session->hung_up() || over;
  }
  if (over) return fail(GPUUMD_DISCONNECTED, "the daemon is gone or ended a session");
  return fail(GPUUMD_AGAIN, "no event");
}

void Client::disconnect() { connection_->shut_down(); }

}  // namespace gpuumd::client
