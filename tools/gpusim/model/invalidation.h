// The 18 invalidation engines of one hub, and the accesses that a heavy flush has to wait for
// (D23-D25).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "tools/gpusim/model/block_context.h"
#include "tools/gpusim/model/hub_registers.h"
#include "tools/gpusim/model/translation_cache.h"
#include "tools/gpusim/model/vm_hub.h"

namespace gpusim {

// Counts accesses in flight by the flush they came before.
class InFlight {
 public:
  std::uint64_t begin() {
    ++current_;
    return epoch_;
  }
  void end(std::uint64_t epoch) {
    if (epoch == epoch_) {
      --current_;
      return;
    }
    const auto at = earlier_.find(epoch);
    if (at != earlier_.end() && --at->second == 0) earlier_.erase(at);
  }
  // Starts a new epoch and returns the one that ended.
  std::uint64_t mark() {
    if (current_ != 0) earlier_[epoch_] = current_;
    current_ = 0;
    return epoch_++;
  }
  // Whether everything begun up to `epoch`, which has ended, has ended too.
  bool done(std::uint64_t epoch) const {
    return earlier_.empty() || earlier_.begin()->first > epoch;
  }

 private:
  std::uint64_t epoch_ = 1;
  std::uint64_t current_ = 0;                       // of this epoch
  std::map<std::uint64_t, std::uint64_t> earlier_;  // of epochs before it, none of them 0
};

class Invalidation {
 public:
  Invalidation(HubRegisters& registers, const BlockContext& context, bool mmhub,
               TranslationCache& cache, HubCounters& counters,
               std::function<void()> clear_fault_status);

  InFlight& in_flight(std::uint8_t vmid) { return in_flight_[vmid]; }
  InFlight& in_flight_to(std::uint16_t accel) { return in_flight_to_[accel]; }
  const InFlight* in_flight_to_if_any(std::uint16_t accel) const;

  void reset();
  // Scenario: acknowledges come this much later, for the next `count` requests.
  void delay_acks(ModelTime by, std::uint64_t count);

 private:
  struct Pending {
    unsigned engine;
    std::uint8_t vmid;
    bool heavy;
    std::uint64_t epoch;
    ModelTime not_before;
  };
  void request(unsigned engine, base::Value<INVALIDATE_REQ> request);
  std::uint32_t acknowledged(unsigned engine);

  HubRegisters& registers_;
  const BlockContext& context_;
  bool mmhub_;
  TranslationCache& cache_;
  HubCounters& counters_;
  std::function<void()> clear_fault_status_;
  std::array<bool, HubRegisters::kEngines> taken_{};
  std::array<InFlight, HubRegisters::kVmids> in_flight_;
  std::map<std::uint16_t, InFlight> in_flight_to_;
  std::vector<Pending> pending_;
  ModelTime ack_delay_{};
  std::uint64_t delayed_acks_ = 0;
};

}  // namespace gpusim
