// What a device tells tools (gpuumd_query; docs/protocol.md "Queries"). NPA addresses never appear
// (UAL-3).
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <unordered_map>

#include "daemon/ipc/channel.h"
#include "daemon/ipc/status.h"
#include "daemon/session/device.h"

namespace gpuumd {
namespace {

using nlohmann::json;

json stage_json(const Histogram& histogram) {
  return {{"count", histogram.count()},
          {"p50_ns", histogram.quantile(0.5)},
          {"p99_ns", histogram.quantile(0.99)},
          {"sum_ns", histogram.sum_ns()}};
}

std::string_view connection_text(fabric::ConnectionState state) {
  switch (state) {
    case fabric::ConnectionState::kNotReady:
      return "not ready";
    case fabric::ConnectionState::kInProgress:
      return "in progress";
    case fabric::ConnectionState::kPending:
      return "pending";
    case fabric::ConnectionState::kEstablished:
      return "established";
  }
  return "";
}

// Root and the daemon's own user see everything, others what is their own.
bool may_see(const ClientIdentity& client, uid_t owner) {
  return client.uid == 0 || client.uid == ::geteuid() || client.uid == owner;
}

std::string handle_text(const fabric::Handle& handle) { return fabric::to_string(handle); }

}  // namespace

std::string Device::status_json() const {
  const auto info = this->info();
  const auto& identity = gpu_.identity();
  json out{{"device", identity.name},
           {"index", info.index},
           {"simulated", (info.flags & GPUUMD_DEVICE_SIMULATED) != 0},
           {"state", gpu_.state()},
           {"backend", identity.backend},
           {"vendor", identity.vendor},
           {"device_id", identity.device},
           {"vram_bytes", info.vram_bytes},
           {"xccs", gpu_.topology().xccs.size()},
           {"sessions", sessions_.size()}};
  if (gpu_.lost()) out["why"] = gpu_.lost_why()->message();
  if (!scheduler_) return out.dump();
  auto& self = const_cast<Device&>(*this);  // accessors of parts, used to read counters
  const auto& buffers = buffers_.counters();
  out["vram_reserved_bytes"] = buffers.vram_reserved;
  out["vram_usable_bytes"] = buffers_.usable_vram();
  out["buffers"] = {{"made", buffers.made},
                    {"freed", buffers.freed},
                    {"host_bytes", buffers.host_bytes},
                    {"chunks_cleared", buffers.chunks_cleared},
                    {"quarantined", buffers.quarantined}};
  out["vmids_free"] = self.gpu_.vmids().free();
  const auto& dma = self.gpu_.dma().counters();
  out["dma"] = {{"maps", dma.maps}, {"unmaps", dma.unmaps}, {"mapped_bytes", dma.mapped_bytes}};
  const auto& sched = scheduler_->counters();
  out["bus_errors"] = {{"count", self.bus_errors_.count},
                       {"last_iova", self.bus_errors_.last.value()}};
  if (!gpu_.boot().remarks.empty()) out["remarks"] = gpu_.boot().remarks;
  out["work"] = {{"slices", sched.slices},
                 {"bytes", sched.bytes},
                 {"in_flight", scheduler_->in_flight()},
                 {"slices_lost", sched.slices_lost},
                 {"queue_resets", sched.queue_resets},
                 {"instance_resets", sched.instance_resets}};
  const auto& irq = self.gpu_.interrupts().counters();
  out["interrupts"] = {
      {"vectors", irq.vectors}, {"overflows", irq.overflows}, {"unhandled", irq.unhandled}};
  const auto& flush = self.gpu_.flushes().counters();
  out["tlb"] = {{"requests", flush.requests},
                {"flushes", flush.flushes},
                {"heavy", flush.heavy},
                {"timeouts", flush.timeouts}};
  if (info.accelerator_id <= 1023) out["accelerator_id"] = info.accelerator_id;
  out["vpod_id"] = info.vpod_id;
  if (exports_->node() != nullptr)
    out["fabric_state"] = fabric::to_string(exports_->node()->state());
  return out.dump();
}

std::string Device::clients_json(const ClientIdentity& client) const {
  json list = json::array();
  for (const auto& [id, session] : sessions_) {
    const auto& who = session->client();
    if (!may_see(client, who.uid)) continue;
    const auto counts = session->counts();
    list.push_back({{"session", id},
                    {"uid", who.uid},
                    {"pid", who.pid},
                    {"name", who.name},
                    {"vms", counts.vms},
                    {"queues", counts.queues},
                    {"buffers", counts.buffers},
                    {"fences", counts.fences}});
  }
  return json{{"device", gpu_.identity().name}, {"clients", std::move(list)}}.dump();
}

// Who knows a handle can import the memory, so handles are shown like sessions.
std::string Device::exports_json(const ClientIdentity& client) const {
  std::unordered_map<std::uint64_t, uid_t> owners;
  buffers_.for_each(
      [&](const Buffer& buffer) { owners.emplace(buffer.id().value(), buffer.uid()); });
  json list = json::array();
  if (exports_ && exports_->node() != nullptr)
    for (const auto& info : exports_->node()->exports()) {
      const auto owner = owners.find(info.buffer.value());
      if (!may_see(client, owner != owners.end() ? owner->second : 0)) continue;
      list.push_back({{"handle", handle_text(info.handle)},
                      {"buffer", info.buffer.value()},
                      {"bytes", info.pages * base::kPageSize},
                      {"importers", info.importers.size()}});
    }
  return json{{"device", gpu_.identity().name}, {"exports", std::move(list)}}.dump();
}

std::string Device::imports_json(const ClientIdentity& client) const {
  std::unordered_map<std::uint64_t, uid_t> owners;
  buffers_.for_each([&](const Buffer& buffer) {
    if (buffer.remote()) owners.emplace(buffer.remote()->import, buffer.uid());
  });
  json list = json::array();
  if (exports_ && exports_->node() != nullptr)
    for (const auto& info : exports_->node()->imports()) {
      const auto owner = owners.find(info.import.value());
      if (!may_see(client, owner != owners.end() ? owner->second : 0)) continue;
      list.push_back({{"handle", handle_text(info.handle)},
                      {"bytes", info.pages * base::kPageSize},
                      {"references", info.references}});
    }
  return json{{"device", gpu_.identity().name}, {"imports", std::move(list)}}.dump();
}

std::string Device::peers_json() const {
  json list = json::array();
  if (exports_ && exports_->node() != nullptr)
    for (const auto& info : exports_->node()->peers())
      list.push_back({{"accelerator_id", info.id.value()},
                      {"state", connection_text(info.state)},
                      {"generation", info.generation},
                      {"link_up", info.link_up}});
  return json{{"device", gpu_.identity().name}, {"peers", std::move(list)}}.dump();
}

std::string Device::faults_json() const {
  const auto& counters = faults_.counters();
  json stages;
  constexpr std::pair<FaultStage, const char*> kNames[] = {
      {FaultStage::kDrain, "drain"},
      {FaultStage::kResolve, "resolve"},
      {FaultStage::kPopulate, "populate"},
      {FaultStage::kWrite, "write"},
      {FaultStage::kAcknowledge, "acknowledge"},
      {FaultStage::kTotal, "total"}};
  for (const auto& [stage, name] : kNames) stages[name] = stage_json(faults_.stage(stage));
  return json{{"device", gpu_.identity().name}, {"taken", counters.taken},
              {"serviced", counters.serviced},  {"joined", counters.joined},
              {"present", counters.present},    {"windows", counters.windows},
              {"pages", counters.pages},        {"fatal", counters.fatal},
              {"stray", counters.stray},        {"timeouts", counters.timeouts},
              {"stages", std::move(stages)}}
      .dump();
}

void Device::query(std::uint32_t kind, const ClientIdentity& client,
                   std::move_only_function<void(base::Result<std::string>)> done) {
  switch (kind) {
    case GPUUMD_QUERY_STATUS:
      return done(status_json());
    case GPUUMD_QUERY_CLIENTS:
      return done(clients_json(client));
    case GPUUMD_QUERY_EXPORTS:
      return done(exports_json(client));
    case GPUUMD_QUERY_IMPORTS:
      return done(imports_json(client));
    case GPUUMD_QUERY_PEERS:
      return done(peers_json());
    case GPUUMD_QUERY_FAULTS:
      return done(faults_json());
    default:
      return done(base::fail(base::Errc::kInvalidArgument, "kind of query"));
  }
}

}  // namespace gpuumd
