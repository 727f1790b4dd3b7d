// Carries table updates to the device: CPU stores for host tables and through BAR 0, the copy
// engine for large updates and for tables that BAR 0 does not show.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "base/address.h"
#include "base/result.h"
#include "daemon/gpu/memory/table_update.h"
#include "daemon/gpu/memory/vram_map.h"
#include "daemon/gpu/registers/register_io.h"
#include "vfio/pci_device.h"

namespace gpuumd {

using Done = std::move_only_function<void(base::Result<void>)>;

// One PTEPDE generate (or WRITE) of the daemon's engine: `count` 64-bit entries at `at` in VMID 0.
struct EngineWrite {
  base::McAddress at;
  std::uint32_t count = 0;
  std::uint64_t value = 0;
  std::uint64_t step = 0;
  friend bool operator==(const EngineWrite&, const EngineWrite&) = default;
};

// The daemon's copy engine as far as page tables need it. Runs in VMID 0 on pinned memory, so it
// never faults (LR-11).
class TableEngine {
 public:
  virtual ~TableEngine() = default;
  // In order. `done` later, on the device thread, never from inside this call: with success when
  // the engine's fence says that all of it is visible to walkers, with an error when the engine
  // failed or the device is lost.
  virtual void write(std::vector<EngineWrite> writes, Done done) = 0;
};

// Updates are done in order of write(); one that needs the engine holds up those behind it. Device
// thread.
class TableWriter {
 public:
  // From this many entries on, an update goes through the engine where there is one.
  static constexpr std::uint64_t kEngineEntries = 4096;

  // `engine` may be null before it is up: then every table must be in host memory or visible. All
  // must outlive this. `bar` is BAR 0.
  TableWriter(const VramMap& map, vfio::Bar& bar, const RegisterBlock& nbio, TableEngine* engine);
  ~TableWriter();  // drops what waits: the done-callbacks get kDeviceLost

  void set_engine(TableEngine* engine) { engine_ = engine; }
  // Writes `update`'s fill, then its link. Copies what it needs: `update` may change afterwards.
  // `done` may be called from inside; kDeviceError or kDeviceLost from the engine. The TLB is not
  // flushed here.
  void write(const TableUpdate& update, Done done);

  struct Counters {
    std::uint64_t updates = 0;
    std::uint64_t cpu_entries = 0;  // stores to host tables and through BAR 0
    std::uint64_t engine_entries = 0;
    std::uint64_t hdp_flushes = 0;
  };
  const Counters& counters() const { return counters_; }

 private:
  struct Job {
    std::vector<EntryRun> fill;
    std::vector<EntryRun> link;
    bool large = false;
    Done done;
  };
  void advance();
  // Does what the CPU can; what is for the engine is returned.
  std::vector<EngineWrite> store_stage(const std::vector<EntryRun>& runs, bool large);
  void store(const EntryRun& run);
  bool for_engine(const EntryRun& run, bool large) const;
  void engine_done(base::Result<void> result);

  VramMap map_;
  vfio::Bar& bar_;
  RegisterBlock nbio_;  // for the HDP flush behind stores through the BAR
  TableEngine* engine_;
  std::deque<Job> jobs_;  // the first one is being done
  bool at_link_ = false;  // its stage
  bool engine_busy_ = false;
  bool advancing_ = false;
  std::shared_ptr<TableWriter*> self_;  // null once this has gone: late callbacks find nobody
  Counters counters_;
};

}  // namespace gpuumd
