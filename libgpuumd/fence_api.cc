// gpuumd.h: fences.
#include "libgpuumd/objects.h"

using namespace gpuumd::client;
namespace wire = gpuumd::wire;

extern "C" {

gpuumd_status gpuumd_fence_create(gpuumd_device* device, const gpuumd_wait* wait_in,
                                  gpuumd_fence** fence) {
  return guarded([&]() -> Outcome<void> {
    if (device == nullptr || fence == nullptr) return invalid("device or place for the fence");
    *fence = nullptr;
    const auto wait = begin(*device->session, wait_in);
    if (!wait) return std::unexpected(wait.error());
    auto reply = device->session->call(wire::RequestType::kCreateFence, wire::CreateFence{}, *wait);
    if (!reply) return std::unexpected(reply.error());
    if (reply->body.slot >= device->session->fence_slots())
      return fail(GPUUMD_PROTOCOL, "fence slot " + std::to_string(reply->body.slot));
    *fence = new gpuumd_fence{device->session, reply->body.object, reply->body.slot, {0}};
    return {};
  });
}

gpuumd_status gpuumd_fence_destroy(gpuumd_fence* fence, const gpuumd_wait* wait) {
  if (fence == nullptr) return GPUUMD_OK;
  const auto session = fence->session;
  return destroy_handle(fence, session.get(), fence->id, wait);
}

uint64_t gpuumd_fence_id(const gpuumd_fence* fence) { return fence->id; }

gpuumd_status gpuumd_fence_wait(gpuumd_fence* fence, uint64_t point, const gpuumd_wait* wait_in) {
  return guarded([&]() -> Outcome<void> {
    if (fence == nullptr) return invalid("fence");
    const auto wait = begin(*fence->session, wait_in);
    if (!wait) return std::unexpected(wait.error());
    if (point == 0) return invalid("wait for point 0 of a fence");
    return fence->session->wait_fence(fence->id, fence->slot, point, *wait);
  });
}

gpuumd_status gpuumd_fence_query(gpuumd_fence* fence, uint64_t* value, gpuumd_status* error,
                                 uint64_t* failed_point) {
  return guarded([&]() -> Outcome<void> {
    if (fence == nullptr || value == nullptr) return invalid("fence or place for its value");
    if (auto checked = fence->session->client().check_process(); !checked) return checked;
    const wire::FenceSlot& slot = fence->session->fence(fence->slot);
    const std::uint64_t now = gpuumd::load_acquire(slot.value);
    std::uint64_t largest = fence->largest.load();
    while (largest < now && !fence->largest.compare_exchange_weak(largest, now)) {
    }
    *value = std::max(largest, now);
    const auto failure = static_cast<gpuumd_status>(gpuumd::load_relaxed(slot.error));
    if (error != nullptr) *error = failure;
    if (failed_point != nullptr)
      *failed_point = failure == GPUUMD_OK ? 0 : gpuumd::load_relaxed(slot.first_failed_point);
    return {};
  });
}

}  // extern "C"
