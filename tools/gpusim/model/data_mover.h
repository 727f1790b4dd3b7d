// Copies and fills with several accesses in flight, finished in seeded order: what an engine
// translated before a page-table change it may still do after it (docs/model-memory.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "tools/gpusim/model/reset_noise.h"
#include "tools/gpusim/model/vm_hub.h"

namespace gpusim {

struct MoveJob {
  // What an address is: in the requester's VMID, a physical VRAM address, or an IOVA.
  enum class Space : std::uint8_t { kVirtual, kPhysical, kBus };
  Space source_space = Space::kVirtual;
  Space target_space = Space::kVirtual;
  std::uint64_t source = 0;  // not used by a fill
  std::uint64_t target = 0;
  std::uint64_t bytes = 0;
  bool fill = false;
  std::uint32_t value = 0;  // of a fill, repeated over all four bytes; byte 0 goes to `target`
  bool backwards = false;
};

class DataMover {
 public:
  DataMover(VmHub& hub, const ModelClock& clock, std::uint64_t seed, unsigned in_flight_pages);
  ~DataMover() { abort(); }
  DataMover(const DataMover&) = delete;
  DataMover& operator=(const DataMover&) = delete;

  void start(const MoveJob& job);

  enum class State : std::uint8_t {
    kDone,
    kMore,    // the budget is used up
    kLater,   // accesses in flight are not due yet (slow engine)
    kFailed,  // `outcome` and the hub's last_error() say why; kRetry is a failure to try again
  };
  struct Result {
    State state = State::kMore;
    Outcome outcome = Outcome::kOk;
    std::uint64_t address = 0;  // kFailed: the address
    bool write = false;         // kFailed: it is the target's
    AccessError error;
  };
  // Moves at most about `budget` bytes and takes what it moved from it. After kFailed with kRetry
  // it may be called again, and goes on where it stood.
  Result run(const Requester& who, std::size_t& budget);

  // Forgets what is in flight, undone.
  void abort();
  bool idle() const { return in_flight_.empty() && all_issued(); }
  // Scenario: an access is due this long after it was translated.
  void set_delay(ModelTime delay) { delay_ = delay; }

 private:
  struct Access {
    std::uint64_t offset = 0;
    Run source, target;
    VmHub::Ticket source_ticket, target_ticket;
    ModelTime due{};
  };
  struct Piece {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };
  std::uint64_t unit() const;
  bool all_issued() const { return issued_ == job_.bytes && again_.empty(); }
  Piece next_piece() const;
  void took(const Piece& piece, std::uint64_t bytes);
  bool issue(const Requester& who);
  void extend(const Requester& who, const Piece& piece, Access& access);
  Outcome translate(const Requester& who, MoveJob::Space space, std::uint64_t address,
                    std::uint64_t bytes, AccessType type, Run& run);
  bool ahead(const Requester& who, MoveJob::Space space, std::uint64_t address, std::uint64_t bytes,
             AccessType type, Run& run);
  Outcome finish(const Requester& who, const Access& access);
  Outcome fill(const Requester& who, Run target, std::uint32_t value);
  Outcome copy(const Requester& who, Run source, Run target);
  void end(const Access& access);
  std::size_t pick();

  VmHub& hub_;
  const ModelClock& clock_;
  Random random_;
  std::uint64_t window_;  // bytes
  MoveJob job_;
  bool ordered_ = false;  // source and target overlap: one access at a time
  bool streaming_ = false;
  std::uint64_t issued_ = 0;
  std::uint64_t flying_ = 0;  // bytes
  bool failed_write_ = false;
  std::uint64_t moved_ = 0;  // bytes of the access that finish() does or did
  std::vector<Access> in_flight_;
  std::vector<Piece> again_;  // the target said retry: to be translated anew
  std::optional<Result>
      blocked_;  // the next piece cannot be issued; reported when all else is done
  std::vector<std::byte> bounce_;
  ModelTime delay_{};
};

}  // namespace gpusim
