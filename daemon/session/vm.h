// One GPU address space of a session: its page table, its mappings, its VMID (FH-8, MG-1). Mode
// fixed at creation; never shared between sessions. Device thread.
//
// Changes run one after the other. Each is validated and reserved as a whole before anything is
// changed (VMB-4, VMB-5); "done" means that entries are written and TLBs flushed.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/result.h"
#include "base/shared_memory.h"
#include "daemon/gpu/device/gpu.h"
#include "daemon/gpu/memory/page_table.h"
#include "daemon/session/buffer_store.h"
#include "daemon/session/mapping.h"
#include "daemon/submit/scheduler.h"

namespace gpuumd {

// Addresses that clients may bind, and what the daemon keeps for itself above them.
inline constexpr base::GpuVa kFirstVa{64 * base::kKiB};
inline constexpr base::GpuVa kEndVa{(std::uint64_t{1} << PageTable::kVaBits) - 16 * base::kMiB};
inline constexpr base::GpuVa kIbVa = kEndVa;                      // read-only
inline constexpr base::GpuVa kFenceVa = kEndVa + 4 * base::kMiB;  // read and write

// A bind operation with its buffer found and its rights checked.
struct BindStep {
  bool map = false;
  base::GpuVa va;
  std::uint64_t bytes = 0;
  BufferRef buffer;  // of a map
  std::uint64_t offset = 0;
  PteFlags rights;
  bool on_fault = false;
  std::uint64_t window = 0;
};

// What the VM maps of its session: the fence page.
struct FencePage {
  HostBuffer buffer;
  std::vector<HostChunk>* chunks;
};

class Vm {
 public:
  struct Context {
    Gpu& gpu;
    Scheduler& scheduler;
    BufferStore& buffers;
  };
  // Takes a VMID, tables and an IB window. `done` later: kLimit (no VMID), kNoMemory, kNoSpace.
  static void create(Context context, ObjectId id, bool faults, FencePage fences,
                     DoneWith<std::unique_ptr<Vm>> done);
  ~Vm();  // after end()
  Vm(const Vm&) = delete;

  ObjectId id() const { return id_; }
  bool faults() const { return faults_; }
  base::Vmid vmid() const { return binding_.vmid; }
  base::Pasid pasid() const { return binding_.pasid; }
  VmWork& work() { return *work_; }
  // Why it died, if it did.
  std::optional<base::Errc> dead() const { return dead_; }

  // A list of operations, all or nothing. kExists, kNotFound, kOutOfRange, kUnsupported (on fault
  // in a VM without faults) name the operation; then nothing was changed. Otherwise `done` when the
  // GPU sees the new state and no longer reaches what was unmapped.
  void bind(std::vector<BindStep> steps, Done done);

  // Unmaps every piece of a buffer, and remembers why for faults that follow (a revoked import).
  // Runs like a bind, or with the end of a VM that is ending; `done` when no engine reaches it.
  void unmap_buffer(Buffer& buffer, base::Errc why, Done done);

  // The piece at an address, for the fault pipeline.
  struct Found {
    MappedPiece piece;  // of the address's whole piece
    base::GpuVa first;
    base::GpuVa end;
  };
  std::optional<Found> find(base::GpuVa va) const;
  // Why an address without a mapping has none, when there is a special reason.
  base::Errc missing_reason(base::GpuVa va) const;
  // Maps the absent pages of [first, end) of a piece that is (still) `mapping`'s; memory is
  // present. `done` when the entries are in memory. kAgain: no table pages now; kNotFound: the
  // piece has gone; kRevoked and the like: the memory has, though it is mapped still.
  void map_window(const std::shared_ptr<Mapping>& mapping, base::GpuVa first, base::GpuVa end,
                  Done done);
  bool mapped(base::GpuVa va, bool write) const;

  // Fatal: the root is replaced by a tree that maps the IB window alone, flushed, and work ends
  // with `why`. `out_of_reach` when the old tree cannot be used any more (retry faults may be
  // acknowledged).
  void kill(base::Errc why, std::move_only_function<void()> out_of_reach);

  // Takes everything down: work ends (kNotFound unless dead already), VMID back, tables and memory
  // free. Once; `done` later; then the Vm may be destroyed.
  void end(std::move_only_function<void()> done);

  std::uint64_t mappings() const { return pieces_.count(); }
  std::uint64_t mapped_bytes() const;

 private:
  struct Change;
  Vm(Context context, ObjectId id, bool faults);

  void start_next();
  void prepare(std::shared_ptr<Change> change);
  base::Result<void> validate(const Change& change) const;
  base::Result<void> reserve(Change& change);
  void commit(std::shared_ptr<Change> change);
  void write_group(std::shared_ptr<Change> change);
  void finish(std::shared_ptr<Change> change, base::Result<void> result);
  void map_ibs(FencePage fences, DoneWith<std::unique_ptr<Vm>> done, std::unique_ptr<Vm> self);
  void build_reserved(FencePage fences, DoneWith<std::unique_ptr<Vm>> done,
                      std::unique_ptr<Vm> self);
  base::Result<void> map_reserved(PageTable& table, bool fences_too, TableUpdate& update);
  void bind_vmid(std::unique_ptr<Vm> self, DoneWith<std::unique_ptr<Vm>> done);
  void end_if_quiet();
  void release(std::move_only_function<void()> done);

  Context context_;
  ObjectId id_;
  bool faults_;
  std::optional<base::Errc> dead_;
  HostBuffer ib_buffer_;
  base::Mapping ib_cpu_;
  std::vector<HostChunk> ib_chunks_;
  std::vector<DmaUse> reserved_uses_;
  std::vector<HostChunk>* fence_chunks_ = nullptr;
  std::optional<PageTable> table_;
  std::optional<PageTable>
      dead_table_;  // the IB window alone; made beforehand, so that dying cannot fail
  VmidPool::Binding binding_{};
  VmWork* work_ = nullptr;
  MappingMap pieces_;
  base::IntervalMap<base::Errc, base::GpuVa> missing_;
  std::uint64_t next_generation_ = 1;
  std::deque<std::shared_ptr<Change>> changes_;
  unsigned pending_ = 0;  // changes and windows under way
  unsigned windows_ = 0;
  bool drained_ = false;  // dead, and no engine has work of it
  bool ended_ = false;
  std::move_only_function<void()> end_done_;
  std::vector<Done> unmaps_at_end_;
  std::shared_ptr<Vm*> self_;
};

}  // namespace gpuumd
