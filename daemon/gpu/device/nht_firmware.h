// The mailbox of the nHT firmware: load the metadata table, halt (docs/hardware/nht.md, "Mailbox").
// Device thread; each wait is a state with a deadline.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/address.h"
#include "base/result.h"
#include "daemon/gpu/registers/nht_mailbox.h"
#include "daemon/gpu/registers/register_io.h"
#include "daemon/reactor/reactor.h"

namespace gpuumd {

class NhtFirmware {
 public:
  using Done = std::move_only_function<void(base::Result<void>)>;
  static constexpr Duration kDeadline = std::chrono::seconds(2);

  NhtFirmware(Reactor& reactor, RegisterBlock registers)
      : reactor_(reactor), registers_(registers) {}

  // `table` in VMID 0; `data` for the DATA register. kDeviceError names STATUS when the firmware is
  // in no state to load, or says that it failed; kTimeout. kBusy while another command runs.
  void load(base::McAddress table, std::uint32_t data, Done done);
  // Halts, from any state that can be left.
  void halt(Done done);

 private:
  void run(nht::Command command, nht::Status goal, Done done);
  void check();
  void finish(base::Result<void> result);
  std::string status_text(nht::Status status) const;

  Reactor& reactor_;
  RegisterBlock registers_;
  nht::Status goal_{};
  TimePoint deadline_{};
  Done done_;
  Registration timer_;
};

}  // namespace gpuumd
