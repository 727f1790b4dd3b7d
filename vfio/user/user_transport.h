// One vfio-user connection: sends commands, matches replies to them by message id, and serves what
// the server asks of us, at any moment.
//
// Threads: call() and post() from any thread. Nobody reads the socket while nothing is asked for;
// the owner's thread then calls serve() when the socket is readable. Among several callers one (the
// leader) waits on the socket and hands out what arrives, the others wait for it.
//
// Every wait ends at a deadline. A reply that is late, malformed, doubled or of nobody, and the end
// of the stream, lose the connection: there is no telling what the next bytes would mean. Those
// who waited get what happened (kTimeout, kProtocol, kDisconnected); every later call kDeviceLost.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "vfio/user/user_framing.h"
#include "vfio/user/user_wire.h"

namespace vfio {

class UserTransport {
 public:
  using Clock = std::chrono::steady_clock;

  // Answers a command of the server: the errno for an error reply, or 0 with the payload in `reply`
  // (empty on entry). Called with the transport locked, on whichever thread reads: it must not
  // call back into the transport, and it only does bounded work.
  using Handler = std::function<int(const wire::Header& header, std::span<const std::byte> body,
                                    std::vector<std::byte>& reply)>;

  // `wake` is an eventfd of the transport's own. `max_request` bounds the payload of a command of
  // the server. `pump`, when set, is called by the constructing thread while it waits instead of
  // sleeping; it may call serve().
  UserTransport(base::UniqueFd socket, base::UniqueFd wake, std::size_t max_request,
                Handler handler, std::function<void()> pump);
  ~UserTransport();
  UserTransport(const UserTransport&) = delete;
  UserTransport& operator=(const UserTransport&) = delete;

  struct Request {
    wire::Command command;
    std::span<const std::byte> head;  // payload: head, then tail
    std::span<const std::byte> tail = {};
    std::span<const int> fds = {};
    // Where the payload of the reply goes; a longer one breaks the protocol, and so does one
    // shorter than `reply_min` or with more descriptors than `max_fds`.
    std::span<std::byte> reply = {};
    std::size_t reply_min = 0;
    std::size_t max_fds = 0;
  };
  struct Reply {
    std::size_t size = 0;
    std::vector<base::UniqueFd> fds;
  };

  // An error reply gives kDeviceError, kBusy, kNoMemory or kUnsupported with its errno and loses
  // nothing.
  base::Result<Reply> call(const Request& request, Clock::time_point deadline);

  // A command that wants no reply. Waits only when the server has stopped taking commands.
  base::Result<void> post(wire::Command command, std::span<const std::byte> head,
                          std::span<const std::byte> tail, Clock::time_point deadline);

  // Serves all commands of the server that have arrived, and notices its end. A server that goes on
  // asking past `deadline`, or does not take the answers by then, is lost. (With a pump the rest
  // of an answer goes out at the next call: the server may be our caller.)
  void serve(Clock::time_point deadline);

  // Loses the connection because the owner found a reply to be nonsense; passes the error on.
  std::unexpected<base::Error> broken(wire::Command command, std::string what);

  // Loses the connection if it is not lost, for the reason `why`, and closes the socket once nobody
  // waits on it any more. Idempotent. (From within the pump it only loses.)
  void close(std::string why);

  // Whether something was posted that no later reply has shown to be done. Any reply to a command
  // sent after it does: the server works commands off in order.
  bool posts_open() const { return posts_open_.load(std::memory_order_acquire); }
  bool lost() const { return lost_.load(std::memory_order_acquire); }
  std::string lost_why() const;             // empty while it is not
  int fd() const { return socket_.get(); }  // -1 after close()
  std::uint64_t error_replies() const { return error_replies_.load(std::memory_order_relaxed); }

 private:
  struct Pending;
  using Lock = std::unique_lock<std::mutex>;

  bool pumping() const { return pump_ && std::this_thread::get_id() == owner_; }
  void send(Lock&, const wire::Header& header, std::span<const std::byte> head,
            std::span<const std::byte> tail, std::span<const int> fds);
  // Waits until `done()`, which is called locked, or until the connection is lost.
  template <class Done>
  void wait(Lock& lock, wire::Command command, Clock::time_point deadline, Done done);
  void poll_socket(Lock& lock, Clock::time_point deadline);
  // Reads and handles messages until none is left or `stop()`. True when it gave up because the
  // server fills the socket as fast as we empty it, past `deadline`.
  template <class Stop>
  bool read_messages(Lock& lock, Clock::time_point deadline, Stop stop);
  base::Result<void> admit(const wire::Header& header) const;
  void dispatch(Lock& lock, Message& message);
  void finish(Pending& pending, Message& message);
  void answer(Lock& lock, const Message& message);
  Pending* find(std::uint16_t id) const;
  std::uint16_t next_id();
  void lose(Lock&, const base::Error& error);
  void wake_leader();
  base::Error lost_error(wire::Command command) const;

  base::UniqueFd socket_;
  base::UniqueFd wake_;  // makes the leader look again
  const std::size_t max_request_;
  const Handler handler_;
  const std::function<void()> pump_;
  const std::thread::id owner_;

  mutable std::mutex mutex_;  // all below but the atomics
  std::condition_variable changed_;
  bool leader_ = false;  // somebody is in poll()
  MessageReader reader_;
  Outbox outbox_;
  std::vector<Pending*> pending_;
  std::vector<std::byte> answer_;
  std::uint16_t last_id_ = 0;
  std::uint64_t posts_ = 0;  // so far
  std::string why_;          // it is lost
  std::atomic<bool> posts_open_ = false;
  std::atomic<bool> lost_ = false;
  std::atomic<std::uint64_t> error_replies_ = 0;
};

}  // namespace vfio
