// The memory and the stores behind the fabric protocol: our ring buffer and records in VRAM, the
// GART pages of each peer, and LSDMA to reach them (docs/fabric.md). Device thread.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "base/result.h"
#include "daemon/gpu/device/gpu.h"
#include "daemon/gpu/memory/vram.h"
#include "fabric/action.h"
#include "fabric/layout.h"
#include "fabric/node.h"
#include "fabric/write_back.h"

namespace gpuumd {

class FabricMemory {
 public:
  static constexpr std::uint64_t kRingBytes = 2 * base::kMiB;
  static constexpr std::uint64_t kRecordBytes = 8 * base::kKiB;
  static constexpr std::uint64_t kVramBytes = kRingBytes + kRecordBytes;

  // The rings, aligned to their size, and the records where the CPU can read them.
  static base::Result<std::unique_ptr<FabricMemory>> create(Gpu& gpu);

  base::VramOffset rings() const { return rings_.offset(); }
  base::VramOffset records() const { return records_.offset(); }

  // Zeroes rings and records (U02).
  void clear(Done done);
  // The four GART pages of each peer.
  void map_peers(const fabric::Layout& layout, const fabric::MapPeers& what, Done done);

  // One remote operation at a time, in the order given: a peer's stores must not overtake each
  // other. Each ends within LSDMA's deadline, so a silent peer costs the others at most that.
  void post(const fabric::Layout& layout, fabric::PostStores what, Done done);
  void read(const fabric::Layout& layout, const fabric::ReadRemote& what,
            DoneWith<std::vector<std::byte>> done);

  // The record about our ring at `peer`. Read through BAR 0: 16 bytes, and only while an entry is
  // in flight, which is what the firmware's write-back is for.
  fabric::WriteBackRecord record(const fabric::Layout& layout,
                                 const fabric::RecordName& name) const;

 private:
  FabricMemory(Gpu& gpu, VramBlock rings, VramBlock records);

  struct Store {
    fabric::PostStores what;
    std::size_t next = 0;
    Done done;
  };
  struct Load {
    fabric::ReadRemote what;
    DoneWith<std::vector<std::byte>> done;
  };
  struct Job {
    fabric::Layout layout;
    std::variant<Store, Load> work;
  };
  std::optional<base::McAddress> reach(const fabric::Layout& layout, base::AccelId peer,
                                       base::Npa at) const;
  void start();
  void store_next();
  void end_store(base::Result<void> result);
  void end_load(base::Result<std::vector<std::byte>> result);

  Gpu& gpu_;
  VramBlock rings_;
  VramBlock records_;
  PermanentMemory::Piece scratch_;
  std::deque<Job> jobs_;
  bool busy_ = false;
};

}  // namespace gpuumd
