// LSDMA, the small copy engine that is driven by register writes. The UALink code writes into
// remote memory with it: a refusal ends one command and not a queue (docs/hardware/sdma.md,
// "LSDMA"). Device thread; commands run one at a time in the order given.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "base/address.h"
#include "base/result.h"
#include "daemon/gpu/registers/lsdma.h"
#include "daemon/gpu/registers/register_io.h"
#include "daemon/reactor/reactor.h"

namespace gpuumd {

class Lsdma {
 public:
  using Done = std::move_only_function<void(base::Result<void>)>;
  // The fabric answers or gives up within 100 ms (docs/hardware/choices.md D46).
  static constexpr Duration kCommandDeadline = std::chrono::seconds(1);

  Lsdma(Reactor& reactor, RegisterBlock registers) : reactor_(reactor), registers_(registers) {}

  // Clears old errors; fails with kDeviceError and the status when the engine is not idle.
  base::Result<void> start();

  // Copies up to lsdma::kMaxBytes within VMID 0. `done` on a later turn: kRefused when the fabric
  // or the translation refused, kDeviceError for other status bits (all of them are tested, A25),
  // kTimeout when the engine did not come to rest. The next one then waits until it has: the
  // registers are still the old command's, and so are the error bits that it leaves.
  void copy(base::McAddress from, base::McAddress to, std::uint32_t bytes, Done done);

  // True also while a command runs: LSDMA raises no interrupt, so the reactor must stay awake.
  bool poll();
  bool busy() const { return !commands_.empty() || !finished_.empty(); }
  void fail(const base::Error& error);

 private:
  struct Command {
    base::McAddress from;
    base::McAddress to;
    std::uint32_t bytes;
    Done done;
  };
  void launch();
  void send(const Command& command);
  base::Result<void> outcome(base::Value<lsdma::PIO_STATUS> status);

  Reactor& reactor_;
  RegisterBlock registers_;
  bool running_ = false;  // the front of commands_ has its turn
  bool overdue_ = false;  // the engine may still be at a command that has timed out
  TimePoint started_{};
  std::deque<Command> commands_;
  std::vector<std::pair<Done, base::Result<void>>> finished_;
};

}  // namespace gpuumd
