// gpuumd.h: connection, queries, events.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "libgpuumd/objects.h"

using namespace gpuumd::client;
namespace wire = gpuumd::wire;

extern "C" {

gpuumd_status gpuumd_connect(const gpuumd_connect_options* options, const gpuumd_wait* wait,
                             gpuumd_client** client) {
  return guarded([&]() -> Outcome<void> {
    if (client == nullptr) return invalid("place for the client");
    *client = nullptr;
    auto core = Client::connect(options, wait);
    if (!core) return std::unexpected(core.error());
    *client = new gpuumd_client{std::move(*core)};
    return {};
  });
}

void gpuumd_disconnect(gpuumd_client* client) {
  if (client == nullptr) return;
  (void)guarded([&]() -> Outcome<void> {
    if (auto checked = client->core->check_process(); !checked) return checked;
    client->core->disconnect();
    delete client;
    return {};
  });
}

gpuumd_status gpuumd_query(gpuumd_client* client, uint32_t kind, uint32_t device,
                           const gpuumd_wait* wait_in, char** json) {
  return guarded([&]() -> Outcome<void> {
    if (client == nullptr || json == nullptr) return invalid("client or place for the text");
    *json = nullptr;
    if (auto checked = client->core->check_process(); !checked) return checked;
    const auto wait = client->core->make_wait(wait_in);
    if (!wait) return std::unexpected(wait.error());
    wire::Query request{};
    request.header = {wire::MessageType::kQuery, sizeof(request), 0};
    request.kind = kind;
    request.device = device;
    auto reply = client->core->connection().call(request, wire::MessageType::kQueryReply, *wait);
    if (!reply) return std::unexpected(reply.error());
    if (reply->bytes.size() != sizeof(wire::QueryReply) || reply->descriptors.size() != 1)
      return fail(GPUUMD_PROTOCOL, "answer to a query has a wrong size");
    const auto bytes = base::load<wire::QueryReply>(reply->bytes, 0).bytes;
    if (bytes > (std::uint64_t{1} << 30))
      return fail(GPUUMD_PROTOCOL, "answer to a query of " + std::to_string(bytes) + " bytes");
    auto* text = static_cast<char*>(std::malloc(bytes + 1));
    if (text == nullptr) return fail(GPUUMD_NO_MEMORY, "answer to a query");
    // pread() and not a mapping: nothing is promised about who else has the descriptor.
    std::uint64_t done = 0;
    while (done < bytes) {
      const ssize_t got =
          ::pread(reply->descriptors[0].get(), text + done, bytes - done, static_cast<off_t>(done));
      if (got <= 0) break;
      done += static_cast<std::uint64_t>(got);
    }
    text[done] = 0;
    if (done != bytes) {
      std::free(text);
      return fail(GPUUMD_PROTOCOL, "answer to a query is shorter than it says");
    }
    *json = text;
    return {};
  });
}

void gpuumd_free_text(char* text) { std::free(text); }

gpuumd_status gpuumd_event_fd(gpuumd_client* client, int* descriptor) {
  return guarded([&]() -> Outcome<void> {
    if (client == nullptr || descriptor == nullptr) return invalid("client or place");
    if (auto checked = client->core->check_process(); !checked) return checked;
    *descriptor = client->core->event_fd();
    return {};
  });
}

gpuumd_status gpuumd_event_next(gpuumd_client* client, gpuumd_event* event) {
  return guarded([&]() -> Outcome<void> {
    if (client == nullptr) return invalid("client");
    if (event == nullptr || event->size < sizeof(std::uint32_t)) return invalid("size of event");
    if (auto checked = client->core->check_process(); !checked) return checked;
    const auto next = client->core->next_event();
    if (!next) return std::unexpected(next.error());
    return write_struct(event, *next, "gpuumd_event");
  });
}

}  // extern "C"
