// What the opaque handles of gpuumd.h are.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/fd.h"
#include "base/shared_memory.h"
#include "libgpuumd/client.h"
#include "libgpuumd/queue.h"
#include "libgpuumd/session.h"

struct gpuumd_client {
  std::shared_ptr<gpuumd::client::Client> core;
};

struct gpuumd_device {
  std::shared_ptr<gpuumd::client::Session> session;
};

struct gpuumd_vm {
  std::shared_ptr<gpuumd::client::Session> session;
  std::uint64_t id;
};

struct gpuumd_buffer {
  std::shared_ptr<gpuumd::client::Session> session;
  std::uint64_t id;
  std::uint32_t kind;
  std::uint64_t bytes;
  std::uint64_t page_bytes;
  base::UniqueFd memory;  // host buffers
  std::mutex mutex;       // guards the view
  base::Mapping view;     // made when first asked for
};

struct gpuumd_fence {
  std::shared_ptr<gpuumd::client::Session> session;
  std::uint64_t id;
  std::uint32_t slot;
  std::atomic<std::uint64_t> largest;  // value seen: the word falls for a moment at a carry
};

struct gpuumd_queue {
  std::unique_ptr<gpuumd::client::Queue> queue;
};

namespace gpuumd::client {

// The checks that begin each call: right process, and when it must end.
inline Outcome<Wait> begin(Session& session, const gpuumd_wait* wait) {
  if (auto checked = session.client().check_process(); !checked)
    return std::unexpected(checked.error());
  return session.client().make_wait(wait);
}

inline Outcome<void> destroy_object(Session& session, std::uint64_t id, const Wait& wait) {
  wire::Destroy request{};
  request.object = id;
  auto reply = session.call(wire::RequestType::kDestroy, request, wait);
  if (!reply) return std::unexpected(reply.error());
  return {};
}

inline Outcome<void> object_state(Session& session, std::uint64_t id, const gpuumd_wait* wait_in,
                                  gpuumd_status* state) {
  if (state == nullptr) return invalid("place for the state");
  const auto wait = begin(session, wait_in);
  if (!wait) return std::unexpected(wait.error());
  wire::QueryObject request{};
  request.object = id;
  const auto reply = session.call(wire::RequestType::kQueryObject, request, *wait);
  if (!reply) return std::unexpected(reply.error());
  *state = static_cast<gpuumd_status>(reply->body.state);
  return {};
}

// Destroys the object on both sides. In a forked child nothing is touched: its mappings are not
// there.
template <class Object>
gpuumd_status destroy_handle(Object* object, Session* session, std::uint64_t id,
                             const gpuumd_wait* wait) {
  if (object == nullptr) return GPUUMD_OK;
  return guarded([&]() -> Outcome<void> {
    if (auto checked = session->client().check_process(); !checked) return checked;
    const std::unique_ptr<Object> owned(object);
    const auto how = session->client().make_wait(wait);
    if (!how) return std::unexpected(how.error());
    return destroy_object(*session, id, *how);
  });
}

// The buffer that a reply to create, import or open-shared stands for.
Outcome<std::unique_ptr<gpuumd_buffer>> make_buffer(std::shared_ptr<Session> session, Reply reply);
Outcome<void*> cpu_view(gpuumd_buffer& buffer);

}  // namespace gpuumd::client
