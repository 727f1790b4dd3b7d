// What crosses between a client and the daemon (docs/protocol.md): messages of the SEQPACKET
// socket, requests and replies of a session's rings, commands of a queue's ring, fences and events.
// Fixed widths, little-endian, no padding that is not named. Either side may be hostile: whoever
// reads one of these from shared memory copies it once, checks the copy and uses the copy.
//
// Reserved fields are zero; a request in which one is not is refused (VMB-16).
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace gpuumd::wire {

inline constexpr std::uint32_t kVersion = 1;     // of this page
inline constexpr std::uint32_t kMinVersion = 1;  // oldest that is still understood
inline constexpr const char* kSocketName = "gpuumd.sock";
inline constexpr const char* kLockName = "gpuumd.lock";
inline constexpr std::size_t kMaxMessage = 16384;  // of the socket, bytes
inline constexpr std::size_t kMaxDescriptors = 8;  // of one message
inline constexpr std::uint32_t kMaxDevices = 64;
inline constexpr std::size_t kNameBytes = 64;   // text fields end with a 0
inline constexpr std::size_t kTextBytes = 192;  // error texts

// ---- socket ----

enum class MessageType : std::uint32_t {
  kHello = 1,
  kWelcome,
  kListDevices,
  kDevices,
  kOpenSession,
  kSessionOpened,
  kCloseSession,
  kSessionClosed,
  kQuery,
  kQueryReply,  // one descriptor: a memfd with `bytes` of JSON, sealed against writing
  kDescriptors,
  kError,  // the answer to any request that failed
};

struct MessageHeader {
  MessageType type;
  std::uint32_t size;  // of the whole message, exact
  std::uint64_t id;    // chosen by who asks, repeated in the answer
};
static_assert(sizeof(MessageHeader) == 16);

struct Hello {
  MessageHeader header;
  std::uint32_t version;
  std::uint32_t min_version;
  std::uint64_t capabilities;  // 0
  char name[kNameBytes];       // of the program, for people
  std::uint64_t reserved[2];
};
static_assert(sizeof(Hello) == 112);

struct Welcome {
  MessageHeader header;
  std::uint32_t version;  // the one both use
  std::uint32_t device_count;
  std::uint64_t capabilities;  // 0
  std::uint64_t boot_id;       // differs after each start of the daemon
  std::uint64_t reserved[2];
};
static_assert(sizeof(Welcome) == 56);

struct ErrorMessage {
  MessageHeader header;
  std::int32_t status;  // gpuumd_status
  std::uint32_t reserved;
  char text[kTextBytes];
};
static_assert(sizeof(ErrorMessage) == 216);

// gpuumd_device_info without its `size`.
struct DeviceInfo {
  std::uint32_t index;
  std::uint32_t flags;
  std::uint32_t state;
  std::uint32_t pci_id;
  std::uint32_t accelerator_id;
  std::uint32_t vpod_id;
  std::uint64_t pod_id;
  std::uint64_t vram_bytes;
  std::uint64_t va_first;
  std::uint64_t va_end;
  std::uint64_t page_sizes;
  std::uint32_t max_vms;
  std::uint32_t bind_alignment;
  std::uint32_t max_queue_slots;
  std::uint32_t reserved0;
  std::uint64_t timestamp_hz;
  char name[kNameBytes];
  std::uint64_t reserved[2];
};
static_assert(sizeof(DeviceInfo) == 168);

struct ListDevices {
  MessageHeader header;
};
struct Devices {  // followed by `count` times DeviceInfo
  MessageHeader header;
  std::uint32_t count;
  std::uint32_t reserved;
};
static_assert(sizeof(Devices) == 24 &&
              sizeof(Devices) + kMaxDevices * sizeof(DeviceInfo) <= kMaxMessage);

struct OpenSession {
  MessageHeader header;
  std::uint32_t device;  // index; looked at when `name` is empty
  std::uint32_t flags;   // 0
  char name[kNameBytes];
  std::uint64_t reserved[2];
};
static_assert(sizeof(OpenSession) == 104);

// Where the parts of the session's memory are: byte offsets in the control memfd.
struct SessionLayout {
  std::uint32_t control_bytes;
  std::uint32_t requests_offset;
  std::uint32_t replies_offset;
  std::uint32_t events_offset;
  std::uint32_t request_slots;  // powers of two
  std::uint32_t reply_slots;
  std::uint32_t event_slots;
  std::uint32_t fence_slots;  // 64 bytes each, in the fence memfd
};
static_assert(sizeof(SessionLayout) == 32);

// Descriptors, in this order.
enum class SessionDescriptor : std::uint32_t {
  kControl,    // memfd: SessionPage, then the slots of the three rings
  kFences,     // memfd of FenceSlots, not writable for the client
  kDoorbell,   // eventfd: the client wakes the daemon
  kReplyWake,  // read end of a pipe: the daemon wakes the client for a reply
  kEventWake,  // read end of a pipe: readable while events may be there
};
inline constexpr std::size_t kSessionDescriptors = 5;

struct SessionOpened {
  MessageHeader header;
  std::uint64_t session;
  SessionLayout layout;
  DeviceInfo device;
  std::uint64_t reserved[2];
};
static_assert(sizeof(SessionOpened) == 240);

struct CloseSession {
  MessageHeader header;
  std::uint64_t session;
};
static_assert(sizeof(CloseSession) == 24);
using SessionClosed = CloseSession;

// gpuumd_query(); `kind` is GPUUMD_QUERY_*, `device` an index or 0xFFFF_FFFF.
struct Query {
  MessageHeader header;
  std::uint32_t kind;
  std::uint32_t device;
  std::uint64_t reserved[2];
};
static_assert(sizeof(Query) == 40);

struct QueryReply {
  MessageHeader header;
  std::uint64_t bytes;
};
static_assert(sizeof(QueryReply) == 24);

// Carries descriptors for a request or reply of a ring, which names the tag. From the client it is
// sent before the request; from the daemon it has been sent before the reply can be seen.
struct Descriptors {
  MessageHeader header;  // id 0
  std::uint64_t session;
  std::uint32_t tag;    // not 0; chosen by the sender
  std::uint32_t count;  // 1..kMaxDescriptors
};
static_assert(sizeof(Descriptors) == 32);

// ---- rings of a session ----

inline constexpr std::size_t kCacheLine = 64;

// Free-running indices of a ring with one producer and one consumer, a cache line each. Slot of
// index i: i & (slots - 1). A claimed fill above `slots` is a protocol error.
struct RingIndices {
  alignas(kCacheLine) std::uint32_t tail;  // the producer writes
  alignas(kCacheLine) std::uint32_t head;  // the consumer writes
};
static_assert(sizeof(RingIndices) == 128);

// At byte 0 of the control memfd. `*_sleeping` are 1 while that side must be woken; whoever
// published something executes a seq_cst fence before it looks.
struct SessionPage {
  alignas(kCacheLine) std::uint32_t daemon_sleeping;  // daemon; also for the rings of the queues
  alignas(kCacheLine) std::uint32_t client_sleeping;  // client: the reader of replies sleeps
  RingIndices requests;                               // client -> daemon, RequestSlot
  RingIndices replies;                                // daemon -> client, ReplySlot
  RingIndices events;                                 // daemon -> client, EventSlot
  alignas(kCacheLine) std::uint64_t events_lost;      // daemon
};
static_assert(sizeof(SessionPage) == 576);

// At byte 0 of the memfd of a queue; the slots follow at kQueueSlotsOffset. A client that waits for
// room sets producer_sleeping and waits with a futex on ring.head.
struct QueuePage {
  RingIndices ring;  // client -> daemon, CommandSlot
  alignas(kCacheLine) std::uint32_t producer_sleeping;
};
inline constexpr std::size_t kQueueSlotsOffset = 4096;
inline constexpr std::uint32_t kMinQueueSlots = 16;
inline constexpr std::uint32_t kMaxQueueSlots = 65536;

enum class RequestType : std::uint32_t {
  kNop = 1,
  kCreateVm,
  kCreateBuffer,
  kBind,
  kCreateQueue,
  kCreateFence,
  kWaitFence,
  kDestroy,
  kExport,
  kRevoke,
  kImport,
  kShare,
  kOpenShared,
  kQueryObject,
};
inline constexpr std::uint32_t kLastRequestType = 14;

struct RequestHeader {
  RequestType type;
  std::uint32_t size;            // header and body, exact for the type
  std::uint64_t id;              // not 0, unique among the session's open requests
  std::uint32_t descriptor_tag;  // 0: none
  std::uint32_t reserved;
};
static_assert(sizeof(RequestHeader) == 24);

inline constexpr std::size_t kRequestSlotBytes = 1024;
struct RequestSlot {
  alignas(8) std::byte bytes[kRequestSlotBytes];
};

struct Nop {
  RequestHeader header;
};

struct CreateVm {
  RequestHeader header;
  std::uint32_t flags;  // GPUUMD_VM_*
  std::uint32_t reserved;
};
static_assert(sizeof(CreateVm) == 32);

struct CreateBuffer {
  RequestHeader header;
  std::uint32_t kind;
  std::uint32_t flags;
  std::uint64_t bytes;
  std::uint64_t alignment;  // gpuumd_buffer_options
};
static_assert(sizeof(CreateBuffer) == 48);

struct BindOperation {
  std::uint32_t kind;
  std::uint32_t flags;
  std::uint64_t va;
  std::uint64_t bytes;
  std::uint64_t buffer;
  std::uint64_t offset;
  std::uint64_t fault_window;
  std::uint64_t reserved[2];
};
static_assert(sizeof(BindOperation) == 64);
inline constexpr std::uint32_t kMaxBindOperations = 12;

struct Bind {  // size covers `count` operations and no more
  RequestHeader header;
  std::uint64_t vm;
  std::uint32_t count;
  std::uint32_t flags;  // 0: synchronous
  std::uint64_t reserved;
  BindOperation operations[kMaxBindOperations];
};
static_assert(sizeof(Bind) == 48 + 64 * kMaxBindOperations && sizeof(Bind) <= kRequestSlotBytes);

struct CreateQueue {
  RequestHeader header;
  std::uint64_t vm;
  std::uint32_t slots;
  std::uint32_t priority;
  std::uint32_t flags;  // 0
  std::uint32_t reserved;
};
static_assert(sizeof(CreateQueue) == 48);

struct CreateFence {
  RequestHeader header;
  std::uint32_t flags;  // 0
  std::uint32_t reserved;
};
static_assert(sizeof(CreateFence) == 32);

// Answered when the fence reaches the point, when its work failed, or with GPUUMD_TIMEOUT.
struct WaitFence {
  RequestHeader header;
  std::uint64_t fence;
  std::uint64_t point;
  std::uint64_t timeout_ns;
};
static_assert(sizeof(WaitFence) == 48);

struct ObjectRequest {
  RequestHeader header;
  std::uint64_t object;
  std::uint64_t reserved;
};
static_assert(sizeof(ObjectRequest) == 40);
using Destroy = ObjectRequest;  // any object; an import is released to its exporter
using Export = ObjectRequest;   // a buffer
using Revoke = ObjectRequest;   // an exported buffer
using Share = ObjectRequest;    // a buffer
using QueryObject = ObjectRequest;

struct Import {
  RequestHeader header;
  std::uint64_t handle_lo;
  std::uint64_t handle_hi;
  std::uint32_t flags;  // 0
  std::uint32_t reserved;
  std::uint64_t timeout_ns;
};
static_assert(sizeof(Import) == 56);

struct OpenShared {  // with one descriptor
  RequestHeader header;
  std::uint32_t flags;  // 0
  std::uint32_t reserved;
};
static_assert(sizeof(OpenShared) == 32);

inline constexpr std::size_t kReplySlotBytes = 256;
struct ReplyHeader {
  std::uint64_t id;
  std::int32_t status;           // gpuumd_status; not 0: a text of `text_bytes` follows
  std::uint32_t descriptor_tag;  // 0: none
  std::uint32_t descriptor_count;
  std::uint32_t text_bytes;
};
static_assert(sizeof(ReplyHeader) == 24);

// What a reply says, by the type of the request. All other fields are 0.
struct ReplyBody {
  std::uint64_t object;      // Create*, Import, OpenShared
  std::uint64_t bytes;       // CreateBuffer, Import, OpenShared: size of the buffer
  std::uint64_t page_bytes;  // CreateBuffer, OpenShared
  std::uint32_t kind;  // CreateBuffer, Import, OpenShared: GPUUMD_BUFFER_*; QueryObject: ObjectKind
  std::uint32_t slot;  // CreateFence: in the fence memfd. CreateQueue: slots of the ring
  std::uint64_t value;      // WaitFence: of the fence
  std::uint64_t handle_lo;  // Export
  std::uint64_t handle_hi;
  std::int32_t state;  // QueryObject: gpuumd_status, 0 while the object is good
  std::uint32_t reserved;
};
static_assert(sizeof(ReplyBody) == 64);

struct ReplySlot {
  ReplyHeader header;
  union {
    ReplyBody body;
    char text[kReplySlotBytes - sizeof(ReplyHeader)];
  };
};
static_assert(sizeof(ReplySlot) == kReplySlotBytes);

// What of a reply's slot means anything, for copying: a multiple of 8, whatever the header says.
constexpr std::size_t used_bytes(const ReplyHeader& header) {
  if (header.status == 0) return sizeof(ReplyHeader) + sizeof(ReplyBody);
  const std::size_t text = (std::size_t{header.text_bytes} + 7) / 8 * 8;
  return text < sizeof(ReplySlot) - sizeof(ReplyHeader) ? sizeof(ReplyHeader) + text
                                                        : sizeof(ReplySlot);
}

enum class ObjectKind : std::uint32_t { kVm = 1, kBuffer, kQueue, kFence };

struct EventSlot {
  std::uint32_t kind;   // GPUUMD_EVENT_*
  std::uint32_t count;  // merged
  std::uint64_t object;
  std::uint64_t va;
  std::uint32_t access;
  std::uint32_t reason;
  std::uint64_t time_ns;
  std::uint64_t reserved[3];
};
static_assert(sizeof(EventSlot) == 64);

// ---- fences ----

// A reader takes one acquire load of `value` and keeps the largest it has seen (the GPU writes the
// low half first). With an error, points from first_failed_point on are failed: the daemon stores
// both, then raises the value past every point promised so far.
struct FenceSlot {
  std::uint64_t value;  // GPU or daemon
  std::int32_t error;   // daemon: gpuumd_status
  std::uint32_t reserved;
  std::uint64_t first_failed_point;  // daemon
  std::uint64_t pad[5];
};
static_assert(sizeof(FenceSlot) == 64);

// ---- commands of a queue ----

enum class Operation : std::uint16_t {
  kCopy = 1,
  kFill,
  kWrite,
  kAtomic,
  kWait,
  kSignal,
  kTimestamp,
};

struct CommandSlot {
  alignas(8) std::byte bytes[64];
};
inline constexpr std::uint32_t kMaxCommandSlots = 2;
inline constexpr std::uint32_t kMaxWriteBytes = 64;

struct CommandHeader {
  Operation operation;
  std::uint16_t slots;  // 2 for kWrite, else 1
  std::uint32_t flags;  // 0
};
static_assert(sizeof(CommandHeader) == 8);

struct CopyCommand {
  CommandHeader header;
  std::uint64_t to;
  std::uint64_t from;
  std::uint64_t bytes;
  std::uint64_t reserved[4];
};
struct FillCommand {
  CommandHeader header;
  std::uint64_t to;
  std::uint64_t bytes;
  std::uint32_t pattern;
  std::uint32_t reserved0;
  std::uint64_t reserved[4];
};
struct WriteCommand {  // the payload is the second slot; unused bytes of it are 0
  CommandHeader header;
  std::uint64_t to;
  std::uint32_t bytes;
  std::uint32_t reserved0;
  std::uint64_t reserved[5];
};
struct AtomicCommand {
  CommandHeader header;
  std::uint64_t to;
  std::uint32_t operation;  // GPUUMD_ATOMIC_*
  std::uint32_t width;      // 4 or 8
  std::uint64_t operand;
  std::uint64_t compare;  // 0 unless COMPARE_SWAP
  std::uint64_t reserved[3];
};
struct FenceCommand {  // kWait, kSignal
  CommandHeader header;
  std::uint64_t fence;  // object id
  std::uint64_t point;
  std::uint64_t reserved[5];
};
struct TimestampCommand {
  CommandHeader header;
  std::uint64_t to;
  std::uint64_t reserved[6];
};
static_assert(sizeof(CopyCommand) == 64 && sizeof(FillCommand) == 64 && sizeof(WriteCommand) == 64);
static_assert(sizeof(AtomicCommand) == 64 && sizeof(FenceCommand) == 64 &&
              sizeof(TimestampCommand) == 64);
static_assert(std::is_standard_layout_v<Bind> && std::is_trivially_copyable_v<Bind>);

}  // namespace gpuumd::wire
