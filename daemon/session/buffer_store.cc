#include "daemon/session/buffer_store.h"

#include <cassert>
#include <utility>

#include "daemon/session/fabric_memory.h"
#include "daemon/session/join.h"

namespace gpuumd {

BufferStore::~BufferStore() = default;

std::uint64_t BufferStore::usable_vram() const {
  const auto& vram = gpu_.vram();
  const auto total = vram.visible_usage().total + vram.invisible_usage().total;
  const auto reserved = vram.visible_usage().reserved + vram.invisible_usage().reserved;
  const auto kept = reserved + TablePool::kVramReserve + Gart::kTableBytes +
                    FabricMemory::kVramBytes + base::kPageSize;  // the default page
  return total > kept ? total - kept : 0;
}

BufferRef BufferStore::add(std::unique_ptr<Buffer> buffer) {
  ++counters_.made;
  auto& kept = *buffer;
  buffers_.emplace(kept.id().value(), std::move(buffer));
  return BufferRef(kept);
}

void BufferStore::create(ObjectId id, request::CreateBuffer what, uid_t uid,
                         DoneWith<BufferRef> done) {
  if (what.bytes == 0 || what.bytes > (std::uint64_t{1} << 56)) {
    done(base::fail(base::Errc::kInvalidArgument,
                    "buffer of " + std::to_string(what.bytes) + " bytes"));
    return;
  }
  if (what.alignment > Buffer::kChunk)
    return done(base::fail(base::Errc::kUnsupported, "alignment of a buffer over 2 MiB"));
  const auto bytes = base::align_up(what.bytes, base::kPageSize);
  if (what.kind == request::Memory::kHost)
    return create_host(
        std::unique_ptr<Buffer>(new Buffer(*this, id, BufferKind::kHost, bytes, uid)),
        std::move(done));
  if (bytes > usable_vram() || counters_.vram_reserved > usable_vram() - bytes) {
    done(base::fail(base::Errc::kNoSpace,
                    "VRAM: " + std::to_string(bytes) + " bytes wanted, " +
                        std::to_string(usable_vram() - counters_.vram_reserved) + " free"));
    return;
  }
  std::unique_ptr<Buffer> buffer(new Buffer(*this, id, BufferKind::kVram, bytes, uid));
  if (what.alignment > base::kPageSize)
    if (auto taken = take_aligned(*buffer, what.alignment); !taken)
      return done(std::unexpected(taken.error()));
  counters_.vram_reserved += bytes;
  done(add(std::move(buffer)));
}

// Later there may be room, but in smaller pieces.
base::Result<void> BufferStore::take_aligned(Buffer& buffer, std::uint64_t alignment) {
  for (std::size_t chunk = 0; chunk < buffer.vram_.size(); ++chunk) {
    auto blocks = gpu_.vram().allocate_blocks(buffer.chunk_bytes(chunk), VramZone::kInvisibleFirst,
                                              alignment);
    if (!blocks) return std::unexpected(blocks.error());
    buffer.vram_[chunk].blocks = std::move(*blocks);
  }
  return {};
}

void BufferStore::create_host(std::unique_ptr<Buffer> buffer, DoneWith<BufferRef> done) {
  // One descriptor, the memfd's. Taken first: the memory is allocated when the buffer is made.
  const HostUse use{buffer->bytes(), 1};
  if (auto taken = host_quota_.take(buffer->uid(), use); !taken)
    return done(std::unexpected(taken.error()));
  done = [this, use, uid = buffer->uid(),
          done = std::move(done)](base::Result<BufferRef> made) mutable {
    if (!made) host_quota_.give_back(uid, use);
    done(std::move(made));
  };
  HostMemory::Request request{"gpuumd-buffer", buffer->bytes(),
                              buffer->bytes() >= MemoryWorker::kPiece};
  gpu_.host_memory().create(request, [this, buffer = std::move(buffer), done = std::move(done)](
                                         base::Result<HostBuffer> made) mutable {
    if (!made) return done(std::unexpected(made.error()));
    buffer->host_ = *made;
    // Huge pages may have made it larger than asked; the client sees what it asked for.
    gpu_.dma().map_all(*made, vfio::Rights::kReadWrite,
                       [this, buffer = std::move(buffer), done = std::move(done)](
                           base::Result<std::vector<HostChunk>> chunks) mutable {
                         if (!chunks) return done(std::unexpected(chunks.error()));
                         buffer->host_chunks_ = std::move(*chunks);
                         counters_.host_bytes += buffer->bytes();
                         done(add(std::move(buffer)));
                       });
  });
}

BufferRef BufferStore::create_import(ObjectId id, const RemoteMemory& remote, std::uint64_t bytes,
                                     uid_t uid) {
  std::unique_ptr<Buffer> buffer(new Buffer(*this, id, BufferKind::kImport, bytes, uid));
  buffer->remote_ = remote;
  return add(std::move(buffer));
}

Buffer* BufferStore::find(ObjectId id) {
  const auto it = buffers_.find(id.value());
  return it == buffers_.end() ? nullptr : it->second.get();
}

void BufferStore::make_present(BufferRef buffer, std::uint64_t offset, std::uint64_t bytes,
                               Done done) {
  if (const auto why = buffer->gone()) return done(base::fail(*why, "memory behind the buffer"));
  if (buffer->present(offset, bytes)) return done({});
  const auto last = (offset + bytes - 1) / Buffer::kChunk;
  for (auto chunk = offset / Buffer::kChunk; chunk <= last; ++chunk)
    if (buffer->vram_[chunk].state == Buffer::VramChunk::State::kAbsent)
      if (auto started = start_clearing(*buffer, chunk); !started) return done(std::move(started));
  waiting_.push_back({std::move(buffer), offset, bytes, std::move(done)});
}

base::Result<void> BufferStore::start_clearing(Buffer& buffer, std::size_t index) {
  auto& chunk = buffer.vram_[index];
  if (chunk.blocks.empty()) {
    // Buffers take invisible VRAM first: page tables and rings need the rest.
    auto blocks = gpu_.vram().allocate_blocks(buffer.chunk_bytes(index), VramZone::kInvisibleFirst);
    if (!blocks) return std::unexpected(blocks.error());
    chunk.blocks = std::move(*blocks);
  }
  chunk.state = Buffer::VramChunk::State::kClearing;
  // The fills keep the buffer: its memory must not be given to others while the engine writes it.
  Join all([this, kept = BufferRef(buffer), index](base::Result<void> result) {
    cleared(*kept, index, result);
  });
  for (const auto& block : chunk.blocks)
    gpu_.copy_engine().fill(gpu_.vram_map().mc(block.offset()), 0, block.bytes(), all.part());
  all.end();
  return {};
}

void BufferStore::cleared(Buffer& buffer, std::size_t index, const base::Result<void>& result) {
  auto& chunk = buffer.vram_[index];
  if (result) {
    chunk.state = Buffer::VramChunk::State::kReady;
    ++counters_.chunks_cleared;
  } else {
    chunk.state = Buffer::VramChunk::State::kAbsent;
  }
  std::vector<Waiter> ready;
  std::erase_if(waiting_, [&](Waiter& waiter) {
    if (waiter.buffer.get() != &buffer) return false;
    if (result && !buffer.present(waiter.offset, waiter.bytes)) return false;
    ready.push_back(std::move(waiter));
    return true;
  });
  for (auto& waiter : ready) waiter.done(result);
}

void BufferStore::unpin(Buffer& buffer) {
  assert(buffer.pins_ > 0);
  if (--buffer.pins_ > 0 || !buffer.quarantined_) return;
  --counters_.quarantined;
  free(buffer.id());
}

void BufferStore::last_reference_gone(Buffer& buffer) {
  if (on_last_)
    on_last_(buffer, [this, id = buffer.id()] { free(id); });
  else
    free(buffer.id());
}

void BufferStore::free(ObjectId id) {
  const auto it = buffers_.find(id.value());
  if (it == buffers_.end()) return;
  assert(it->second->refs_ == 0);
  if (it->second->pinned()) {
    it->second->quarantined_ = true;
    ++counters_.quarantined;
    return;
  }
  const auto node = buffers_.extract(it);
  const auto& buffer = *node.mapped();
  if (buffer.kind() == BufferKind::kVram) counters_.vram_reserved -= buffer.bytes();
  if (buffer.kind() == BufferKind::kHost) {
    counters_.host_bytes -= buffer.bytes();
    host_quota_.give_back(buffer.uid(), {buffer.bytes(), 1});
  }
  ++counters_.freed;
}

}  // namespace gpuumd
