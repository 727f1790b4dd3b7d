// gpuumd.h: staging copies. A host buffer in two halves, so that the CPU fills (or empties) one
// while the copy engine works on the other.
#include <algorithm>

#include "libgpuumd/objects.h"

using namespace gpuumd::client;
namespace wire = gpuumd::wire;

struct gpuumd_staging {
  gpuumd_staging(gpuumd_queue* queue, std::uint64_t va, std::uint64_t bytes)
      : queue(queue),
        session(queue->queue->session_ref()),
        vm(queue->queue->vm()),
        va(va),
        half(bytes / 2) {}

  gpuumd_queue* queue;
  std::shared_ptr<Session> session;
  std::uint64_t vm;
  std::uint64_t va;
  std::uint64_t half;
  std::unique_ptr<gpuumd_buffer> buffer;
  std::byte* data = nullptr;
  bool bound = false;
  std::uint64_t fence = 0;
  std::uint32_t fence_slot = 0;
  std::mutex mutex;  // one copy at a time; guards what follows
  std::uint64_t point = 0;
};

namespace {

constexpr std::uint64_t kDefaultBytes = 4 << 20;

template <class Command>
Outcome<void> put(gpuumd_staging& staging, wire::Operation operation, Command command,
                  const Wait& wait) {
  command.header = {operation, 1, 0};
  wire::CommandSlot slot;
  std::memcpy(&slot, &command, sizeof(slot));
  return staging.queue->queue->put(std::span(&slot, 1), wait);
}

// One chunk through the copy engine; its fence point.
Outcome<std::uint64_t> submit_copy(gpuumd_staging& staging, std::uint64_t to, std::uint64_t from,
                                   std::uint64_t bytes, const Wait& wait) {
  wire::CopyCommand copy{};
  copy.to = to;
  copy.from = from;
  copy.bytes = bytes;
  if (auto done = put(staging, wire::Operation::kCopy, copy, wait); !done)
    return std::unexpected(done.error());
  wire::FenceCommand signal{};
  signal.fence = staging.fence;
  signal.point = staging.point + 1;
  if (auto done = put(staging, wire::Operation::kSignal, signal, wait); !done)
    return std::unexpected(done.error());
  ++staging.point;
  if (auto done = staging.queue->queue->submit(); !done) return std::unexpected(done.error());
  return staging.point;
}

Outcome<void> reached(gpuumd_staging& staging, std::uint64_t point, const Wait& wait) {
  if (point == 0) return {};
  return staging.session->wait_fence(staging.fence, staging.fence_slot, point, wait);
}

// Runs `chunk(offset, bytes, half)`, which gives the fence point of the chunk, and `done` for the
// chunk that used the half before, when its point is reached.
template <class Chunk, class Done>
Outcome<void> pipeline(gpuumd_staging& staging, std::uint64_t bytes, const Wait& wait, Chunk chunk,
                       Done done) {
  struct InFlight {
    std::uint64_t point = 0, offset = 0, bytes = 0;
  } in_flight[2];
  const auto finish = [&](unsigned half) -> Outcome<void> {
    InFlight& one = in_flight[half];
    if (one.point == 0) return {};
    if (auto ok = reached(staging, one.point, wait); !ok) return ok;
    done(one.offset, one.bytes, half);
    one = {};
    return {};
  };
  unsigned half = 0;
  for (std::uint64_t offset = 0; offset < bytes; half ^= 1) {
    if (auto ok = finish(half); !ok) return ok;
    const std::uint64_t size = std::min(staging.half, bytes - offset);
    const auto point = chunk(offset, size, half);
    if (!point) return std::unexpected(point.error());
    in_flight[half] = {*point, offset, size};
    offset += size;
  }
  if (auto ok = finish(half); !ok) return ok;
  return finish(half ^ 1);
}

// A copy that gave up may still be under way in the halves: the next one waits for it first.
Outcome<Wait> begin_copy(gpuumd_staging* staging, const void* memory, std::uint64_t bytes,
                         const gpuumd_wait* wait_in) {
  if (staging == nullptr || (memory == nullptr && bytes != 0)) return invalid("staging or memory");
  return begin(*staging->session, wait_in);
}

Outcome<void> settle(gpuumd_staging& staging, const Wait& wait) {
  auto done = reached(staging, staging.point, wait);
  // What an earlier copy failed with was told then.
  if (!done &&
      (done.error().status == GPUUMD_TIMEOUT || done.error().status == GPUUMD_DISCONNECTED))
    return done;
  return {};
}

Outcome<void> set_up(gpuumd_staging& staging, std::uint64_t bytes, const Wait& wait) {
  Session& session = *staging.session;
  wire::CreateBuffer create{};
  create.kind = GPUUMD_BUFFER_HOST;
  create.bytes = bytes;
  auto made = session.call(wire::RequestType::kCreateBuffer, create, wait);
  if (!made) return std::unexpected(made.error());
  auto buffer = make_buffer(staging.session, std::move(*made));
  if (!buffer) return std::unexpected(buffer.error());
  staging.buffer = std::move(*buffer);
  const auto view = cpu_view(*staging.buffer);
  if (!view) return std::unexpected(view.error());
  staging.data = static_cast<std::byte*>(*view);
  auto fence = session.call(wire::RequestType::kCreateFence, wire::CreateFence{}, wait);
  if (!fence) return std::unexpected(fence.error());
  if (fence->body.slot >= session.fence_slots())
    return fail(GPUUMD_PROTOCOL, "fence slot " + std::to_string(fence->body.slot));
  staging.fence = fence->body.object;
  staging.fence_slot = fence->body.slot;
  wire::Bind bind{};
  bind.vm = staging.vm;
  bind.count = 1;
  bind.operations[0] = {.kind = GPUUMD_BIND_MAP,
                        .flags = GPUUMD_BIND_READ | GPUUMD_BIND_WRITE,
                        .va = staging.va,
                        .bytes = bytes,
                        .buffer = staging.buffer->id,
                        .offset = 0,
                        .fault_window = 0,
                        .reserved = {}};
  constexpr std::size_t kOne = offsetof(wire::Bind, operations) + sizeof(wire::BindOperation);
  auto bound = session.call(wire::RequestType::kBind, bind, wait, kOne);
  if (!bound) return std::unexpected(bound.error());
  staging.bound = true;
  return {};
}

// Undoes what set_up() has done so far; the first failure counts, the rest is tried all the same.
Outcome<void> tear_down(gpuumd_staging& staging, const Wait& wait) {
  Session& session = *staging.session;
  Outcome<void> result;
  const auto keep = [&](Outcome<void> one) {
    if (result && !one) result = std::move(one);
  };
  if (staging.bound) {
    wire::Bind unbind{};
    unbind.vm = staging.vm;
    unbind.count = 1;
    unbind.operations[0].kind = GPUUMD_BIND_UNMAP;
    unbind.operations[0].va = staging.va;
    unbind.operations[0].bytes = staging.half * 2;
    constexpr std::size_t kOne = offsetof(wire::Bind, operations) + sizeof(wire::BindOperation);
    auto done = session.call(wire::RequestType::kBind, unbind, wait, kOne);
    if (!done) keep(std::unexpected(done.error()));
  }
  if (staging.fence != 0) keep(destroy_object(session, staging.fence, wait));
  if (staging.buffer) keep(destroy_object(session, staging.buffer->id, wait));
  return result;
}

}  // namespace

extern "C" {

gpuumd_status gpuumd_staging_create(gpuumd_queue* queue, const gpuumd_staging_options* in,
                                    const gpuumd_wait* wait_in, gpuumd_staging** staging) {
  return guarded([&]() -> Outcome<void> {
    if (queue == nullptr || in == nullptr || staging == nullptr)
      return invalid("queue, options or place for the staging");
    *staging = nullptr;
    const auto wait = begin(queue->queue->session(), wait_in);
    if (!wait) return std::unexpected(wait.error());
    const auto options = read_options(in, gpuumd_staging_options{}, "gpuumd_staging_options");
    if (!options) return std::unexpected(options.error());
    if (options->flags != 0) return invalid("staging flags " + std::to_string(options->flags));
    const std::uint64_t bytes = options->bytes != 0 ? options->bytes : kDefaultBytes;
    if (bytes % 8192 != 0) return invalid("staging of " + std::to_string(bytes) + " bytes");
    auto made = std::make_unique<gpuumd_staging>(queue, options->va, bytes);
    if (auto done = set_up(*made, bytes, *wait); !done) {
      (void)tear_down(*made, *wait);
      return done;
    }
    *staging = made.release();
    return {};
  });
}

gpuumd_status gpuumd_staging_destroy(gpuumd_staging* staging, const gpuumd_wait* wait_in) {
  if (staging == nullptr) return GPUUMD_OK;
  return guarded([&]() -> Outcome<void> {
    if (auto checked = staging->session->client().check_process(); !checked) return checked;
    const std::unique_ptr<gpuumd_staging> owned(staging);
    const auto wait = staging->session->client().make_wait(wait_in);
    if (!wait) return std::unexpected(wait.error());
    if (auto done = settle(*owned, *wait); !done) return done;
    return tear_down(*owned, *wait);
  });
}

gpuumd_status gpuumd_staging_upload(gpuumd_staging* staging, uint64_t to, const void* from,
                                    uint64_t bytes, const gpuumd_wait* wait_in) {
  return guarded([&]() -> Outcome<void> {
    const auto wait = begin_copy(staging, from, bytes, wait_in);
    if (!wait) return std::unexpected(wait.error());
    const std::lock_guard lock(staging->mutex);
    if (auto done = settle(*staging, *wait); !done) return done;
    const auto* source = static_cast<const std::byte*>(from);
    return pipeline(
        *staging, bytes, *wait,
        [&](std::uint64_t offset, std::uint64_t size, unsigned half) {
          std::memcpy(staging->data + half * staging->half, source + offset, size);
          return submit_copy(*staging, to + offset, staging->va + half * staging->half, size,
                             *wait);
        },
        [](std::uint64_t, std::uint64_t, unsigned) {});
  });
}

gpuumd_status gpuumd_staging_download(gpuumd_staging* staging, void* to, uint64_t from,
                                      uint64_t bytes, const gpuumd_wait* wait_in) {
  return guarded([&]() -> Outcome<void> {
    const auto wait = begin_copy(staging, to, bytes, wait_in);
    if (!wait) return std::unexpected(wait.error());
    const std::lock_guard lock(staging->mutex);
    if (auto done = settle(*staging, *wait); !done) return done;
    auto* target = static_cast<std::byte*>(to);
    return pipeline(
        *staging, bytes, *wait,
        [&](std::uint64_t offset, std::uint64_t size, unsigned half) {
          return submit_copy(*staging, staging->va + half * staging->half, from + offset, size,
                             *wait);
        },
        [&](std::uint64_t offset, std::uint64_t size, unsigned half) {
          std::memcpy(target + offset, staging->data + half * staging->half, size);
        });
  });
}

}  // extern "C"
