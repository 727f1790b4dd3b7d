// gpuumd.h: queues and their commands.
#include "libgpuumd/objects.h"

using namespace gpuumd::client;
namespace wire = gpuumd::wire;

namespace {

template <class Command>
Outcome<void> put(gpuumd_queue* queue, wire::Operation operation, Command command,
                  const gpuumd_wait* wait_in) {
  static_assert(sizeof(Command) == sizeof(wire::CommandSlot));
  if (queue == nullptr) return invalid("queue");
  const auto wait = begin(queue->queue->session(), wait_in);
  if (!wait) return std::unexpected(wait.error());
  command.header = {operation, 1, 0};
  wire::CommandSlot slot;
  std::memcpy(&slot, &command, sizeof(slot));
  return queue->queue->put(std::span(&slot, 1), *wait);
}

Outcome<void> put_fence(gpuumd_queue* queue, wire::Operation operation, gpuumd_fence* fence,
                        std::uint64_t point, const gpuumd_wait* wait) {
  if (queue == nullptr || fence == nullptr) return invalid("queue or fence");
  if (fence->session != queue->queue->session_ref())
    return invalid("fence of another device or session");
  if (point == 0) return invalid("point 0 of a fence");
  wire::FenceCommand command{};
  command.fence = fence->id;
  command.point = point;
  return put(queue, operation, command, wait);
}

bool wraps(std::uint64_t start, std::uint64_t bytes) { return bytes > UINT64_MAX - start; }

std::string range(const char* what, std::uint64_t at, std::uint64_t bytes) {
  return std::string(what) + " of " + std::to_string(bytes) + " bytes at address " +
         std::to_string(at);
}

}  // namespace

extern "C" {

gpuumd_status gpuumd_queue_create(gpuumd_vm* vm, const gpuumd_queue_options* options,
                                  const gpuumd_wait* wait_in, gpuumd_queue** queue) {
  return guarded([&]() -> Outcome<void> {
    if (vm == nullptr || queue == nullptr) return invalid("VM or place for the queue");
    *queue = nullptr;
    const auto wait = begin(*vm->session, wait_in);
    if (!wait) return std::unexpected(wait.error());
    auto made = Queue::create(vm->session, vm->id, options, *wait);
    if (!made) return std::unexpected(made.error());
    *queue = new gpuumd_queue{std::move(*made)};
    return {};
  });
}

gpuumd_status gpuumd_queue_destroy(gpuumd_queue* queue, const gpuumd_wait* wait) {
  if (queue == nullptr) return GPUUMD_OK;
  const auto session = queue->queue->session_ref();
  return destroy_handle(queue, session.get(), queue->queue->id(), wait);
}

uint64_t gpuumd_queue_id(const gpuumd_queue* queue) { return queue->queue->id(); }

gpuumd_status gpuumd_queue_copy(gpuumd_queue* queue, uint64_t to, uint64_t from, uint64_t bytes,
                                const gpuumd_wait* wait) {
  return guarded([&]() -> Outcome<void> {
    if (bytes == 0 || wraps(to, bytes) || wraps(from, bytes))
      return invalid(range("copy", to, bytes));
    wire::CopyCommand command{};
    command.to = to;
    command.from = from;
    command.bytes = bytes;
    return put(queue, wire::Operation::kCopy, command, wait);
  });
}

gpuumd_status gpuumd_queue_fill(gpuumd_queue* queue, uint64_t to, uint64_t bytes, uint32_t pattern,
                                const gpuumd_wait* wait) {
  return guarded([&]() -> Outcome<void> {
    if (bytes == 0 || (to | bytes) % 4 != 0 || wraps(to, bytes))
      return invalid(range("fill", to, bytes));
    wire::FillCommand command{};
    command.to = to;
    command.bytes = bytes;
    command.pattern = pattern;
    return put(queue, wire::Operation::kFill, command, wait);
  });
}

gpuumd_status gpuumd_queue_write(gpuumd_queue* queue, uint64_t to, const void* data, uint32_t bytes,
                                 const gpuumd_wait* wait_in) {
  return guarded([&]() -> Outcome<void> {
    if (queue == nullptr || data == nullptr) return invalid("queue or data");
    if (bytes == 0 || bytes > wire::kMaxWriteBytes || (to | bytes) % 4 != 0 || wraps(to, bytes))
      return invalid(range("write", to, bytes));
    const auto wait = begin(queue->queue->session(), wait_in);
    if (!wait) return std::unexpected(wait.error());
    wire::WriteCommand command{};
    command.header = {wire::Operation::kWrite, 2, 0};
    command.to = to;
    command.bytes = bytes;
    wire::CommandSlot slots[2] = {};
    std::memcpy(&slots[0], &command, sizeof(command));
    std::memcpy(&slots[1], data, bytes);
    return queue->queue->put(slots, *wait);
  });
}

gpuumd_status gpuumd_queue_atomic(gpuumd_queue* queue, uint64_t to, uint32_t operation,
                                  uint32_t width, uint64_t operand, uint64_t compare,
                                  const gpuumd_wait* wait) {
  return guarded([&]() -> Outcome<void> {
    if (operation < GPUUMD_ATOMIC_ADD || operation > GPUUMD_ATOMIC_COMPARE_SWAP)
      return invalid("atomic operation " + std::to_string(operation));
    if ((width != 4 && width != 8) || to % width != 0) return invalid(range("atomic", to, width));
    if (width == 4 && (operand > UINT32_MAX || compare > UINT32_MAX))
      return invalid("operand of a 4-byte atomic");
    if (operation != GPUUMD_ATOMIC_COMPARE_SWAP && compare != 0)
      return invalid("compare value of an atomic that does not compare");
    wire::AtomicCommand command{};
    command.to = to;
    command.operation = operation;
    command.width = width;
    command.operand = operand;
    command.compare = compare;
    return put(queue, wire::Operation::kAtomic, command, wait);
  });
}

gpuumd_status gpuumd_queue_wait_fence(gpuumd_queue* queue, gpuumd_fence* fence, uint64_t point,
                                      const gpuumd_wait* wait) {
  return guarded([&] { return put_fence(queue, wire::Operation::kWait, fence, point, wait); });
}

gpuumd_status gpuumd_queue_signal(gpuumd_queue* queue, gpuumd_fence* fence, uint64_t point,
                                  const gpuumd_wait* wait) {
  return guarded([&] { return put_fence(queue, wire::Operation::kSignal, fence, point, wait); });
}

gpuumd_status gpuumd_queue_timestamp(gpuumd_queue* queue, uint64_t to, const gpuumd_wait* wait) {
  return guarded([&]() -> Outcome<void> {
    if (to % 8 != 0) return invalid(range("timestamp", to, 8));
    wire::TimestampCommand command{};
    command.to = to;
    return put(queue, wire::Operation::kTimestamp, command, wait);
  });
}

gpuumd_status gpuumd_queue_submit(gpuumd_queue* queue) {
  return guarded([&]() -> Outcome<void> {
    if (queue == nullptr) return invalid("queue");
    Session& session = queue->queue->session();
    if (auto checked = session.client().check_process(); !checked) return checked;
    return queue->queue->submit();
  });
}

}  // extern "C"
