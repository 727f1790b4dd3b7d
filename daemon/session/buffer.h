// A buffer: memory that clients own, bind, export and share (docs/architecture.md "Who owns what").
// Device thread.
//
// A buffer lives while anyone refers to it: a session's handle, a mapping, a descriptor, an export
// that is pinned. VRAM is reserved when the buffer is made, so that it cannot run out later, and
// taken in chunks of 2 MiB when it is first needed; it reads as zero.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/address.h"
#include "base/result.h"
#include "daemon/gpu/memory/host_memory.h"
#include "daemon/gpu/memory/phys_run.h"
#include "daemon/gpu/memory/vram.h"
#include "daemon/ipc/requests.h"

namespace gpuumd {

class BufferStore;

enum class BufferKind : std::uint8_t { kVram, kHost, kImport };

// Memory of another accelerator behind an import.
struct RemoteMemory {
  std::uint64_t import = 0;  // the fabric's name for it
  base::Npa at;
};

class Buffer {
 public:
  static constexpr std::uint64_t kChunk = 2 * base::kMiB;

  ObjectId id() const { return id_; }
  BufferKind kind() const { return kind_; }
  std::uint64_t bytes() const { return bytes_; }
  uid_t uid() const { return uid_; }  // charged with it

  // Why it cannot be used any more: a revoked or lost import.
  std::optional<base::Errc> gone() const { return gone_; }

  // Whether [offset, offset + bytes) has memory behind it.
  bool present(std::uint64_t offset, std::uint64_t bytes) const;
  // The memory of a present range, neighbours merged.
  std::vector<PhysRun> runs(std::uint64_t offset, std::uint64_t bytes) const;
  // The chunks of a host buffer that a range lies in, for DmaUse.
  std::vector<HostChunk*> host_chunks(std::uint64_t offset, std::uint64_t bytes);
  // The memfd of a host buffer.
  const HostBuffer& host() const { return host_; }
  const std::optional<RemoteMemory>& remote() const { return remote_; }

  bool pinned() const { return pins_ > 0; }
  // Not any more: its last reference has gone, and its peers are giving it up or never did.
  bool referenced() const { return refs_ > 0; }

 private:
  friend class BufferStore;
  friend class BufferRef;
  struct VramChunk {
    enum class State : std::uint8_t { kAbsent, kClearing, kReady } state = State::kAbsent;
    std::vector<VramBlock> blocks;  // absent: perhaps taken, not cleared yet
  };
  Buffer(BufferStore& store, ObjectId id, BufferKind kind, std::uint64_t bytes, uid_t uid);
  std::uint64_t chunk_bytes(std::size_t chunk) const;

  BufferStore& store_;
  ObjectId id_;
  BufferKind kind_;
  std::uint64_t bytes_;
  uid_t uid_;
  std::optional<base::Errc> gone_;
  std::uint32_t refs_ = 0;
  std::uint32_t pins_ = 0;
  bool quarantined_ = false;
  std::vector<VramChunk> vram_;
  HostBuffer host_;
  std::vector<HostChunk> host_chunks_;
  std::optional<RemoteMemory> remote_;
};

// One reference to a buffer.
class BufferRef {
 public:
  BufferRef() = default;
  explicit BufferRef(Buffer& buffer) : buffer_(&buffer) { ++buffer.refs_; }
  BufferRef(const BufferRef& other) : buffer_(other.buffer_) {
    if (buffer_ != nullptr) ++buffer_->refs_;
  }
  BufferRef(BufferRef&& other) noexcept : buffer_(std::exchange(other.buffer_, nullptr)) {}
  BufferRef& operator=(BufferRef other) noexcept {
    std::swap(buffer_, other.buffer_);
    return *this;
  }
  ~BufferRef() { reset(); }
  void reset();

  Buffer* get() const { return buffer_; }
  Buffer* operator->() const { return buffer_; }
  Buffer& operator*() const { return *buffer_; }
  explicit operator bool() const { return buffer_ != nullptr; }

 private:
  Buffer* buffer_ = nullptr;
};

}  // namespace gpuumd
