// One GPU behind vfio-user: at most one client at a time, the device and its PCI function stay when
// a client goes. Model thread only.
#pragma once

#include <poll.h>

#include <memory>
#include <string>
#include <vector>

#include "base/fd.h"
#include "tools/gpusim/model/gpu_device.h"
#include "tools/gpusim/model/scenario.h"
#include "tools/gpusim/server/session.h"

namespace gpusim {

class GpuServer {
 public:
  // `device` outlives the server. With `hooks` the server offers "pci.disconnect" under index
  // `gpu`; they must outlive it too.
  GpuServer(GpuDevice& device, ServerOptions options, ScenarioHooks* hooks = nullptr,
            unsigned gpu = 0);
  ~GpuServer();
  GpuServer(const GpuServer&) = delete;
  GpuServer& operator=(const GpuServer&) = delete;

  // A client's connection (a stream socket). While another is connected it is closed at once.
  void connect(base::UniqueFd socket);
  bool connected() const { return session_ != nullptr; }

  // Serves what the client sent. True when there was anything. Does nothing from inside step().
  bool serve();
  // serve(), then one step of the device. True when anything was done.
  bool step();
  bool waiting() const { return device_.waiting(); }

  // Sleeping (docs/model.md, "Sleeping and waking"). prepare_sleep() tells the client that stores
  // need a wake from now on, and looks once more; false: there is work, and the client was told so.
  bool prepare_sleep();
  void wake_up();
  // What a sleeper has to watch.
  void add_poll_fds(std::vector<pollfd>& fds);

  const ServerCounters& counters() const { return counters_; }

 private:
  void add_hooks();
  void reap();

  GpuDevice& device_;
  const ServerOptions options_;
  ScenarioHooks* hooks_;
  unsigned gpu_;
  PciFunction function_;
  ServerCounters counters_;
  std::unique_ptr<Session> session_;
  bool stepping_ = false;
  bool worked_ = false;    // the last step did
  unsigned unlooked_ = 0;  // idle steps since the socket was looked at
  bool sleeping_ = false;
};

}  // namespace gpusim
