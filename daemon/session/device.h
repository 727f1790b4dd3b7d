// A device as clients see it: one GPU with its sessions. Owns everything of that GPU and lives on
// its reactor (docs/architecture.md "Who owns what"). Device thread, unless marked.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "daemon/gpu/device/gpu.h"
#include "daemon/ipc/session_handler.h"
#include "daemon/ipc/share_table.h"
#include "daemon/reactor/log_limit.h"
#include "daemon/session/buffer_store.h"
#include "daemon/session/exports.h"
#include "daemon/session/faults.h"
#include "daemon/session/session.h"
#include "daemon/submit/scheduler.h"
#include "gpuumd/wire.h"

namespace gpuumd {

struct DeviceOptions {
  std::uint32_t index = 0;  // in the daemon's list
  GpuOptions gpu;
  ExportOptions exports;
  Duration fault_deadline = std::chrono::seconds(1);
  std::uint64_t first_object_id = 1;
};

class Device final : public DeviceHost, public GpuEvents, public ImportOwner {
 public:
  // `changed` is told when what info() says has changed; on the device's thread.
  Device(Reactor& reactor, MemoryWorker& worker, std::unique_ptr<vfio::PciDevice> device,
         const DeviceOptions& options,
         std::move_only_function<void(const wire::DeviceInfo&)> changed);
  ~Device() override;

  // Brings the GPU up and joins its pod. `done` with the error of the step that failed.
  void start(Done done);
  // Sessions are closed by now. Leaves the pod, takes the GPU down.
  void shut_down(Done done);
  wire::DeviceInfo info() const;

  // DeviceHost
  void open_session(SessionId id, const ClientIdentity& client, Channel& channel,
                    std::move_only_function<void(base::Result<OpenedSession>)> done) override;
  void query(std::uint32_t kind, const ClientIdentity& client,
             std::move_only_function<void(base::Result<std::string>)> done) override;

  // Parts, for sessions.
  Gpu& gpu() { return gpu_; }
  Scheduler& scheduler() { return *scheduler_; }
  BufferStore& buffers() { return buffers_; }
  FaultPipeline& faults() { return faults_; }
  Exports& exports() { return *exports_; }
  ObjectId next_object_id() override { return ObjectId(next_object_++); }
  void add_vm(Vm& vm, Session& session);
  void remove_vm(Vm& vm);
  void remove_session(Session& session);

  // A descriptor that holds a reference to the buffer until its last copy is closed.
  base::Result<base::UniqueFd> share(BufferRef buffer, uid_t uid);  // charged to the uid
  base::Result<BufferRef> open_shared(ShareKey key);

 private:
  struct VmOwner {
    Vm* vm;
    Session* session;
  };

  // GpuEvents
  void retry_faults_arrived() override;
  void access_failed(const PageFault& fault) override;
  void queue_stopped(const QueueStop& stop) override;
  void fabric_message(std::uint32_t sender, const std::array<std::uint32_t, 4>& dwords) override;
  void security_request(const psp::Request& request) override;
  void device_lost(const base::Error& why) override;
  // ImportOwner
  void detach_import(Buffer& buffer, base::Errc why, Done done) override;
  void peer_changed(base::AccelId peer, bool up) override;

  void ready();
  bool poll();
  void housekeep();
  Vm* vm_of(base::Pasid pasid) const;
  Vm* vm_of(ObjectId id) const;
  void fatal(Vm& vm, const FaultPipeline::Fatal& what);
  void tell(Vm& vm, const Event& event);
  void tell_all(const Event& event);

  std::string status_json() const;
  std::string clients_json(const ClientIdentity& client) const;
  std::string exports_json(const ClientIdentity& client) const;
  std::string imports_json(const ClientIdentity& client) const;
  std::string peers_json() const;
  std::string faults_json() const;

  DeviceOptions options_;
  std::move_only_function<void(const wire::DeviceInfo&)> changed_;
  std::uint64_t next_object_;
  Gpu gpu_;
  BufferStore buffers_;
  FaultPipeline faults_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Exports> exports_;
  std::unique_ptr<ShareTable> shares_;
  struct SharedBuffer {
    BufferRef buffer;
    uid_t uid;
  };
  void unshare(ShareKey key);
  std::unordered_map<std::uint64_t, SharedBuffer> shared_;  // by ShareKey
  std::unordered_map<std::uint16_t, VmOwner> vms_;          // by PASID
  std::unordered_map<std::uint64_t, Session*> sessions_;
  TimePoint started_{};
  Registration poller_;
  Registration housekeeping_;
  TimePoint next_look_{};  // for a reset by others, while work is in flight
  // Accesses of clients' work that the host bus refused.
  struct BusErrors {
    std::uint64_t count = 0;
    base::Iova last;
  } bus_errors_;
  LogLimit refusals_{20};
  LogLimit deaths_{20};  // a client can make a VM die as often as it likes
};

}  // namespace gpuumd
