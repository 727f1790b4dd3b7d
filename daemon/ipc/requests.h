// What a client asks, decoded and checked for shape: sizes, known flags, reserved fields zero.
// Whether an object exists, belongs to the session, or a range fits it, is for the SessionHandler
// to check.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "base/address.h"
#include "base/fd.h"
#include "daemon/ipc/foreign_fd.h"
#include "daemon/ipc/share_table.h"

namespace gpuumd {

using ObjectId = base::Id<struct ObjectIdTag, std::uint64_t>;    // 0 is none; unique in the daemon
using SessionId = base::Id<struct SessionIdTag, std::uint64_t>;  // likewise
using RequestId = base::Id<struct RequestIdTag, std::uint64_t>;  // of the client, names a reply

struct ExportHandle {
  std::uint64_t lo = 0;
  std::uint64_t hi = 0;
  friend bool operator==(const ExportHandle&, const ExportHandle&) = default;
};

namespace request {

struct Nop {};
struct CreateVm {
  bool faults = false;  // binds may be on fault
};
enum class Memory : std::uint8_t { kVram, kHost };
struct CreateBuffer {
  Memory kind = Memory::kVram;
  std::uint64_t bytes = 0;      // not 0, not rounded yet
  std::uint64_t alignment = 0;  // 0 or a power of two; what can be had is for the handler
};
struct BindOperation {
  bool map = false;  // else unmap: only va and bytes count
  bool read = false;
  bool write = false;
  bool on_fault = false;
  base::GpuVa va;           // multiple of 4 KiB
  std::uint64_t bytes = 0;  // not 0, multiple of 4 KiB, va + bytes does not wrap
  ObjectId buffer;
  std::uint64_t offset = 0;        // multiple of 4 KiB, offset + bytes does not wrap
  std::uint64_t fault_window = 0;  // 0 (2 MiB) or a power of two from 4 KiB
};
struct Bind {
  ObjectId vm;
  std::vector<BindOperation> operations;  // 1..wire::kMaxBindOperations
};
struct CreateQueue {
  ObjectId vm;
  std::uint32_t slots = 0;  // power of two, kMinQueueSlots..kMaxQueueSlots
  bool high_priority = false;
};
struct CreateFence {};
struct WaitFence {
  ObjectId fence;
  std::uint64_t point = 0;  // not 0
  std::uint64_t timeout_ns = 0;
};
struct Destroy {
  ObjectId object;
};
struct Export {
  ObjectId buffer;
};
struct Revoke {
  ObjectId buffer;
};
struct Import {
  ExportHandle handle;
  std::uint64_t timeout_ns = 0;
};
struct Share {
  ObjectId buffer;
};
struct OpenShared {
  ShareKey key;  // of a descriptor that this daemon made; the table may not know it any more
  ForeignFd descriptor;  // keep it until the answer, so that the reference stays; nothing else
};
struct QueryObject {
  ObjectId object;
};

}  // namespace request

using Request = std::variant<request::Nop, request::CreateVm, request::CreateBuffer, request::Bind,
                             request::CreateQueue, request::CreateFence, request::WaitFence,
                             request::Destroy, request::Export, request::Revoke, request::Import,
                             request::Share, request::OpenShared, request::QueryObject>;

// The commands of a submission ring, decoded and checked for shape. Addresses are GpuVa of the
// queue's VM and not checked against its mappings.
namespace command {

struct Copy {
  base::GpuVa to, from;
  std::uint64_t bytes = 0;  // not 0; neither range wraps
};
struct Fill {
  base::GpuVa to;           // multiple of 4
  std::uint64_t bytes = 0;  // multiple of 4, not 0
  std::uint32_t pattern = 0;
};
struct Write {
  base::GpuVa to;           // multiple of 4
  std::uint32_t bytes = 0;  // 4..64, multiple of 4
  std::byte data[64] = {};
};
enum class AtomicOperation : std::uint8_t { kAdd = 1, kAnd, kOr, kXor, kSwap, kCompareSwap };
struct Atomic {
  base::GpuVa to;  // multiple of `width`
  AtomicOperation operation = AtomicOperation::kAdd;
  std::uint8_t width = 4;  // bytes: 4 or 8
  std::uint64_t operand = 0;
  std::uint64_t compare = 0;
};
struct Wait {
  ObjectId fence;
  std::uint64_t point = 0;  // not 0
};
struct Signal {
  ObjectId fence;
  std::uint64_t point = 0;  // not 0; whether it rises is for the fence's owner to check
};
struct Timestamp {
  base::GpuVa to;  // multiple of 8
};

}  // namespace command

using Command = std::variant<command::Copy, command::Fill, command::Write, command::Atomic,
                             command::Wait, command::Signal, command::Timestamp>;

// What a request is answered with when it succeeded. Which alternative goes with which request is
// said at each; Done is for Nop, Bind, Destroy and Revoke.
namespace reply {

struct Done {};
struct Created {  // CreateVm
  ObjectId object;
};
struct BufferReady {  // CreateBuffer, Import, OpenShared
  ObjectId object;
  std::uint32_t kind = 0;        // GPUUMD_BUFFER_*
  std::uint64_t bytes = 0;       // multiple of 4 KiB
  std::uint64_t page_bytes = 0;  // host memory: pages behind it
  base::UniqueFd memory;         // host memory: its memfd (sealed SHRINK, GROW, SEAL); else none
};
struct QueueReady {  // CreateQueue
  ObjectId object;
  std::uint32_t slots = 0;
  base::UniqueFd ring;  // QueueRing::take_descriptor()
};
struct FenceReady {  // CreateFence
  ObjectId object;
  std::uint32_t slot = 0;  // in the session's fence memfd
};
struct FenceReached {  // WaitFence
  std::uint64_t value = 0;
};
struct Exported {  // Export
  ExportHandle handle;
};
struct Shared {  // Share
  base::UniqueFd descriptor;
};
struct ObjectState {       // QueryObject
  std::uint32_t kind = 0;  // wire::ObjectKind
  std::int32_t state = 0;  // gpuumd_status: 0, or why the object is no good any more
};

}  // namespace reply

using Reply = std::variant<reply::Done, reply::Created, reply::BufferReady, reply::QueueReady,
                           reply::FenceReady, reply::FenceReached, reply::Exported, reply::Shared,
                           reply::ObjectState>;

}  // namespace gpuumd
