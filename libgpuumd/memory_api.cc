// gpuumd.h: buffers, export and import, sharing.
#include <sys/mman.h>

#include <cstdio>

#include "libgpuumd/objects.h"

using namespace gpuumd::client;
namespace wire = gpuumd::wire;

namespace gpuumd::client {

Outcome<std::unique_ptr<gpuumd_buffer>> make_buffer(std::shared_ptr<Session> session, Reply reply) {
  const wire::ReplyBody& body = reply.body;
  std::unique_ptr<gpuumd_buffer> buffer(new gpuumd_buffer{
      std::move(session), body.object, body.kind, body.bytes, body.page_bytes, {}, {}, {}});
  if (reply.descriptors.size() > 1 ||
      (body.kind == GPUUMD_BUFFER_HOST) == reply.descriptors.empty())
    return fail(GPUUMD_PROTOCOL, "descriptors of a buffer");
  if (!reply.descriptors.empty()) buffer->memory = std::move(reply.descriptors[0]);
  return buffer;
}

Outcome<void*> cpu_view(gpuumd_buffer& buffer) {
  if (!buffer.memory)
    return fail(GPUUMD_UNSUPPORTED, "CPU view of a buffer that is not in host memory");
  const std::lock_guard lock(buffer.mutex);
  if (!buffer.view) {
    const auto sealed = base::sealed_size(buffer.memory.get());
    if (!sealed || *sealed < buffer.bytes)
      return fail(GPUUMD_PROTOCOL, "memory of a host buffer is too small or not sealed");
    auto view = base::Mapping::map(buffer.memory.get(), 0, buffer.bytes, PROT_READ | PROT_WRITE);
    if (!view) return system_failure(view.error());
    ::madvise(view->data(), view->size(), MADV_DONTFORK);
    buffer.view = std::move(*view);
  }
  return static_cast<void*>(buffer.view.data());
}

}  // namespace gpuumd::client

namespace {

Outcome<void> finish(gpuumd_buffer** out, std::shared_ptr<Session> session, Outcome<Reply> reply) {
  if (!reply) return std::unexpected(reply.error());
  auto buffer = make_buffer(std::move(session), std::move(*reply));
  if (!buffer) return std::unexpected(buffer.error());
  *out = buffer->release();
  return {};
}

Outcome<Reply> object_call(gpuumd_buffer* buffer, wire::RequestType type,
                           const gpuumd_wait* wait_in) {
  if (buffer == nullptr) return invalid("buffer");
  const auto wait = begin(*buffer->session, wait_in);
  if (!wait) return std::unexpected(wait.error());
  wire::ObjectRequest request{};
  request.object = buffer->id;
  return buffer->session->call(type, request, *wait);
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

extern "C" {

gpuumd_status gpuumd_buffer_create(gpuumd_device* device, const gpuumd_buffer_options* in,
                                   const gpuumd_wait* wait_in, gpuumd_buffer** buffer) {
  return guarded([&]() -> Outcome<void> {
    if (device == nullptr || buffer == nullptr || in == nullptr)
      return invalid("device, options or place for the buffer");
    *buffer = nullptr;
    const auto wait = begin(*device->session, wait_in);
    if (!wait) return std::unexpected(wait.error());
    const auto options = read_options(in, gpuumd_buffer_options{}, "gpuumd_buffer_options");
    if (!options) return std::unexpected(options.error());
    if (options->reserved != 0) return invalid("reserved field of gpuumd_buffer_options");
    wire::CreateBuffer request{};
    request.kind = options->kind;
    request.flags = options->flags;
    request.bytes = options->bytes;
    request.alignment = options->alignment;
    return finish(buffer, device->session,
                  device->session->call(wire::RequestType::kCreateBuffer, request, *wait));
  });
}

gpuumd_status gpuumd_buffer_destroy(gpuumd_buffer* buffer, const gpuumd_wait* wait) {
  if (buffer == nullptr) return GPUUMD_OK;
  const auto session = buffer->session;
  return destroy_handle(buffer, session.get(), buffer->id, wait);
}

gpuumd_status gpuumd_buffer_state(gpuumd_buffer* buffer, const gpuumd_wait* wait,
                                  gpuumd_status* state) {
  return guarded([&]() -> Outcome<void> {
    if (buffer == nullptr) return invalid("buffer");
    return object_state(*buffer->session, buffer->id, wait, state);
  });
}

uint64_t gpuumd_buffer_id(const gpuumd_buffer* buffer) { return buffer->id; }

gpuumd_status gpuumd_buffer_get_info(gpuumd_buffer* buffer, gpuumd_buffer_info* info) {
  return guarded([&]() -> Outcome<void> {
    if (buffer == nullptr) return invalid("buffer");
    if (auto checked = buffer->session->client().check_process(); !checked) return checked;
    gpuumd_buffer_info out{};
    out.kind = buffer->kind;
    out.bytes = buffer->bytes;
    out.page_bytes = buffer->page_bytes;
    return write_struct(info, out, "gpuumd_buffer_info");
  });
}

gpuumd_status gpuumd_buffer_cpu_view(gpuumd_buffer* buffer, void** data) {
  return guarded([&]() -> Outcome<void> {
    if (buffer == nullptr || data == nullptr) return invalid("buffer or place for the address");
    if (auto checked = buffer->session->client().check_process(); !checked) return checked;
    const auto view = cpu_view(*buffer);
    if (!view) return std::unexpected(view.error());
    *data = *view;
    return {};
  });
}

void gpuumd_handle_format(const gpuumd_handle* handle, char text[GPUUMD_HANDLE_TEXT_BYTES]) {
  std::snprintf(text, GPUUMD_HANDLE_TEXT_BYTES, "%016llx%016llx",
                static_cast<unsigned long long>(handle->hi),
                static_cast<unsigned long long>(handle->lo));
}

gpuumd_status gpuumd_handle_parse(const char* text, gpuumd_handle* handle) {
  return guarded([&]() -> Outcome<void> {
    if (text == nullptr || handle == nullptr) return invalid("text or place for the handle");
    std::uint64_t half[2] = {0, 0};
    std::size_t length = 0;
    for (; text[length] != 0; ++length) {
      const int digit = hex_digit(text[length]);
      if (digit < 0 || length >= 32)
        return invalid("handle '" + std::string(text).substr(0, 64) +
                       "' is not 32 hexadecimal digits");
      half[length / 16] = half[length / 16] << 4 | static_cast<std::uint64_t>(digit);
    }
    if (length != 32)
      return invalid("handle '" + std::string(text) + "' is not 32 hexadecimal digits");
    *handle = {.lo = half[1], .hi = half[0]};
    return {};
  });
}

gpuumd_status gpuumd_export(gpuumd_buffer* buffer, const gpuumd_wait* wait, gpuumd_handle* handle) {
  return guarded([&]() -> Outcome<void> {
    if (handle == nullptr) return invalid("place for the handle");
    const auto reply = object_call(buffer, wire::RequestType::kExport, wait);
    if (!reply) return std::unexpected(reply.error());
    *handle = {.lo = reply->body.handle_lo, .hi = reply->body.handle_hi};
    return {};
  });
}

gpuumd_status gpuumd_revoke(gpuumd_buffer* buffer, const gpuumd_wait* wait) {
  return guarded([&]() -> Outcome<void> {
    const auto reply = object_call(buffer, wire::RequestType::kRevoke, wait);
    if (!reply) return std::unexpected(reply.error());
    return {};
  });
}

gpuumd_status gpuumd_import(gpuumd_device* device, const gpuumd_handle* handle,
                            const gpuumd_wait* wait_in, gpuumd_buffer** buffer) {
  return guarded([&]() -> Outcome<void> {
    if (device == nullptr || handle == nullptr || buffer == nullptr)
      return invalid("device, handle or place for the buffer");
    *buffer = nullptr;
    const auto wait = begin(*device->session, wait_in);
    if (!wait) return std::unexpected(wait.error());
    wire::Import request{};
    request.handle_lo = handle->lo;
    request.handle_hi = handle->hi;
    request.timeout_ns =
        static_cast<std::uint64_t>(std::max<std::int64_t>(0, wait->left().count()));
    auto reply = device->session->call(wire::RequestType::kImport, request, *wait);
    if (!reply) {
      char text[GPUUMD_HANDLE_TEXT_BYTES];
      gpuumd_handle_format(handle, text);
      reply.error().text.insert(0, "handle " + std::string(text) + ": ");
    }
    return finish(buffer, device->session, std::move(reply));
  });
}

gpuumd_status gpuumd_buffer_share(gpuumd_buffer* buffer, const gpuumd_wait* wait, int* descriptor) {
  return guarded([&]() -> Outcome<void> {
    if (descriptor == nullptr) return invalid("place for the descriptor");
    *descriptor = -1;
    auto reply = object_call(buffer, wire::RequestType::kShare, wait);
    if (!reply) return std::unexpected(reply.error());
    if (reply->descriptors.size() != 1) return fail(GPUUMD_PROTOCOL, "descriptor of a buffer");
    *descriptor = reply->descriptors[0].release();
    return {};
  });
}

gpuumd_status gpuumd_buffer_open_shared(gpuumd_device* device, int descriptor,
                                        const gpuumd_wait* wait_in, gpuumd_buffer** buffer) {
  return guarded([&]() -> Outcome<void> {
    if (device == nullptr || buffer == nullptr) return invalid("device or place for the buffer");
    *buffer = nullptr;
    if (descriptor < 0) return invalid("descriptor " + std::to_string(descriptor));
    const auto wait = begin(*device->session, wait_in);
    if (!wait) return std::unexpected(wait.error());
    return finish(buffer, device->session,
                  device->session->call(wire::RequestType::kOpenShared, wire::OpenShared{}, *wait,
                                        sizeof(wire::OpenShared), descriptor));
  });
}

}  // extern "C"
