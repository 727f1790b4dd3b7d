// Makes buffers, puts memory behind them, and takes it back. Device thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "daemon/gpu/device/gpu.h"
#include "daemon/session/buffer.h"
#include "daemon/session/host_quota.h"

namespace gpuumd {

struct BufferCounters {
  std::uint64_t made = 0;
  std::uint64_t freed = 0;
  std::uint64_t chunks_cleared = 0;
  std::uint64_t vram_reserved = 0;  // bytes, now
  std::uint64_t host_bytes = 0;     // now, pinned
  std::uint64_t quarantined = 0;    // buffers, now
};

class BufferStore {
 public:
  explicit BufferStore(Gpu& gpu) : gpu_(gpu) {}
  ~BufferStore();

  // `bytes` is rounded up to 4 KiB. kNoSpace when VRAM cannot hold it, or not in pieces of the
  // alignment (VRAM), kNoMemory (host), kUnsupported: an alignment over Buffer::kChunk. `done` in
  // the call or later.
  void create(ObjectId id, request::CreateBuffer what, uid_t uid, DoneWith<BufferRef> done);
  // A buffer for memory of another accelerator.
  BufferRef create_import(ObjectId id, const RemoteMemory& remote, std::uint64_t bytes, uid_t uid);

  Buffer* find(ObjectId id);

  // Puts zeroed memory behind a range. `done` in the call when it is there already, else later.
  // VRAM was reserved, so only a broken device makes it fail.
  void make_present(BufferRef buffer, std::uint64_t offset, std::uint64_t bytes, Done done);

  // What may still be exported, imported or fenced off when the last reference goes. `free` is to
  // be called when no engine of anybody can reach the memory any more.
  void on_last_reference(
      std::move_only_function<void(Buffer&, std::move_only_function<void()> free)> call) {
    on_last_ = std::move(call);
  }
  // It stays where it is while a peer may reach it. No reference: when all of those have gone, the
  // peers have to give it up (on_last_reference()). If that fails, the memory is in quarantine:
  // nobody gets it before the last unpin(), if that ever comes (errata A27).
  void pin(Buffer& buffer) { ++buffer.pins_; }
  void unpin(Buffer& buffer);
  // The memory behind an import is gone.
  void mark_gone(Buffer& buffer, base::Errc why) { buffer.gone_ = why; }

  // Of host buffers, and of whatever else holds descriptors for a client.
  HostQuota& host_quota() { return host_quota_; }

  // What buffers may reserve in all: VRAM without what the daemon may take for itself.
  std::uint64_t usable_vram() const;
  const BufferCounters& counters() const { return counters_; }
  template <class Visit>
  void for_each(Visit visit) const {
    for (const auto& [id, buffer] : buffers_) visit(*buffer);
  }

 private:
  friend class BufferRef;
  base::Result<void> take_aligned(Buffer& buffer, std::uint64_t alignment);
  void create_host(std::unique_ptr<Buffer> buffer, DoneWith<BufferRef> done);
  BufferRef add(std::unique_ptr<Buffer> buffer);
  base::Result<void> start_clearing(Buffer& buffer, std::size_t chunk);
  void cleared(Buffer& buffer, std::size_t chunk, const base::Result<void>& result);
  void last_reference_gone(Buffer& buffer);
  void free(ObjectId id);

  struct Waiter {
    BufferRef buffer;
    std::uint64_t offset;
    std::uint64_t bytes;
    Done done;
  };

  Gpu& gpu_;
  std::unordered_map<std::uint64_t, std::unique_ptr<Buffer>> buffers_;
  std::vector<Waiter> waiting_;
  std::move_only_function<void(Buffer&, std::move_only_function<void()>)> on_last_;
  BufferCounters counters_;
  HostQuota host_quota_ = HostQuota::of_machine();
};

}  // namespace gpuumd
