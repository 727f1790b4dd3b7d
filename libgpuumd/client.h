// A connected client: the socket, its sessions, and the descriptor that shows their events.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/fd.h"
#include "libgpuumd/connection.h"
#include "libgpuumd/error.h"
#include "libgpuumd/fork_guard.h"
#include "libgpuumd/wait.h"

namespace gpuumd::client {

class Session;

// Any thread.
class Client {
 public:
  static Outcome<std::shared_ptr<Client>> connect(const gpuumd_connect_options* options,
                                                  const gpuumd_wait* wait);
  ~Client();

  // First thing of every call: WRONG_PROCESS in a forked child.
  Outcome<void> check_process() const;
  Outcome<Wait> make_wait(const gpuumd_wait* wait) const {
    return client::make_wait(wait, default_timeout_);
  }
  Connection& connection() { return *connection_; }

  // Sessions whose events gpuumd_event_next() gives.
  Outcome<void> add(const std::shared_ptr<Session>& session);
  void remove(Session& session);
  int event_fd() const { return epoll_.get(); }
  Outcome<gpuumd_event> next_event();
  // Ends the connection and with it every session.
  void disconnect();

 private:
  Client(std::unique_ptr<Connection> connection, ForkGuard guard, base::UniqueFd epoll,
         nanoseconds default_timeout)
      : connection_(std::move(connection)),
        guard_(std::move(guard)),
        epoll_(std::move(epoll)),
        default_timeout_(default_timeout) {}

  std::unique_ptr<Connection> connection_;
  ForkGuard guard_;
  base::UniqueFd epoll_;  // the sessions' event pipes
  nanoseconds default_timeout_;
  std::mutex mutex_;  // guards the sessions and their event rings
  struct Entry {
    Session* address;  // to find it again, also from its destructor
    std::weak_ptr<Session> session;
  };
  std::vector<Entry> sessions_;
  std::size_t next_ = 0;  // whose turn it is
};

}  // namespace gpuumd::client
