// What the control thread runs: an epoll loop over the listener, the clients' sockets and pidfds,
// and the mailbox. Everything here is for that thread.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "daemon/ipc/connection.h"
#include "daemon/ipc/control_thread.h"
#include "daemon/ipc/device_port.h"
#include "daemon/ipc/listener.h"
#include "daemon/ipc/mailbox.h"
#include "daemon/reactor/log_limit.h"

namespace gpuumd {

// ControlCounters as other threads read them.
struct SharedCounters {
  std::atomic<std::uint64_t> connections{0}, sessions{0}, accepted{0}, refused_limit{0},
      handshake_timeouts{0}, protocol_errors{0};
};

class ControlLoop {
 public:
  ControlLoop(ControlConfig config, Listener listener, base::UniqueFd epoll,
              std::shared_ptr<Mailbox> mailbox, std::vector<ControlDevice> devices);
  ~ControlLoop();

  // Until end(). The thread.
  void run();
  void end() { ended_ = true; }
  // Stops listening, closes every connection; `quiet` is called when the last session is gone.
  void close_all(std::move_only_function<void()> quiet);
  void update_device(const wire::DeviceInfo& info);

  SharedCounters& counters() { return counters_; }  // any thread

 private:
  friend class LoopObserver;  // posts the calls below

  struct Client {
    Client(std::uint64_t id, Connection connection) : id(id), connection(std::move(connection)) {}
    std::uint64_t id;
    Connection connection;
    bool welcomed = false;
    bool writing = false;  // the epoll set has EPOLLOUT for it
    unsigned queries = 0;  // open
    std::set<std::uint64_t> sessions;
  };
  struct Session {
    std::uint64_t client = 0;  // 0: gone
    uid_t uid = 0;
    std::uint32_t device = 0;
    std::uint64_t open_request = 0;
    std::uint64_t close_request = 0;
    bool opened = false;
    bool closing = false;
  };
  struct Device {
    wire::DeviceInfo info;
    std::shared_ptr<DevicePort> port;
  };
  struct UidCounts {
    unsigned connections = 0;
    unsigned sessions = 0;
  };
  struct PendingQuery;

  // Clients.
  void warn(const std::string& text);
  void accept_clients();
  void admit(Connection connection);
  void expire_handshakes();
  int timeout_ms() const;
  void client_ready(std::uint64_t id, std::uint32_t events);
  void close_client(std::uint64_t id);
  Client* find(std::uint64_t id);
  // False: the client was closed.
  bool send(Client& client, std::span<const std::byte> bytes,
            std::vector<base::UniqueFd> descriptors = {},
            std::move_only_function<void(bool)> sent = nullptr);
  bool send_error(Client& client, std::uint64_t request, const base::Error& error);
  bool send_status(Client& client, std::uint64_t request, std::int32_t status, std::string text);

  // Messages. An error ends the connection.
  base::Result<void> message(Client& client, Received received);
  base::Result<void> hello(Client& client, const wire::Hello& in);
  void list_devices(Client& client, std::uint64_t request);
  void open_session(Client& client, const wire::OpenSession& in);
  base::Result<std::uint32_t> admit_session(const Client& client, const wire::OpenSession& in);
  void close_session(Client& client, const wire::CloseSession& in);
  base::Result<void> descriptors(Client& client, Received received);
  void query(Client& client, const wire::Query& in);
  void query_part(std::shared_ptr<PendingQuery> query, std::size_t part,
                  base::Result<std::string> json);

  // From the reactors, by the mailbox.
  void session_opened(SessionId id, OpenedEnds ends);
  void session_refused(SessionId id, const base::Error& why);
  void session_broken(SessionId id, const base::Error& why);
  void session_gone(SessionId id);
  void send_descriptors(SessionId id, std::uint32_t tag, std::vector<base::UniqueFd> descriptors,
                        std::move_only_function<void(bool)> sent);
  void close_on_reactor(std::uint64_t id, Session& session);
  void forget_session(std::uint64_t id);

  ControlConfig config_;
  std::optional<Listener> listener_;
  base::UniqueFd epoll_;
  std::shared_ptr<Mailbox> mailbox_;
  std::vector<Device> devices_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Client>> clients_;
  std::unordered_map<std::uint64_t, Session> sessions_;
  std::unordered_map<uid_t, UidCounts> uids_;
  std::deque<std::pair<TimePoint, std::uint64_t>> handshakes_;  // deadline and client, in order
  std::uint64_t next_client_ = 1;
  std::uint64_t next_session_;
  std::uint64_t boot_id_;
  std::move_only_function<void()> quiet_;
  bool ended_ = false;
  SharedCounters counters_;
  LogLimit warnings_{20};
};

}  // namespace gpuumd
