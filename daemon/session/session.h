// One session: a connection's objects on one GPU (docs/architecture.md "Who owns what"). It carries
// out what daemon/ipc has checked for shape, checks the rest, and gives everything up when the
// client goes. Device thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/result.h"
#include "daemon/ipc/channel.h"
#include "daemon/ipc/session_handler.h"
#include "daemon/session/buffer_store.h"
#include "daemon/session/fence_page.h"
#include "daemon/session/vm.h"
#include "daemon/submit/fence.h"
#include "daemon/submit/scheduler.h"

namespace gpuumd {

class Device;

class Session final : public SessionHandler {
 public:
  static constexpr std::size_t kMaxVms = 16;
  static constexpr std::size_t kMaxQueues = 64;
  static constexpr std::size_t kMaxBuffers = 4096;

  Session(Device& device, SessionId id, ClientIdentity client, Channel& channel,
          std::unique_ptr<FenceSlots> fences);
  ~Session() override;

  void handle(RequestId id, Request request) override;
  bool poll_queues() override;
  void close(std::move_only_function<void()> done) override;

  SessionId id() const { return id_; }
  const ClientIdentity& client() const { return client_; }
  Channel& channel() { return channel_; }
  bool closing() const { return closing_ != nullptr; }

  Vm* find_vm(ObjectId id);
  // Whether the session has a handle of the buffer, or a mapping.
  bool uses(const Buffer& buffer) const;
  template <class Visit>
  void for_each_vm(Visit visit) {
    for (auto& [id, vm] : vms_) visit(*vm.vm);
  }
  struct Counts {
    std::size_t vms, queues, buffers, fences;
  };
  Counts counts() const { return {vms_.size(), queues_.size(), buffers_.size(), fences_.size()}; }

 private:
  // A buffer that came in twice (imported again, received again) is one object with one id, and
  // is destroyed as often as it came.
  struct BufferEntry {
    BufferRef buffer;
    std::uint64_t handles = 0;
  };
  struct VmEntry {
    std::unique_ptr<Vm> vm;
    bool ending = false;
  };
  struct QueueEntry {
    WorkQueue* queue;
    ObjectId vm;
    bool ending = false;
  };

  void reply(RequestId id, base::Result<Reply> result);
  // Counts an answer that comes later, so that the session outlives it.
  template <class Call>
  auto later(Call call);
  void one_less();

  void on(RequestId id, const request::Nop&);
  void on(RequestId id, const request::CreateVm& what);
  void on(RequestId id, const request::CreateBuffer& what);
  void on(RequestId id, const request::Bind& what);
  void on(RequestId id, const request::CreateQueue& what);
  void on(RequestId id, const request::CreateFence&);
  void on(RequestId id, const request::WaitFence& what);
  void on(RequestId id, const request::Destroy& what);
  void on(RequestId id, const request::Export& what);
  void on(RequestId id, const request::Revoke& what);
  void on(RequestId id, const request::Import& what);
  void on(RequestId id, const request::Share& what);
  void on(RequestId id, request::OpenShared& what);
  void on(RequestId id, const request::QueryObject& what);

  base::Result<BindStep> resolve(const request::BindOperation& operation, std::size_t index);
  base::Result<BufferRef> buffer(ObjectId id) const;
  void buffer_ready(RequestId id, base::Result<BufferRef> buffer);
  void destroy_vm(ObjectId id, std::move_only_function<void()> done);
  void destroy_queue(ObjectId id, std::move_only_function<void()> done);
  void finish_close();

  Device& device_;
  SessionId id_;
  ClientIdentity client_;
  Channel& channel_;
  std::unique_ptr<FenceSlots> fence_slots_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Fence>> fences_;
  std::unordered_map<std::uint64_t, BufferEntry> buffers_;
  std::unordered_map<std::uint64_t, VmEntry> vms_;
  std::unordered_map<std::uint64_t, QueueEntry> queues_;
  std::size_t vms_coming_ = 0;
  std::size_t buffers_coming_ = 0;
  unsigned open_ = 0;  // answers that come later
  struct FenceWait {
    std::shared_ptr<Fence> fence;
    Fence::WaiterId waiter;
    Registration timer;
  };
  std::unordered_map<std::uint64_t, FenceWait> waits_;
  std::uint64_t next_wait_ = 1;
  std::move_only_function<void()> closing_;
};

}  // namespace gpuumd
