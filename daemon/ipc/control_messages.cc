// What a client's messages on the socket do.
#include <spdlog/spdlog.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/shared_memory.h"
#include "daemon/ipc/control_loop.h"
#include "daemon/ipc/status.h"

namespace gpuumd {
namespace {

using base::Errc;
using base::fail;
using base::Result;

constexpr unsigned kMaxQueries = 8;  // of one client at a time

std::string text_of(const char* chars, std::size_t size) {
  std::string text(chars, ::strnlen(chars, size));
  std::replace_if(text.begin(), text.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text;
}

template <class T>
Result<T> exact(const Received& received) {
  if (received.bytes.size() != sizeof(T))
    return fail(Errc::kProtocol, "message of " + std::to_string(received.bytes.size()) +
                                     " bytes, not " + std::to_string(sizeof(T)));
  return base::load<T>(received.bytes, 0);
}

// JSON that its reader cannot change, nor we any more.
Result<base::UniqueFd> text_memfd(const std::string& text) {
  auto memory = base::make_memfd("gpuumd-query", text.size(), 0);
  if (!memory) return memory;
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t wrote =
        ::pwrite(memory->get(), text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (wrote <= 0) return fail(Errc::kSystem, "answer to a query", errno);
    done += static_cast<std::size_t>(wrote);
  }
  if (::fcntl(memory->get(), F_ADD_SEALS, base::kSizeSeals | F_SEAL_WRITE) != 0)
    return fail(Errc::kSystem, "seal the answer to a query", errno);
  return memory;
}

}  // namespace

struct ControlLoop::PendingQuery {
  std::uint64_t client = 0;
  std::uint64_t request = 0;
  bool array = false;
  std::vector<std::string> parts;
  std::size_t missing = 0;
  std::optional<base::Error> error;
};

Result<void> ControlLoop::message(Client& client, Received received) {
  using wire::MessageType;
  const auto header = base::load<wire::MessageHeader>(received.bytes, 0);
  if (!client.welcomed && header.type != MessageType::kHello)
    return fail(Errc::kProtocol, "message before the handshake");
  if (!received.descriptors.empty() && header.type != MessageType::kDescriptors)
    return fail(Errc::kProtocol, "descriptors with a message that takes none");
  switch (header.type) {
    case MessageType::kHello: {
      const auto in = exact<wire::Hello>(received);
      if (!in) return std::unexpected(in.error());
      return hello(client, *in);
    }
    case MessageType::kListDevices:
      list_devices(client, header.id);
      return {};
    case MessageType::kOpenSession: {
      const auto in = exact<wire::OpenSession>(received);
      if (!in) return std::unexpected(in.error());
      open_session(client, *in);
      return {};
    }
    case MessageType::kCloseSession: {
      const auto in = exact<wire::CloseSession>(received);
      if (!in) return std::unexpected(in.error());
      close_session(client, *in);
      return {};
    }
    case MessageType::kQuery: {
      const auto in = exact<wire::Query>(received);
      if (!in) return std::unexpected(in.error());
      query(client, *in);
      return {};
    }
    case MessageType::kDescriptors:
      return descriptors(client, std::move(received));
    default:
      return fail(Errc::kProtocol,
                  "message type " + std::to_string(static_cast<std::uint32_t>(header.type)));
  }
}

Result<void> ControlLoop::hello(Client& client, const wire::Hello& in) {
  if (client.welcomed) return fail(Errc::kProtocol, "second handshake");
  if (in.version < wire::kMinVersion || in.min_version > wire::kVersion ||
      in.min_version > in.version) {
    const std::uint64_t id = client.id;
    if (send_status(client, in.header.id, GPUUMD_WRONG_VERSION,
                    "client speaks protocol " + std::to_string(in.min_version) + " to " +
                        std::to_string(in.version) + ", the daemon " +
                        std::to_string(wire::kMinVersion) + " to " +
                        std::to_string(wire::kVersion)))
      close_client(id);
    return {};
  }
  if (in.reserved[0] != 0 || in.reserved[1] != 0) {
    const std::uint64_t id = client.id;
    if (send_status(client, in.header.id, GPUUMD_INVALID_ARGUMENT,
                    "reserved field of the handshake is not 0"))
      close_client(id);
    return {};
  }
  client.welcomed = true;
  client.connection.set_name(text_of(in.name, sizeof(in.name)));
  wire::Welcome out{};
  out.header = {wire::MessageType::kWelcome, sizeof(out), in.header.id};
  out.version = std::min(in.version, wire::kVersion);
  out.device_count = static_cast<std::uint32_t>(devices_.size());
  out.boot_id = boot_id_;
  send(client, base::as_bytes(out));
  return {};
}

void ControlLoop::list_devices(Client& client, std::uint64_t request) {
  std::vector<std::byte> bytes(sizeof(wire::Devices) + devices_.size() * sizeof(wire::DeviceInfo));
  wire::Devices out{};
  out.header = {wire::MessageType::kDevices, static_cast<std::uint32_t>(bytes.size()), request};
  out.count = static_cast<std::uint32_t>(devices_.size());
  base::store(std::span(bytes), 0, out);
  for (std::size_t i = 0; i < devices_.size(); ++i)
    base::store(std::span(bytes), sizeof(out) + i * sizeof(wire::DeviceInfo), devices_[i].info);
  send(client, bytes);
}

Result<std::uint32_t> ControlLoop::admit_session(const Client& client,
                                                 const wire::OpenSession& in) {
  if (in.flags != 0)
    return fail(Errc::kInvalidArgument, "unknown flags " + std::to_string(in.flags));
  if (in.reserved[0] != 0 || in.reserved[1] != 0)
    return fail(Errc::kInvalidArgument, "reserved field of the open request is not 0");
  std::uint32_t device = in.device;
  if (in.name[0] != 0) {
    const std::string name = text_of(in.name, sizeof(in.name));
    device = 0;
    while (device < devices_.size() &&
           text_of(devices_[device].info.name, wire::kNameBytes) != name)
      ++device;
    if (device == devices_.size()) return fail(Errc::kNotFound, "device '" + name + "'");
  }
  if (device >= devices_.size())
    return fail(Errc::kNotFound,
                "device " + std::to_string(device) + " of " + std::to_string(devices_.size()));
  for (const std::uint64_t id : client.sessions) {
    if (sessions_.at(id).device == device && !sessions_.at(id).closing)
      return fail(Errc::kExists, "session of this connection on device " + std::to_string(device));
  }
  const uid_t uid = client.connection.client().uid;
  const auto counts = uids_.find(uid);
  if (counts != uids_.end() && counts->second.sessions >= config_.max_sessions_per_uid)
    return fail(Errc::kLimit, "uid " + std::to_string(uid) + " has " +
                                  std::to_string(counts->second.sessions) + " sessions");
  if (sessions_.size() >= config_.max_sessions)
    return fail(Errc::kLimit, "the daemon has " + std::to_string(sessions_.size()) + " sessions");
  return device;
}

void ControlLoop::open_session(Client& client, const wire::OpenSession& in) {
  const auto device = admit_session(client, in);
  if (!device) {
    if (device.error().code == Errc::kLimit) ++counters_.refused_limit;
    send_error(client, in.header.id, device.error());
    return;
  }
  const std::uint64_t id = next_session_++;
  const uid_t uid = client.connection.client().uid;
  sessions_[id] = {
      .client = client.id, .uid = uid, .device = *device, .open_request = in.header.id};
  client.sessions.insert(id);
  ++uids_[uid].sessions;
  ++counters_.sessions;
  const auto& port = devices_[*device].port;
  port->reactor().post(
      [port, id, who = client.connection.client()] { port->open(SessionId(id), who); });
}

void ControlLoop::close_session(Client& client, const wire::CloseSession& in) {
  const auto found = sessions_.find(in.session);
  if (found == sessions_.end() || found->second.client != client.id || !found->second.opened) {
    send_error(client, in.header.id, {Errc::kNotFound, 0, "session " + std::to_string(in.session)});
    return;
  }
  found->second.close_request = in.header.id;
  close_on_reactor(in.session, found->second);
}

Result<void> ControlLoop::descriptors(Client& client, Received received) {
  const auto in = exact<wire::Descriptors>(received);
  if (!in) return std::unexpected(in.error());
  if (in->count != received.descriptors.size() || in->count > wire::kMaxDescriptors ||
      in->count == 0)
    return fail(Errc::kProtocol, std::to_string(received.descriptors.size()) +
                                     " descriptors, not " + std::to_string(in->count));
  const auto found = sessions_.find(in->session);
  // Not an error: the session may have ended on our side while this was under way.
  if (found == sessions_.end() || found->second.client != client.id) return {};
  const auto& port = devices_[found->second.device].port;
  port->reactor().post(
      [port, id = in->session, tag = in->tag, fds = std::move(received.descriptors)]() mutable {
        port->descriptors_arrived(SessionId(id), tag, std::move(fds));
      });
  return {};
}

void ControlLoop::query(Client& client, const wire::Query& in) {
  const bool all = in.device == GPUUMD_ALL_DEVICES;
  if (in.kind < GPUUMD_QUERY_STATUS || in.kind > GPUUMD_QUERY_FAULTS) {
    send_error(client, in.header.id,
               {Errc::kInvalidArgument, 0, "query kind " + std::to_string(in.kind)});
    return;
  }
  if (in.reserved[0] != 0 || in.reserved[1] != 0) {
    send_error(client, in.header.id,
               {Errc::kInvalidArgument, 0, "reserved field of the query is not 0"});
    return;
  }
  if (!all && in.device >= devices_.size()) {
    send_error(client, in.header.id,
               {Errc::kNotFound, 0,
                "device " + std::to_string(in.device) + " of " + std::to_string(devices_.size())});
    return;
  }
  if (client.queries >= kMaxQueries) {
    send_error(client, in.header.id, {Errc::kLimit, 0, "open queries of a connection"});
    return;
  }
  ++client.queries;
  auto pending = std::make_shared<PendingQuery>();
  pending->client = client.id;
  pending->request = in.header.id;
  pending->array = all;
  pending->missing = all ? devices_.size() : 1;
  pending->parts.resize(pending->missing);
  if (pending->missing == 0) {
    pending->missing = 1;  // an empty list: one part that is no part
    query_part(std::move(pending), 0, std::string());
    return;
  }
  for (std::size_t part = 0; part < pending->parts.size(); ++part) {
    const auto& port = devices_[all ? part : in.device].port;
    auto answer = [mailbox = mailbox_, this, pending, part](Result<std::string> json) {
      mailbox->post([this, pending, part, json = std::move(json)]() mutable {
        query_part(pending, part, std::move(json));
      });
    };
    port->reactor().post([port, kind = in.kind, who = client.connection.client(),
                          answer = std::move(answer)]() mutable {
      port->host().query(kind, who, std::move(answer));
    });
  }
}

void ControlLoop::query_part(std::shared_ptr<PendingQuery> query, std::size_t part,
                             Result<std::string> json) {
  if (json && part < query->parts.size())
    query->parts[part] = std::move(*json);
  else if (!json)
    query->error = std::move(json.error());
  if (--query->missing != 0) return;
  Client* client = find(query->client);
  if (client == nullptr) return;
  --client->queries;
  if (query->error) {
    send_error(*client, query->request, *query->error);
    return;
  }
  std::string text;
  for (const std::string& one : query->parts) text += (text.empty() ? "" : ",") + one;
  if (query->array) text = "[" + text + "]";
  auto memory = text_memfd(text);
  if (!memory) {
    send_error(*client, query->request, memory.error());
    return;
  }
  wire::QueryReply out{};
  out.header = {wire::MessageType::kQueryReply, sizeof(out), query->request};
  out.bytes = text.size();
  std::vector<base::UniqueFd> descriptors;
  descriptors.push_back(std::move(*memory));
  send(*client, base::as_bytes(out), std::move(descriptors));
}

}  // namespace gpuumd
