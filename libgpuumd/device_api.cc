// gpuumd.h: devices, address spaces, binding.
#include "libgpuumd/objects.h"

using namespace gpuumd::client;
namespace wire = gpuumd::wire;

namespace {

gpuumd_device_info to_info(const wire::DeviceInfo& in) {
  gpuumd_device_info out{};
  out.index = in.index;
  out.flags = in.flags;
  out.state = in.state;
  out.pci_id = in.pci_id;
  out.accelerator_id = in.accelerator_id;
  out.pod_id = in.pod_id;
  out.vpod_id = in.vpod_id;
  out.max_vms = in.max_vms;
  out.vram_bytes = in.vram_bytes;
  out.va_first = in.va_first;
  out.va_end = in.va_end;
  out.page_sizes = in.page_sizes;
  out.bind_alignment = in.bind_alignment;
  out.max_queue_slots = in.max_queue_slots;
  out.timestamp_hz = in.timestamp_hz;
  std::memcpy(out.name, in.name, sizeof(out.name) - 1);
  return out;
}

Outcome<std::vector<wire::DeviceInfo>> list(Client& client, const gpuumd_wait* wait_in) {
  if (auto checked = client.check_process(); !checked) return std::unexpected(checked.error());
  const auto wait = client.make_wait(wait_in);
  if (!wait) return std::unexpected(wait.error());
  wire::ListDevices request{{wire::MessageType::kListDevices, sizeof(request), 0}};
  const auto reply = client.connection().call(request, wire::MessageType::kDevices, *wait);
  if (!reply) return std::unexpected(reply.error());
  if (reply->bytes.size() < sizeof(wire::Devices))
    return fail(GPUUMD_PROTOCOL, "list of devices is too short");
  const auto count = base::load<wire::Devices>(reply->bytes, 0).count;
  if (count > wire::kMaxDevices ||
      reply->bytes.size() != sizeof(wire::Devices) + count * sizeof(wire::DeviceInfo))
    return fail(GPUUMD_PROTOCOL, "list of devices has a wrong size");
  std::vector<wire::DeviceInfo> devices(count);
  for (std::uint32_t i = 0; i < count; ++i)
    devices[i] = base::load<wire::DeviceInfo>(reply->bytes,
                                              sizeof(wire::Devices) + i * sizeof(wire::DeviceInfo));
  return devices;
}

Outcome<void> bind(gpuumd_vm* vm, const gpuumd_bind_op* ops, std::uint32_t count,
                   const gpuumd_wait* wait_in) {
  if (vm == nullptr) return invalid("VM");
  const auto wait = begin(*vm->session, wait_in);
  if (!wait) return std::unexpected(wait.error());
  if (ops == nullptr || count == 0 || count > wire::kMaxBindOperations)
    return invalid("bind of " + std::to_string(count) + " operations");
  wire::Bind request{};
  request.vm = vm->id;
  request.count = count;
  for (std::uint32_t i = 0; i < count; ++i) {
    const gpuumd_bind_op& in = ops[i];
    if (in.buffer != nullptr && in.buffer->session != vm->session)
      return invalid("bind of a buffer of another device or session");
    request.operations[i] = {.kind = in.kind,
                             .flags = in.flags,
                             .va = in.va,
                             .bytes = in.bytes,
                             .buffer = in.buffer != nullptr ? in.buffer->id : 0,
                             .offset = in.offset,
                             .fault_window = in.fault_window,
                             .reserved = {}};
  }
  auto reply =
      vm->session->call(wire::RequestType::kBind, request, *wait,
                        offsetof(wire::Bind, operations) + count * sizeof(wire::BindOperation));
  if (!reply) return std::unexpected(reply.error());
  return {};
}

}  // namespace

static_assert(GPUUMD_BIND_MAX_OPS == wire::kMaxBindOperations);

extern "C" {

gpuumd_status gpuumd_device_count(gpuumd_client* client, const gpuumd_wait* wait, uint32_t* count) {
  return guarded([&]() -> Outcome<void> {
    if (client == nullptr || count == nullptr) return invalid("client or place for the count");
    const auto devices = list(*client->core, wait);
    if (!devices) return std::unexpected(devices.error());
    *count = static_cast<std::uint32_t>(devices->size());
    return {};
  });
}

gpuumd_status gpuumd_device_query(gpuumd_client* client, uint32_t index, const gpuumd_wait* wait,
                                  gpuumd_device_info* info) {
  return guarded([&]() -> Outcome<void> {
    if (client == nullptr) return invalid("client");
    const auto devices = list(*client->core, wait);
    if (!devices) return std::unexpected(devices.error());
    if (index >= devices->size())
      return fail(GPUUMD_NOT_FOUND,
                  "device " + std::to_string(index) + " of " + std::to_string(devices->size()));
    return write_struct(info, to_info((*devices)[index]), "gpuumd_device_info");
  });
}

gpuumd_status gpuumd_device_open(gpuumd_client* client, const char* name, uint32_t index,
                                 const gpuumd_wait* wait_in, gpuumd_device** device) {
  return guarded([&]() -> Outcome<void> {
    if (client == nullptr || device == nullptr) return invalid("client or place for the device");
    *device = nullptr;
    if (auto checked = client->core->check_process(); !checked) return checked;
    const auto wait = client->core->make_wait(wait_in);
    if (!wait) return std::unexpected(wait.error());
    auto session = Session::open(client->core, name, index, *wait);
    if (!session) return std::unexpected(session.error());
    *device = new gpuumd_device{std::move(*session)};
    return {};
  });
}

void gpuumd_device_close(gpuumd_device* device) {
  if (device == nullptr) return;
  (void)guarded([&]() -> Outcome<void> {
    if (auto checked = device->session->client().check_process(); !checked) return checked;
    const std::unique_ptr<gpuumd_device> owned(device);
    owned->session->close();
    return {};
  });
}

gpuumd_status gpuumd_device_get_info(gpuumd_device* device, gpuumd_device_info* info) {
  return guarded([&]() -> Outcome<void> {
    if (device == nullptr) return invalid("device");
    if (auto checked = device->session->client().check_process(); !checked) return checked;
    return write_struct(info, to_info(device->session->device()), "gpuumd_device_info");
  });
}

gpuumd_status gpuumd_device_ping(gpuumd_device* device, const gpuumd_wait* wait_in) {
  return guarded([&]() -> Outcome<void> {
    if (device == nullptr) return invalid("device");
    const auto wait = begin(*device->session, wait_in);
    if (!wait) return std::unexpected(wait.error());
    auto reply = device->session->call(wire::RequestType::kNop, wire::Nop{}, *wait);
    if (!reply) return std::unexpected(reply.error());
    return {};
  });
}

gpuumd_status gpuumd_vm_create(gpuumd_device* device, const gpuumd_vm_options* in,
                               const gpuumd_wait* wait_in, gpuumd_vm** vm) {
  return guarded([&]() -> Outcome<void> {
    if (device == nullptr || vm == nullptr) return invalid("device or place for the VM");
    *vm = nullptr;
    const auto wait = begin(*device->session, wait_in);
    if (!wait) return std::unexpected(wait.error());
    const auto options =
        read_options(in, gpuumd_vm_options{sizeof(gpuumd_vm_options), 0}, "gpuumd_vm_options");
    if (!options) return std::unexpected(options.error());
    wire::CreateVm request{};
    request.flags = options->flags;
    auto reply = device->session->call(wire::RequestType::kCreateVm, request, *wait);
    if (!reply) return std::unexpected(reply.error());
    *vm = new gpuumd_vm{device->session, reply->body.object};
    return {};
  });
}

gpuumd_status gpuumd_vm_destroy(gpuumd_vm* vm, const gpuumd_wait* wait) {
  if (vm == nullptr) return GPUUMD_OK;
  const auto session = vm->session;
  return destroy_handle(vm, session.get(), vm->id, wait);
}

gpuumd_status gpuumd_vm_state(gpuumd_vm* vm, const gpuumd_wait* wait, gpuumd_status* state) {
  return guarded([&]() -> Outcome<void> {
    if (vm == nullptr) return invalid("VM");
    return object_state(*vm->session, vm->id, wait, state);
  });
}

uint64_t gpuumd_vm_id(const gpuumd_vm* vm) { return vm->id; }

gpuumd_status gpuumd_vm_bind(gpuumd_vm* vm, const gpuumd_bind_op* ops, uint32_t count,
                             const gpuumd_wait* wait) {
  return guarded([&] { return bind(vm, ops, count, wait); });
}

gpuumd_status gpuumd_vm_map(gpuumd_vm* vm, uint64_t va, gpuumd_buffer* buffer, uint64_t offset,
                            uint64_t bytes, uint32_t flags, const gpuumd_wait* wait) {
  const gpuumd_bind_op op{.kind = GPUUMD_BIND_MAP,
                          .flags = flags,
                          .va = va,
                          .bytes = bytes,
                          .buffer = buffer,
                          .offset = offset,
                          .fault_window = 0};
  return guarded([&] { return bind(vm, &op, 1, wait); });
}

gpuumd_status gpuumd_vm_unmap(gpuumd_vm* vm, uint64_t va, uint64_t bytes, const gpuumd_wait* wait) {
  gpuumd_bind_op op{};
  op.kind = GPUUMD_BIND_UNMAP;
  op.va = va;
  op.bytes = bytes;
  return guarded([&] { return bind(vm, &op, 1, wait); });
}

}  // extern "C"
