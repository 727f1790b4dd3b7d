#include "daemon/ipc/request_decode.h"

#include <algorithm>
#include <bit>
#include <cinttypes>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <string>

#include "base/bytes.h"
#include "gpuumd/gpuumd.h"

namespace gpuumd {
namespace {

using base::Errc;
using base::fail;
using base::Result;
using Bytes = std::span<const std::byte>;

std::unexpected<base::Error> bad(std::string text) {
  return fail(Errc::kInvalidArgument, std::move(text));
}

template <class T>
Result<T> body(Bytes bytes, std::string_view name) {
  if (bytes.size() != sizeof(T))
    return bad(std::string(name) + " request of " + std::to_string(bytes.size()) + " bytes, not " +
               std::to_string(sizeof(T)));
  return base::load<T>(bytes, 0);
}

std::unexpected<base::Error> reserved(std::string_view name) {
  return bad("reserved field of " + std::string(name) + " request is not 0");
}
std::unexpected<base::Error> flags(std::string_view name, std::uint32_t value) {
  return bad("unknown flags " + std::to_string(value) + " of " + std::string(name) + " request");
}

bool wraps(std::uint64_t start, std::uint64_t bytes) {
  return bytes > std::numeric_limits<std::uint64_t>::max() - start;
}

Result<Request> decode_create_vm(Bytes bytes) {
  const auto in = body<wire::CreateVm>(bytes, "create VM");
  if (!in) return std::unexpected(in.error());
  if ((in->flags & ~std::uint32_t{GPUUMD_VM_FAULTS}) != 0) return flags("create VM", in->flags);
  if (in->reserved != 0) return reserved("create VM");
  return request::CreateVm{.faults = (in->flags & GPUUMD_VM_FAULTS) != 0};
}

Result<Request> decode_create_buffer(Bytes bytes) {
  const auto in = body<wire::CreateBuffer>(bytes, "create buffer");
  if (!in) return std::unexpected(in.error());
  if (in->flags != 0) return flags("create buffer", in->flags);
  if (in->kind != GPUUMD_BUFFER_VRAM && in->kind != GPUUMD_BUFFER_HOST)
    return bad("buffer kind " + std::to_string(in->kind));
  if (in->bytes == 0) return bad("buffer of 0 bytes");
  if (in->alignment != 0 && !std::has_single_bit(in->alignment))
    return bad("buffer alignment " + std::to_string(in->alignment) + " is no power of two");
  const auto kind =
      in->kind == GPUUMD_BUFFER_VRAM ? request::Memory::kVram : request::Memory::kHost;
  return request::CreateBuffer{.kind = kind, .bytes = in->bytes, .alignment = in->alignment};
}

std::string bind_text(const wire::BindOperation& in) {
  char text[64];
  std::snprintf(text, sizeof(text), "bind of %" PRIu64 " bytes at 0x%012" PRIx64, in.bytes, in.va);
  return text;
}

Result<request::BindOperation> decode_operation(const wire::BindOperation& in) {
  constexpr std::uint32_t kRights = GPUUMD_BIND_READ | GPUUMD_BIND_WRITE;
  if (in.reserved[0] != 0 || in.reserved[1] != 0) return reserved("bind");
  if (in.kind != GPUUMD_BIND_MAP && in.kind != GPUUMD_BIND_UNMAP)
    return bad("bind operation kind " + std::to_string(in.kind));
  if (in.bytes == 0 || !base::is_aligned(in.va | in.bytes, base::kPageSize))
    return bad(bind_text(in) + ": both must be multiples of 4096, the size not 0");
  if (wraps(in.va, in.bytes))
    return fail(Errc::kOutOfRange, bind_text(in) + ": past the last address");
  request::BindOperation out;
  out.va = base::GpuVa(in.va);
  out.bytes = in.bytes;
  if (in.kind == GPUUMD_BIND_UNMAP) {
    if ((in.flags | in.buffer | in.offset | in.fault_window) != 0)
      return bad("unmap with a buffer, offset, flag or window");
    return out;
  }
  if ((in.flags & ~(kRights | GPUUMD_BIND_ON_FAULT)) != 0) return flags("bind", in.flags);
  if ((in.flags & kRights) == 0) return bad("bind without a right");
  if (in.buffer == 0) return bad("bind without a buffer");
  if (!base::is_aligned(in.offset, base::kPageSize))
    return bad("bind at buffer offset " + std::to_string(in.offset) + ", not a multiple of 4096");
  if (wraps(in.offset, in.bytes)) return fail(Errc::kOutOfRange, "bind past the end of its buffer");
  if (in.fault_window != 0 &&
      (!std::has_single_bit(in.fault_window) || in.fault_window < base::kPageSize))
    return bad("fault window of " + std::to_string(in.fault_window) +
               " bytes: a power of two from 4096");
  out.map = true;
  out.read = (in.flags & GPUUMD_BIND_READ) != 0;
  out.write = (in.flags & GPUUMD_BIND_WRITE) != 0;
  out.on_fault = (in.flags & GPUUMD_BIND_ON_FAULT) != 0;
  out.buffer = ObjectId(in.buffer);
  out.offset = in.offset;
  out.fault_window = in.fault_window;
  return out;
}

Result<Request> decode_bind(Bytes bytes) {
  constexpr std::size_t kFixed = offsetof(wire::Bind, operations);
  if (bytes.size() < kFixed || bytes.size() > sizeof(wire::Bind))
    return bad("bind request of " + std::to_string(bytes.size()) + " bytes");
  wire::Bind in{};
  std::memcpy(&in, bytes.data(), bytes.size());
  if (in.count == 0 || in.count > wire::kMaxBindOperations)
    return bad("bind of " + std::to_string(in.count) + " operations, 1 to " +
               std::to_string(wire::kMaxBindOperations) + " are possible");
  if (bytes.size() != kFixed + in.count * sizeof(wire::BindOperation))
    return bad("bind request of " + std::to_string(bytes.size()) + " bytes for " +
               std::to_string(in.count) + " operations");
  if (in.flags != 0) return flags("bind", in.flags);
  if (in.reserved != 0) return reserved("bind");
  request::Bind out{.vm = ObjectId(in.vm), .operations = {}};
  for (std::uint32_t i = 0; i < in.count; ++i) {
    auto operation = decode_operation(in.operations[i]);
    if (!operation) return std::unexpected(std::move(operation.error()));
    out.operations.push_back(*operation);
  }
  return out;
}

Result<Request> decode_create_queue(Bytes bytes) {
  const auto in = body<wire::CreateQueue>(bytes, "create queue");
  if (!in) return std::unexpected(in.error());
  if (in->flags != 0) return flags("create queue", in->flags);
  if (in->reserved != 0) return reserved("create queue");
  if (in->priority > 1) return bad("queue priority " + std::to_string(in->priority));
  if (!std::has_single_bit(in->slots) || in->slots < wire::kMinQueueSlots ||
      in->slots > wire::kMaxQueueSlots)
    return bad("queue of " + std::to_string(in->slots) + " slots");
  return request::CreateQueue{
      .vm = ObjectId(in->vm), .slots = in->slots, .high_priority = in->priority == 1};
}

Result<Request> decode_create_fence(Bytes bytes) {
  const auto in = body<wire::CreateFence>(bytes, "create fence");
  if (!in) return std::unexpected(in.error());
  if (in->flags != 0) return flags("create fence", in->flags);
  if (in->reserved != 0) return reserved("create fence");
  return request::CreateFence{};
}

Result<Request> decode_wait_fence(Bytes bytes) {
  const auto in = body<wire::WaitFence>(bytes, "wait for fence");
  if (!in) return std::unexpected(in.error());
  if (in->point == 0) return bad("wait for point 0 of a fence");
  return request::WaitFence{
      .fence = ObjectId(in->fence), .point = in->point, .timeout_ns = in->timeout_ns};
}

Result<Request> decode_import(Bytes bytes) {
  const auto in = body<wire::Import>(bytes, "import");
  if (!in) return std::unexpected(in.error());
  if (in->flags != 0) return flags("import", in->flags);
  if (in->reserved != 0) return reserved("import");
  return request::Import{.handle = {in->handle_lo, in->handle_hi}, .timeout_ns = in->timeout_ns};
}

Result<Request> decode_open_shared(Bytes bytes, ForeignFd descriptor) {
  const auto in = body<wire::OpenShared>(bytes, "open shared");
  if (!in) return std::unexpected(in.error());
  if (in->flags != 0) return flags("open shared", in->flags);
  if (in->reserved != 0) return reserved("open shared");
  if (!descriptor) return bad("open shared request without a descriptor");
  const auto key = identify_share(descriptor.get());
  if (!key) return fail(Errc::kNotFound, "descriptor is no buffer of this daemon");
  return request::OpenShared{.key = *key, .descriptor = std::move(descriptor)};
}

template <class Out, ObjectId Out::* kMember>
Result<Request> decode_object(Bytes bytes, std::string_view name) {
  const auto in = body<wire::ObjectRequest>(bytes, name);
  if (!in) return std::unexpected(in.error());
  if (in->reserved != 0) return reserved(name);
  Out out;
  out.*kMember = ObjectId(in->object);
  return out;
}

}  // namespace

std::string_view request_name(wire::RequestType type) {
  using wire::RequestType;
  switch (type) {
    case RequestType::kNop:
      return "nop";
    case RequestType::kCreateVm:
      return "create VM";
    case RequestType::kCreateBuffer:
      return "create buffer";
    case RequestType::kBind:
      return "bind";
    case RequestType::kCreateQueue:
      return "create queue";
    case RequestType::kCreateFence:
      return "create fence";
    case RequestType::kWaitFence:
      return "wait for fence";
    case RequestType::kDestroy:
      return "destroy";
    case RequestType::kExport:
      return "export";
    case RequestType::kRevoke:
      return "revoke";
    case RequestType::kImport:
      return "import";
    case RequestType::kShare:
      return "share";
    case RequestType::kOpenShared:
      return "open shared";
    case RequestType::kQueryObject:
      return "query object";
  }
  return "unknown";
}

Result<Request> decode_request(std::span<const std::byte> bytes, ForeignFd descriptor) {
  using wire::RequestType;
  const auto header = base::load<wire::RequestHeader>(bytes, 0);
  const std::string_view name = request_name(header.type);
  if (header.reserved != 0) return reserved(name);
  if (descriptor && header.type != RequestType::kOpenShared)
    return bad(std::string(name) + " request with a descriptor");
  switch (header.type) {
    case RequestType::kNop: {
      const auto in = body<wire::Nop>(bytes, name);
      if (!in) return std::unexpected(in.error());
      return request::Nop{};
    }
    case RequestType::kCreateVm:
      return decode_create_vm(bytes);
    case RequestType::kCreateBuffer:
      return decode_create_buffer(bytes);
    case RequestType::kBind:
      return decode_bind(bytes);
    case RequestType::kCreateQueue:
      return decode_create_queue(bytes);
    case RequestType::kCreateFence:
      return decode_create_fence(bytes);
    case RequestType::kWaitFence:
      return decode_wait_fence(bytes);
    case RequestType::kDestroy:
      return decode_object<request::Destroy, &request::Destroy::object>(bytes, name);
    case RequestType::kExport:
      return decode_object<request::Export, &request::Export::buffer>(bytes, name);
    case RequestType::kRevoke:
      return decode_object<request::Revoke, &request::Revoke::buffer>(bytes, name);
    case RequestType::kImport:
      return decode_import(bytes);
    case RequestType::kShare:
      return decode_object<request::Share, &request::Share::buffer>(bytes, name);
    case RequestType::kOpenShared:
      return decode_open_shared(bytes, std::move(descriptor));
    case RequestType::kQueryObject:
      return decode_object<request::QueryObject, &request::QueryObject::object>(bytes, name);
  }
  return fail(Errc::kUnsupported,
              "request type " + std::to_string(static_cast<std::uint32_t>(header.type)));
}

}  // namespace gpuumd
