// gpuumd.h for C++23: owners instead of handles, std::expected instead of codes and out-parameters.
// Header only; adds nothing to the library's ABI. What a call means, its units and its errors stand
// in gpuumd.h.
//
// Each owner destroys its object when it goes, with the client's default timeout. Move-only.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <expected>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "gpuumd/gpuumd.h"

namespace gpuumd {

struct Failure {
  gpuumd_status status;
  std::string text;  // names the missing thing
};
template <class T>
using Outcome = std::expected<T, Failure>;

// How a call waits: for how long, and how. Converts from a duration.
class Wait {
 public:
  Wait() : raw_{sizeof(gpuumd_wait), GPUUMD_WAIT_ADAPTIVE, GPUUMD_TIMEOUT_DEFAULT} {}
  Wait(std::chrono::nanoseconds timeout, std::uint32_t mode = GPUUMD_WAIT_ADAPTIVE)
      : raw_{sizeof(gpuumd_wait), mode, timeout.count()} {}
  static Wait polling() {
    Wait wait;
    wait.raw_.mode = GPUUMD_WAIT_POLL;
    return wait;
  }
  const gpuumd_wait* raw() const { return &raw_; }

 private:
  gpuumd_wait raw_;
};

namespace detail {

inline Outcome<void> check(gpuumd_status status) {
  if (status == GPUUMD_OK) return {};
  return std::unexpected(Failure{status, gpuumd_last_error()});
}

template <class T, auto kDestroy>
struct Destroyer {
  void operator()(T* object) const {
    if constexpr (requires { kDestroy(object, nullptr); })
      (void)kDestroy(object, nullptr);
    else
      kDestroy(object);
  }
};

template <class T, auto kDestroy>
class Owner {
 public:
  T* raw() const { return object_.get(); }

 protected:
  Owner() = default;
  explicit Owner(T* object) : object_(object) {}

 private:
  std::unique_ptr<T, Destroyer<T, kDestroy>> object_;
};

// Calls make(&object) and gives the owner.
template <class Out, class Raw, class Make>
Outcome<Out> make(Make call) {
  Raw* object = nullptr;
  if (auto done = check(call(&object)); !done) return std::unexpected(std::move(done.error()));
  return Out(object);
}

}  // namespace detail

struct Handle {
  gpuumd_handle raw{};
  static Outcome<Handle> parse(const std::string& text) {
    Handle handle;
    if (auto done = detail::check(gpuumd_handle_parse(text.c_str(), &handle.raw)); !done)
      return std::unexpected(std::move(done.error()));
    return handle;
  }
  std::string text() const {
    char chars[GPUUMD_HANDLE_TEXT_BYTES];
    gpuumd_handle_format(&raw, chars);
    return chars;
  }
};

class Fence : public detail::Owner<gpuumd_fence, gpuumd_fence_destroy> {
 public:
  explicit Fence(gpuumd_fence* fence) : Owner(fence) {}
  Outcome<void> wait(std::uint64_t point, const Wait& wait = {}) {
    return detail::check(gpuumd_fence_wait(raw(), point, wait.raw()));
  }
  Outcome<std::uint64_t> value() const {
    std::uint64_t value = 0;
    if (auto done = detail::check(gpuumd_fence_query(raw(), &value, nullptr, nullptr)); !done)
      return std::unexpected(std::move(done.error()));
    return value;
  }
  std::uint64_t id() const { return gpuumd_fence_id(raw()); }
};

class Buffer : public detail::Owner<gpuumd_buffer, gpuumd_buffer_destroy> {
 public:
  explicit Buffer(gpuumd_buffer* buffer) : Owner(buffer) {}
  std::uint64_t bytes() const { return info().bytes; }
  gpuumd_buffer_info info() const {
    gpuumd_buffer_info info{};
    info.size = sizeof(info);
    (void)gpuumd_buffer_get_info(raw(), &info);
    return info;
  }
  Outcome<std::span<std::byte>> cpu_view() const {
    void* data = nullptr;
    if (auto done = detail::check(gpuumd_buffer_cpu_view(raw(), &data)); !done)
      return std::unexpected(std::move(done.error()));
    return std::span(static_cast<std::byte*>(data), bytes());
  }
  Outcome<Handle> export_handle(const Wait& wait = {}) {
    Handle handle;
    if (auto done = detail::check(gpuumd_export(raw(), wait.raw(), &handle.raw)); !done)
      return std::unexpected(std::move(done.error()));
    return handle;
  }
  Outcome<void> revoke(const Wait& wait = {}) {
    return detail::check(gpuumd_revoke(raw(), wait.raw()));
  }
  // GPUUMD_OK while it is good, else why it is not.
  Outcome<gpuumd_status> state(const Wait& wait = {}) const {
    gpuumd_status state = GPUUMD_OK;
    if (auto done = detail::check(gpuumd_buffer_state(raw(), wait.raw(), &state)); !done)
      return std::unexpected(std::move(done.error()));
    return state;
  }
  // The descriptor is the caller's.
  Outcome<int> share(const Wait& wait = {}) {
    int descriptor = -1;
    if (auto done = detail::check(gpuumd_buffer_share(raw(), wait.raw(), &descriptor)); !done)
      return std::unexpected(std::move(done.error()));
    return descriptor;
  }
  std::uint64_t id() const { return gpuumd_buffer_id(raw()); }
};

class Queue : public detail::Owner<gpuumd_queue, gpuumd_queue_destroy> {
 public:
  explicit Queue(gpuumd_queue* queue) : Owner(queue) {}
  Outcome<void> copy(std::uint64_t to, std::uint64_t from, std::uint64_t bytes,
                     const Wait& wait = {}) {
    return detail::check(gpuumd_queue_copy(raw(), to, from, bytes, wait.raw()));
  }
  Outcome<void> fill(std::uint64_t to, std::uint64_t bytes, std::uint32_t pattern,
                     const Wait& wait = {}) {
    return detail::check(gpuumd_queue_fill(raw(), to, bytes, pattern, wait.raw()));
  }
  Outcome<void> write(std::uint64_t to, std::span<const std::byte> data, const Wait& wait = {}) {
    return detail::check(gpuumd_queue_write(raw(), to, data.data(),
                                            static_cast<std::uint32_t>(data.size()), wait.raw()));
  }
  Outcome<void> atomic(std::uint64_t to, std::uint32_t operation, std::uint32_t width,
                       std::uint64_t operand, std::uint64_t compare = 0, const Wait& wait = {}) {
    return detail::check(
        gpuumd_queue_atomic(raw(), to, operation, width, operand, compare, wait.raw()));
  }
  Outcome<void> wait_fence(const Fence& fence, std::uint64_t point, const Wait& wait = {}) {
    return detail::check(gpuumd_queue_wait_fence(raw(), fence.raw(), point, wait.raw()));
  }
  Outcome<void> signal(const Fence& fence, std::uint64_t point, const Wait& wait = {}) {
    return detail::check(gpuumd_queue_signal(raw(), fence.raw(), point, wait.raw()));
  }
  Outcome<void> timestamp(std::uint64_t to, const Wait& wait = {}) {
    return detail::check(gpuumd_queue_timestamp(raw(), to, wait.raw()));
  }
  Outcome<void> submit() { return detail::check(gpuumd_queue_submit(raw())); }
  std::uint64_t id() const { return gpuumd_queue_id(raw()); }
};

// Must go before its queue.
class Staging : public detail::Owner<gpuumd_staging, gpuumd_staging_destroy> {
 public:
  explicit Staging(gpuumd_staging* staging) : Owner(staging) {}
  // `va`: a free range of the queue's VM; `bytes` 0: 4 MiB.
  static Outcome<Staging> create(Queue& queue, std::uint64_t va, std::uint64_t bytes = 0,
                                 const Wait& wait = {}) {
    gpuumd_staging_options options{};
    options.size = sizeof(options);
    options.va = va;
    options.bytes = bytes;
    return detail::make<Staging, gpuumd_staging>([&](gpuumd_staging** out) {
      return gpuumd_staging_create(queue.raw(), &options, wait.raw(), out);
    });
  }
  Outcome<void> upload(std::uint64_t to, std::span<const std::byte> from, const Wait& wait = {}) {
    return detail::check(gpuumd_staging_upload(raw(), to, from.data(), from.size(), wait.raw()));
  }
  Outcome<void> download(std::span<std::byte> to, std::uint64_t from, const Wait& wait = {}) {
    return detail::check(gpuumd_staging_download(raw(), to.data(), from, to.size(), wait.raw()));
  }
};

class Vm : public detail::Owner<gpuumd_vm, gpuumd_vm_destroy> {
 public:
  explicit Vm(gpuumd_vm* vm) : Owner(vm) {}
  Outcome<void> map(std::uint64_t va, const Buffer& buffer, std::uint64_t offset,
                    std::uint64_t bytes, std::uint32_t flags, const Wait& wait = {}) {
    return detail::check(gpuumd_vm_map(raw(), va, buffer.raw(), offset, bytes, flags, wait.raw()));
  }
  Outcome<void> unmap(std::uint64_t va, std::uint64_t bytes, const Wait& wait = {}) {
    return detail::check(gpuumd_vm_unmap(raw(), va, bytes, wait.raw()));
  }
  Outcome<void> bind(std::span<const gpuumd_bind_op> operations, const Wait& wait = {}) {
    return detail::check(gpuumd_vm_bind(raw(), operations.data(),
                                        static_cast<std::uint32_t>(operations.size()), wait.raw()));
  }
  // GPUUMD_OK while it is good, else why it is not.
  Outcome<gpuumd_status> state(const Wait& wait = {}) const {
    gpuumd_status state = GPUUMD_OK;
    if (auto done = detail::check(gpuumd_vm_state(raw(), wait.raw(), &state)); !done)
      return std::unexpected(std::move(done.error()));
    return state;
  }
  // `flags`: GPUUMD_QUEUE_*; `slots` 0: 1024.
  Outcome<Queue> create_queue(std::uint32_t flags = 0, std::uint32_t slots = 0,
                              std::uint32_t priority = 0, const Wait& wait = {}) {
    gpuumd_queue_options options{};
    options.size = sizeof(options);
    options.flags = flags;
    options.slots = slots;
    options.priority = priority;
    return detail::make<Queue, gpuumd_queue>(
        [&](gpuumd_queue** out) { return gpuumd_queue_create(raw(), &options, wait.raw(), out); });
  }
  std::uint64_t id() const { return gpuumd_vm_id(raw()); }
};

class Device : public detail::Owner<gpuumd_device, gpuumd_device_close> {
 public:
  explicit Device(gpuumd_device* device) : Owner(device) {}
  gpuumd_device_info info() const {
    gpuumd_device_info info{};
    info.size = sizeof(info);
    (void)gpuumd_device_get_info(raw(), &info);
    return info;
  }
  Outcome<void> ping(const Wait& wait = {}) {
    return detail::check(gpuumd_device_ping(raw(), wait.raw()));
  }
  Outcome<Vm> create_vm(std::uint32_t flags = 0, const Wait& wait = {}) {
    const gpuumd_vm_options options{sizeof(options), flags};
    return detail::make<Vm, gpuumd_vm>(
        [&](gpuumd_vm** out) { return gpuumd_vm_create(raw(), &options, wait.raw(), out); });
  }
  // `kind`: GPUUMD_BUFFER_VRAM or GPUUMD_BUFFER_HOST.
  Outcome<Buffer> create_buffer(std::uint32_t kind, std::uint64_t bytes,
                                std::uint64_t alignment = 0, const Wait& wait = {}) {
    gpuumd_buffer_options options{};
    options.size = sizeof(options);
    options.kind = kind;
    options.bytes = bytes;
    options.alignment = alignment;
    return detail::make<Buffer, gpuumd_buffer>([&](gpuumd_buffer** out) {
      return gpuumd_buffer_create(raw(), &options, wait.raw(), out);
    });
  }
  Outcome<Fence> create_fence(const Wait& wait = {}) {
    return detail::make<Fence, gpuumd_fence>(
        [&](gpuumd_fence** out) { return gpuumd_fence_create(raw(), wait.raw(), out); });
  }
  Outcome<Buffer> import_handle(const Handle& handle, const Wait& wait = {}) {
    return detail::make<Buffer, gpuumd_buffer>(
        [&](gpuumd_buffer** out) { return gpuumd_import(raw(), &handle.raw, wait.raw(), out); });
  }
  Outcome<Buffer> open_shared(int descriptor, const Wait& wait = {}) {
    return detail::make<Buffer, gpuumd_buffer>([&](gpuumd_buffer** out) {
      return gpuumd_buffer_open_shared(raw(), descriptor, wait.raw(), out);
    });
  }
};

class Client : public detail::Owner<gpuumd_client, gpuumd_disconnect> {
 public:
  explicit Client(gpuumd_client* client) : Owner(client) {}
  // `runtime_dir` empty: $GPUUMD_RUNTIME_DIR, else /run/gpuumd. `default_timeout` 0: 5 s.
  static Outcome<Client> connect(const std::string& runtime_dir = {}, const std::string& name = {},
                                 std::chrono::nanoseconds default_timeout = {},
                                 const Wait& wait = {}) {
    gpuumd_connect_options options{};
    options.size = sizeof(options);
    options.runtime_dir = runtime_dir.empty() ? nullptr : runtime_dir.c_str();
    options.name = name.empty() ? nullptr : name.c_str();
    options.default_timeout_ns = default_timeout.count();
    return detail::make<Client, gpuumd_client>(
        [&](gpuumd_client** out) { return gpuumd_connect(&options, wait.raw(), out); });
  }
  Outcome<std::uint32_t> device_count(const Wait& wait = {}) {
    std::uint32_t count = 0;
    if (auto done = detail::check(gpuumd_device_count(raw(), wait.raw(), &count)); !done)
      return std::unexpected(std::move(done.error()));
    return count;
  }
  Outcome<gpuumd_device_info> device_info(std::uint32_t index, const Wait& wait = {}) {
    gpuumd_device_info info{};
    info.size = sizeof(info);
    if (auto done = detail::check(gpuumd_device_query(raw(), index, wait.raw(), &info)); !done)
      return std::unexpected(std::move(done.error()));
    return info;
  }
  Outcome<Device> open_device(std::uint32_t index, const Wait& wait = {}) {
    return detail::make<Device, gpuumd_device>([&](gpuumd_device** out) {
      return gpuumd_device_open(raw(), nullptr, index, wait.raw(), out);
    });
  }
  Outcome<Device> open_device(const std::string& name, const Wait& wait = {}) {
    return detail::make<Device, gpuumd_device>([&](gpuumd_device** out) {
      return gpuumd_device_open(raw(), name.c_str(), 0, wait.raw(), out);
    });
  }
  // JSON of GPUUMD_QUERY_*.
  Outcome<std::string> query(std::uint32_t kind, std::uint32_t device = GPUUMD_ALL_DEVICES,
                             const Wait& wait = {}) {
    char* json = nullptr;
    if (auto done = detail::check(gpuumd_query(raw(), kind, device, wait.raw(), &json)); !done)
      return std::unexpected(std::move(done.error()));
    std::string text(json);
    gpuumd_free_text(json);
    return text;
  }
  // To poll for input; the client's.
  Outcome<int> event_fd() {
    int descriptor = -1;
    if (auto done = detail::check(gpuumd_event_fd(raw(), &descriptor)); !done)
      return std::unexpected(std::move(done.error()));
    return descriptor;
  }
  // GPUUMD_AGAIN without an event.
  Outcome<gpuumd_event> next_event() {
    gpuumd_event event{};
    event.size = sizeof(event);
    if (auto done = detail::check(gpuumd_event_next(raw(), &event)); !done)
      return std::unexpected(std::move(done.error()));
    return event;
  }
};

}  // namespace gpuumd
