// The control thread: listens, checks who connects, shakes hands, passes descriptors in both
// directions and serves queries. It holds no device state: it posts to the reactors and they answer
// (docs/protocol.md, docs/architecture.md "Threads"). Nothing that a client does makes it wait.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "daemon/ipc/session_handler.h"
#include "daemon/reactor/reactor.h"
#include "gpuumd/wire.h"

namespace gpuumd {

struct ControlConfig {
  std::string runtime_dir{};    // must exist; holds the socket and the lock file
  unsigned socket_mode = 0666;  // who may connect
  std::chrono::milliseconds handshake_deadline{1000};
  unsigned max_connections_per_uid = 64;
  unsigned max_connections = 1024;
  unsigned max_sessions_per_uid = 256;
  unsigned max_sessions = 1024;
  // Session ids and boot id come from whoever outlives the process.
  std::uint64_t first_session_id = 1;
  std::uint64_t boot_id = 0;  // 0: drawn at random
};

// A device that clients can open. `info.index` is its place in the list given to start().
struct ControlDevice {
  Reactor* reactor = nullptr;
  DeviceHost* host = nullptr;
  wire::DeviceInfo info{};
};

struct ControlCounters {
  std::uint64_t connections = 0;  // open now
  std::uint64_t sessions = 0;     // open now, those being closed included
  std::uint64_t accepted = 0;
  std::uint64_t refused_limit = 0;
  std::uint64_t handshake_timeouts = 0;
  std::uint64_t protocol_errors = 0;
};

class Listener;

class ControlThread {
 public:
  // With a listener that was opened before: a daemon takes the lock before it touches a device.
  static base::Result<std::unique_ptr<ControlThread>> start(ControlConfig config, Listener listener,
                                                            std::vector<ControlDevice> devices);
  // Takes the lock file (kBusy, with the holder's pid, when another daemon has it), binds the
  // socket, starts the thread. The reactors must be running and outlive it, the hosts too.
  static base::Result<std::unique_ptr<ControlThread>> start(ControlConfig config,
                                                            std::vector<ControlDevice> devices);
  // stop(). Not from a reactor thread.
  virtual ~ControlThread() = default;

  // Closes every connection and every session, waits (at most `deadline`) until the handlers have
  // said that nothing is left, ends the thread, removes the socket. kTimeout when a handler did not
  // finish. Idempotent. Not from a reactor thread: the reactors must go on running meanwhile.
  virtual base::Result<void> stop(std::chrono::milliseconds deadline) = 0;

  // What a later listing shows: state, accelerator and pod ids change while a device runs. Any
  // thread.
  virtual void update_device(const wire::DeviceInfo& info) = 0;

  virtual ControlCounters counters() const = 0;  // any thread
};

}  // namespace gpuumd
