// Entering and leaving the fabric, one step after the other (docs/hardware/nht.md, "Activation").
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "base/result.h"
#include "fabric/deadlines.h"
#include "fabric/layout.h"
#include "fabric/node.h"
#include "fabric/outbox.h"

namespace fabric {

class Activation {
 public:
  Activation(const NodeConfig& config, Outbox& outbox, Timers& timers)
      : config_(config), outbox_(outbox), timers_(timers) {}

  bool busy() const { return !plan_.empty(); }
  // `layout` must live until down() has ended.
  void up(TimePoint now, const Layout& layout, const AccelSet& members);
  // NPA access off first, so that nothing comes in while the rest goes; then the order of the
  // contract.
  void down(TimePoint now);

  // nullopt while more is to come. A step that failed on the way up has been undone with all before
  // it, in reverse order (errata A19), and its error is the result; on the way down the first
  // error.
  std::optional<base::Result<void>> on_done(TimePoint now, const base::Result<void>& result);
  std::optional<base::Result<void>> on_due(TimePoint now);

 private:
  enum class Step : std::uint8_t { kAccess, kVm, kClear, kFirmware, kRings, kRecords, kPeers };
  struct Planned {
    Step step;
    bool on = true;
  };
  void next(TimePoint now);
  OpId give(const Planned& planned);
  OpId map(std::size_t which, bool on);

  const NodeConfig& config_;
  Outbox& outbox_;
  Timers& timers_;
  const Layout* layout_ = nullptr;
  AccelSet members_;
  std::deque<Planned> plan_;  // front: under way
  std::vector<Step> done_;    // what is on
  std::optional<base::Error> error_;
  OpId op_;
};

}  // namespace fabric
