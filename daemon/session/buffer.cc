#include "daemon/session/buffer.h"

#include <algorithm>
#include <cassert>

#include "daemon/session/buffer_store.h"

namespace gpuumd {
namespace {

void append(std::vector<PhysRun>& runs, const PhysRun& next) {
  if (!runs.empty()) {
    const auto& last = runs.back();
    if (last.kind() == RunKind::kVram && next.kind() == RunKind::kVram &&
        last.vram_offset() + last.bytes() == next.vram_offset()) {
      runs.back() = PhysRun::vram(last.vram_offset(), last.pages() + next.pages());
      return;
    }
    if (last.kind() == RunKind::kSystem && next.kind() == RunKind::kSystem &&
        last.iova() + last.bytes() == next.iova()) {
      runs.back() = PhysRun::system(last.iova(), last.pages() + next.pages());
      return;
    }
  }
  runs.push_back(next);
}

// Appends what of `run`, which starts at byte `at` of the buffer, lies in [offset, end).
void append_part(std::vector<PhysRun>& runs, const PhysRun& run, std::uint64_t at,
                 std::uint64_t offset, std::uint64_t end) {
  const auto first = std::max(at, offset);
  const auto last = std::min(at + run.bytes(), end);
  if (first >= last) return;
  append(runs, run.part((first - at) / base::kPageSize, (last - first) / base::kPageSize));
}

}  // namespace

Buffer::Buffer(BufferStore& store, ObjectId id, BufferKind kind, std::uint64_t bytes, uid_t uid)
    : store_(store), id_(id), kind_(kind), bytes_(bytes), uid_(uid) {
  if (kind == BufferKind::kVram) vram_.resize(base::align_up(bytes, kChunk) / kChunk);
}

std::uint64_t Buffer::chunk_bytes(std::size_t chunk) const {
  return std::min(kChunk, bytes_ - chunk * kChunk);
}

bool Buffer::present(std::uint64_t offset, std::uint64_t bytes) const {
  assert(base::fits(offset, bytes, bytes_) && bytes > 0);
  if (gone_) return false;
  if (kind_ != BufferKind::kVram) return true;
  for (auto chunk = offset / kChunk; chunk <= (offset + bytes - 1) / kChunk; ++chunk)
    if (vram_[chunk].state != VramChunk::State::kReady) return false;
  return true;
}

std::vector<PhysRun> Buffer::runs(std::uint64_t offset, std::uint64_t bytes) const {
  assert(present(offset, bytes));
  std::vector<PhysRun> runs;
  const auto end = offset + bytes;
  switch (kind_) {
    case BufferKind::kImport:
      runs.push_back(PhysRun::npa(remote_->at + offset, bytes / base::kPageSize));
      break;
    case BufferKind::kHost:
      for (const auto& chunk : host_chunks_)
        append_part(runs, chunk.run(), chunk.offset(), offset, end);
      break;
    case BufferKind::kVram:
      for (auto chunk = offset / kChunk; chunk <= (end - 1) / kChunk; ++chunk) {
        auto at = chunk * kChunk;
        for (const auto& block : vram_[chunk].blocks) {
          append_part(runs, block.run(), at, offset, end);
          at += block.bytes();
        }
      }
      break;
  }
  return runs;
}

std::vector<HostChunk*> Buffer::host_chunks(std::uint64_t offset, std::uint64_t bytes) {
  std::vector<HostChunk*> found;
  for (auto& chunk : host_chunks_)
    if (chunk.offset() < offset + bytes && offset < chunk.offset() + chunk.bytes())
      found.push_back(&chunk);
  return found;
}

void BufferRef::reset() {
  if (auto* buffer = std::exchange(buffer_, nullptr); buffer != nullptr && --buffer->refs_ == 0)
    buffer->store_.last_reference_gone(*buffer);
}

}  // namespace gpuumd
