// A link between the switches of two gpusim processes over a Unix socket: remote accesses as
// messages, bulk data straight between the memories of both (docs/sim-link.md).
#pragma once

#include <poll.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "base/shared_memory.h"
#include "tools/gpusim/host/fabric_link_wire.h"
#include "tools/gpusim/model/fabric_switch.h"
#include "tools/gpusim/model/gpu.h"

namespace gpusim {

// A socket to listen at, or a connection to somebody who does. kBusy, kNotFound, kInvalidArgument
// (path too long), kSystem. Both non-blocking.
base::Result<base::UniqueFd> listen_fabric(const std::string& path);
base::Result<base::UniqueFd> join_fabric(const std::string& path);

struct LinkCounters {
  std::uint64_t asked = 0;
  std::uint64_t served = 0;
  std::uint64_t by_reference = 0;  // of both: data went from memory to memory
  std::uint64_t timeouts = 0;
  std::uint64_t bad_messages = 0;
};

// One connection. Thread: the one that steps the pod.
class FabricLink {
 public:
  // The other side's GPUs get the switch's ports from `first_port` on. Everything outlives this.
  FabricLink(base::UniqueFd socket, FabricSwitch& fabric, const std::vector<Gpu*>& locals,
             unsigned first_port);
  ~FabricLink();
  FabricLink(const FabricLink&) = delete;
  FabricLink& operator=(const FabricLink&) = delete;

  // Tells changes of our GPUs and serves what came, without blocking. True when anything was done.
  bool step();
  bool open() const { return static_cast<bool>(socket_); }
  void add_poll_fds(std::vector<pollfd>& fds) const;
  const LinkCounters& counters() const { return counters_; }

  // How long an access waits for its answer. Longer than the 100 ms of the hardware: the other
  // process may have to wait for a processor.
  static constexpr std::chrono::milliseconds kAnswerTime{2000};

 private:
  class Far;  // a GPU of the other side
  struct Message {
    LinkHeader header;
    std::vector<std::byte> data;
    std::vector<base::UniqueFd> descriptors;
  };

  Outcome ask(unsigned far, RemoteAccess& access);
  bool refer(std::span<const std::byte> bytes, LinkHeader& header) const;
  std::optional<Outcome> wait_for_answer(std::uint64_t tag, RemoteAccess& access);
  void take_answer(const Message& message, RemoteAccess& access);
  bool tell_state();
  std::vector<std::byte> current_state() const;
  std::optional<Message> receive();
  bool send(LinkHeader header, std::span<const std::byte> data,
            std::span<const int> descriptors = {});
  bool handle(Message message);
  bool take_state(Message& message);
  bool take_memory(Message& message, std::size_t gpus);
  bool serve(const Message& message);
  std::optional<std::span<std::byte>> named_memory(const LinkHeader& header);
  void close();

  base::UniqueFd socket_;
  FabricSwitch& fabric_;
  const std::vector<Gpu*>& locals_;
  unsigned first_port_;
  std::vector<std::unique_ptr<Far>> far_;
  std::vector<base::Mapping> memory_;  // of the far GPUs
  std::vector<std::byte> told_;        // our state as the other side knows it
  std::uint64_t tag_ = 0;
  std::optional<Message> answer_;
  std::vector<std::byte> buffer_;
  LinkCounters counters_;
};

}  // namespace gpusim
