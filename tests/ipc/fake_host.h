// A device host for tests: real bookkeeping, memory instead of a GPU, commands run at once on the
// reactor thread. Knobs make it slow or silent.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/shared_memory.h"
#include "daemon/ipc/channel.h"
#include "daemon/ipc/queue_ring.h"
#include "daemon/ipc/session_handler.h"
#include "daemon/ipc/share_table.h"
#include "daemon/reactor/reactor.h"
#include "gpuumd/gpuumd.h"
#include "gpuumd/ring.h"
#include "gpuumd/wire.h"

namespace gpuumd::fake {

struct Knobs {
  std::atomic<bool> hold_vm{false};        // create VM is answered when the session ends
  std::atomic<bool> hold_commands{false};  // commands stay in their rings
  std::atomic<int> refuse_vm{0};           // an Errc: create VM fails with it
  std::atomic<bool> hold_close{false};     // close() does not finish
  std::atomic<bool> stall_reactor{false};  // the reactor spins in poll_queues()
  std::atomic<int> sessions{0};            // handlers alive
  std::atomic<int> closed{0};              // handlers that were closed
  std::atomic<int> requests{0};
  std::atomic<int> commands{0};
  std::atomic<int> objects{0};
  std::atomic<int> destroyed{0};  // by request
};

struct Memory {
  base::UniqueFd fd;
  base::Mapping map;
  bool host = false;
};

class FakeSession final : public SessionHandler {
 public:
  static constexpr std::uint32_t kFenceSlots = 256;

  FakeSession(Reactor& reactor, Channel& channel, Knobs& knobs, ShareTable& shares,
              std::unordered_map<std::uint64_t, std::shared_ptr<Memory>>& shared,
              std::uint64_t& next_id)
      : reactor_(reactor),
        channel_(channel),
        knobs_(knobs),
        shares_(shares),
        shared_(shared),
        next_id_(next_id) {
    ++knobs_.sessions;
  }
  ~FakeSession() override {
    knobs_.objects -= static_cast<int>(objects());
    --knobs_.sessions;
  }

  base::Result<base::UniqueFd> make_fences() {
    auto fd = base::make_memfd("fake-fences", kFenceSlots * sizeof(wire::FenceSlot), 0);
    if (!fd) return fd;
    auto map = base::Mapping::map(fd->get(), 0, kFenceSlots * sizeof(wire::FenceSlot),
                                  PROT_READ | PROT_WRITE);
    if (!map) return std::unexpected(map.error());
    fences_ = std::move(*map);
    if (::fcntl(fd->get(), F_ADD_SEALS, base::kSizeSeals | F_SEAL_FUTURE_WRITE) != 0)
      return base::fail(base::Errc::kSystem, "seal", errno);
    return fd;
  }

  void handle(RequestId id, Request request) override {
    ++knobs_.requests;
    std::visit([&](auto& one) { on(id, one); }, request);
  }

  bool poll_queues() override {
    while (knobs_.stall_reactor) {
    }
    if (knobs_.hold_commands) return false;
    bool worked = false;
    for (auto& [id, queue] : queues_) {
      for (int i = 0; i < 16; ++i) {
        if (queue.waiting && value(queue.waiting->fence) < queue.waiting->point) break;
        queue.waiting.reset();
        auto next = queue.ring.next();
        if (!next) {
          channel_.fail(next.error());
          return worked;
        }
        if (!*next) break;
        ++knobs_.commands;
        worked = true;
        std::visit([&](auto& command) { run(queue, command); }, **next);
      }
    }
    return worked;
  }

  void close(std::move_only_function<void()> done) override {
    ++knobs_.closed;
    if (knobs_.hold_close) {
      held_close_ = std::move(done);
      return;
    }
    done();
  }

  void finish_close() { std::exchange(held_close_, nullptr)(); }
  Channel& channel() { return channel_; }
  // Test side, on the reactor thread.
  void set_fence(std::uint64_t id, std::uint64_t value) {
    store_release(slot(id).value, value);
    check_waits();
  }
  void fail_fence(std::uint64_t id, std::int32_t error, std::uint64_t first, std::uint64_t value) {
    __atomic_store_n(&slot(id).error, error, __ATOMIC_RELAXED);
    __atomic_store_n(&slot(id).first_failed_point, first, __ATOMIC_RELAXED);
    set_fence(id, value);
  }

 private:
  struct Mapping {
    std::shared_ptr<Memory> memory;
    std::uint64_t bytes = 0, offset = 0;
  };
  struct Vm {
    std::map<std::uint64_t, Mapping> maps;
  };
  struct Queue {
    QueueRing ring;
    std::uint64_t vm;
    std::optional<command::Wait> waiting;
  };
  struct FenceWait {
    RequestId request;
    std::uint64_t fence, point;
    Registration timer;
  };

  std::size_t objects() const {
    return vms_.size() + buffers_.size() + queues_.size() + fence_slots_.size();
  }
  ObjectId made() {
    ++knobs_.objects;
    return ObjectId(next_id_++);
  }
  wire::FenceSlot& slot(std::uint64_t fence) {
    return fences_.at<wire::FenceSlot>()[fence_slots_.at(fence)];
  }
  std::uint64_t value(ObjectId fence) {  // of a destroyed fence: nobody waits for it
    return fence_slots_.contains(fence.value()) ? load_acquire(slot(fence.value()).value)
                                                : ~std::uint64_t{0};
  }
  void not_found(RequestId id, const char* what, ObjectId object) {
    channel_.reply(id, base::fail(base::Errc::kNotFound,
                                  std::string(what) + " " + std::to_string(object.value())));
  }

  void on(RequestId id, request::Nop&) { channel_.reply(id, Reply(reply::Done{})); }
  void on(RequestId id, request::CreateVm&) {
    if (knobs_.hold_vm) {
      held_.push_back(id);
      return;
    }
    if (const int code = knobs_.refuse_vm; code != 0) {
      channel_.reply(id, base::fail(static_cast<base::Errc>(code), "VM of the test"));
      return;
    }
    const ObjectId object = made();
    vms_[object.value()];
    channel_.reply(id, Reply(reply::Created{object}));
  }
  void on(RequestId id, request::CreateBuffer& in) {
    const std::uint64_t bytes = base::align_up(in.bytes, base::kPageSize);
    if (bytes > 64 * base::kMiB) {
      channel_.reply(
          id, base::fail(base::Errc::kNoSpace, "buffer of " + std::to_string(bytes) + " bytes"));
      return;
    }
    auto memory = std::make_shared<Memory>();
    memory->fd = std::move(base::make_memfd("fake-buffer", bytes).value());
    memory->map =
        std::move(base::Mapping::map(memory->fd.get(), 0, bytes, PROT_READ | PROT_WRITE).value());
    memory->host = in.kind == request::Memory::kHost;
    give_buffer(id, std::move(memory));
  }
  void give_buffer(RequestId id, std::shared_ptr<Memory> memory) {
    const ObjectId object = made();
    reply::BufferReady ready;
    ready.object = object;
    ready.kind = memory->host ? GPUUMD_BUFFER_HOST : GPUUMD_BUFFER_VRAM;
    ready.bytes = memory->map.size();
    ready.page_bytes = memory->host ? 4096 : 0;
    if (memory->host) ready.memory = std::move(memory->fd.duplicate().value());
    buffers_[object.value()] = std::move(memory);
    channel_.reply(id, Reply(std::move(ready)));
  }
  void on(RequestId id, request::Bind& in) {
    const auto vm = vms_.find(in.vm.value());
    if (vm == vms_.end()) return not_found(id, "VM", in.vm);
    for (const request::BindOperation& operation : in.operations) {
      if (!operation.map) {
        if (vm->second.maps.erase(operation.va.value()) == 0) {
          channel_.reply(id, base::fail(base::Errc::kNotFound, "mapping"));
          return;
        }
        continue;
      }
      const auto buffer = buffers_.find(operation.buffer.value());
      if (buffer == buffers_.end()) return not_found(id, "buffer", operation.buffer);
      if (!base::fits(operation.offset, operation.bytes, buffer->second->map.size())) {
        channel_.reply(id, base::fail(base::Errc::kOutOfRange, "bind past the end of its buffer"));
        return;
      }
      vm->second.maps[operation.va.value()] = {buffer->second, operation.bytes, operation.offset};
    }
    channel_.reply(id, Reply(reply::Done{}));
  }
  void on(RequestId id, request::CreateQueue& in) {
    if (!vms_.contains(in.vm.value())) return not_found(id, "VM", in.vm);
    auto ring = QueueRing::create(in.slots);
    if (!ring) return channel_.reply(id, std::unexpected(ring.error()));
    const ObjectId object = made();
    reply::QueueReady ready{object, in.slots, ring->take_descriptor()};
    queues_.emplace(object.value(), Queue{std::move(*ring), in.vm.value(), {}});
    channel_.reply(id, Reply(std::move(ready)));
  }
  void on(RequestId id, request::CreateFence&) {
    if (next_slot_ == kFenceSlots) {
      channel_.reply(id, base::fail(base::Errc::kLimit, "fences of a session"));
      return;
    }
    const ObjectId object = made();
    fence_slots_[object.value()] = next_slot_;
    channel_.reply(id, Reply(reply::FenceReady{object, next_slot_++}));
  }
  void on(RequestId id, request::WaitFence& in) {
    if (!fence_slots_.contains(in.fence.value())) return not_found(id, "fence", in.fence);
    const auto raw = id.value();
    const auto timeout = std::min<std::uint64_t>(in.timeout_ns, 60'000'000'000);
    waits_[raw] = {id, in.fence.value(), in.point,
                   reactor_.after(std::chrono::nanoseconds(timeout), "fence wait", [this, raw] {
                     const RequestId request = waits_.at(raw).request;
                     waits_.erase(raw);
                     channel_.reply(request, base::fail(base::Errc::kTimeout, "fence"));
                   })};
    check_waits();
  }
  void on(RequestId id, request::Destroy& in) {
    const std::uint64_t raw = in.object.value();
    const std::size_t gone =
        vms_.erase(raw) + buffers_.erase(raw) + queues_.erase(raw) + fence_slots_.erase(raw);
    if (gone == 0) return not_found(id, "object", in.object);
    --knobs_.objects;
    ++knobs_.destroyed;
    channel_.reply(id, Reply(reply::Done{}));
  }
  void on(RequestId id, request::Export& in) {
    if (!buffers_.contains(in.buffer.value())) return not_found(id, "buffer", in.buffer);
    channel_.reply(id, Reply(reply::Exported{{in.buffer.value() << 10 | 5, 0x1234}}));
  }
  void on(RequestId id, request::Revoke&) { channel_.reply(id, Reply(reply::Done{})); }
  void on(RequestId id, request::Import& in) {
    const auto found = buffers_.find(in.handle.lo >> 10);
    if (found == buffers_.end() || in.handle.hi != 0x1234)
      return channel_.reply(id, base::fail(base::Errc::kNotFound, "export with this handle"));
    give_buffer(id, found->second);
  }
  void on(RequestId id, request::Share& in) {
    const auto found = buffers_.find(in.buffer.value());
    if (found == buffers_.end()) return not_found(id, "buffer", in.buffer);
    auto pair = shares_.make();
    if (!pair) return channel_.reply(id, std::unexpected(pair.error()));
    shared_[pair->first.value()] = found->second;
    channel_.reply(id, Reply(reply::Shared{std::move(pair->second)}));
  }
  void on(RequestId id, request::OpenShared& in) {
    const auto found = shared_.find(in.key.value());
    if (found == shared_.end())
      return channel_.reply(id, base::fail(base::Errc::kNotFound, "shared buffer"));
    give_buffer(id, found->second);
  }
  void on(RequestId id, request::QueryObject& in) {
    if (!vms_.contains(in.object.value())) return not_found(id, "object", in.object);
    channel_.reply(id,
                   Reply(reply::ObjectState{static_cast<std::uint32_t>(wire::ObjectKind::kVm), 0}));
  }

  std::byte* at(const Queue& queue, base::GpuVa va, std::uint64_t bytes) {
    const auto vm = vms_.find(queue.vm);
    if (vm == vms_.end()) return nullptr;
    auto& maps = vm->second.maps;
    auto found = maps.upper_bound(va.value());
    if (found == maps.begin()) return nullptr;
    --found;
    const std::uint64_t inside = va.value() - found->first;
    if (!base::fits(inside, bytes, found->second.bytes)) return nullptr;
    return found->second.memory->map.data() + found->second.offset + inside;
  }
  void fault(const Queue& queue, base::GpuVa va) {
    channel_.event({.kind = GPUUMD_EVENT_FATAL_FAULT,
                    .object = queue.vm,
                    .va = va.value(),
                    .access = GPUUMD_ACCESS_READ,
                    .reason = GPUUMD_FAULT});
  }
  void run(Queue& queue, command::Copy& in) {
    std::byte* to = at(queue, in.to, in.bytes);
    const std::byte* from = at(queue, in.from, in.bytes);
    if (to == nullptr || from == nullptr) return fault(queue, to == nullptr ? in.to : in.from);
    std::memmove(to, from, in.bytes);
  }
  void run(Queue& queue, command::Fill& in) {
    std::byte* to = at(queue, in.to, in.bytes);
    if (to == nullptr) return fault(queue, in.to);
    for (std::uint64_t i = 0; i < in.bytes; i += 4) std::memcpy(to + i, &in.pattern, 4);
  }
  void run(Queue& queue, command::Write& in) {
    std::byte* to = at(queue, in.to, in.bytes);
    if (to == nullptr) return fault(queue, in.to);
    std::memcpy(to, in.data, in.bytes);
  }
  void run(Queue& queue, command::Atomic& in) {
    std::byte* to = at(queue, in.to, in.width);
    if (to == nullptr) return fault(queue, in.to);
    std::uint64_t word = 0;
    std::memcpy(&word, to, in.width);
    if (in.operation == command::AtomicOperation::kAdd) word += in.operand;
    std::memcpy(to, &word, in.width);
  }
  void run(Queue& queue, command::Wait& in) {
    if (fence_slots_.contains(in.fence.value())) queue.waiting = in;
  }
  void run(Queue&, command::Signal& in) {
    if (fence_slots_.contains(in.fence.value())) set_fence(in.fence.value(), in.point);
  }
  void run(Queue& queue, command::Timestamp& in) {
    if (std::byte* to = at(queue, in.to, 8)) std::memset(to, 0x11, 8);
  }

  void check_waits() {
    for (auto one = waits_.begin(); one != waits_.end();) {
      const std::uint64_t now = value(ObjectId(one->second.fence));
      if (now < one->second.point) {
        ++one;
        continue;
      }
      const RequestId request = one->second.request;
      one = waits_.erase(one);
      channel_.reply(request, Reply(reply::FenceReached{now}));
    }
  }

  Reactor& reactor_;
  Channel& channel_;
  Knobs& knobs_;
  ShareTable& shares_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Memory>>& shared_;
  std::uint64_t& next_id_;
  base::Mapping fences_;
  std::uint32_t next_slot_ = 0;
  std::map<std::uint64_t, Vm> vms_;
  std::map<std::uint64_t, std::shared_ptr<Memory>> buffers_;
  std::map<std::uint64_t, Queue> queues_;
  std::map<std::uint64_t, std::uint32_t> fence_slots_;
  std::map<std::uint64_t, FenceWait> waits_;
  std::vector<RequestId> held_;
  std::move_only_function<void()> held_close_;
};

// Made and destroyed anywhere; used on the reactor thread.
class FakeHost final : public DeviceHost {
 public:
  explicit FakeHost(Reactor& reactor) : reactor_(reactor) {}

  void open_session(SessionId id, const ClientIdentity& client, Channel& channel,
                    std::move_only_function<void(base::Result<OpenedSession>)> done) override {
    if (!shares_)
      shares_ = std::move(ShareTable::create(reactor_, [this](ShareKey key) {
                            shared_.erase(key.value());
                            ++shares_closed;
                          }).value());
    auto session =
        std::make_unique<FakeSession>(reactor_, channel, knobs, *shares_, shared_, next_id_);
    auto fences = session->make_fences();
    if (!fences) return done(std::unexpected(fences.error()));
    last_session = session.get();
    last_id = id.value();
    last_name = client.name;
    done(OpenedSession{std::move(session), std::move(*fences), FakeSession::kFenceSlots});
  }
  void query(std::uint32_t kind, const ClientIdentity&,
             std::move_only_function<void(base::Result<std::string>)> done) override {
    done("{\"kind\":" + std::to_string(kind) + "}");
  }
  // On the reactor thread, before the reactor ends.
  void end() { shares_.reset(); }

  Knobs knobs;
  FakeSession* last_session = nullptr;  // reactor thread
  std::uint64_t last_id = 0;
  std::string last_name;
  std::atomic<int> shares_closed{0};

 private:
  Reactor& reactor_;
  std::unique_ptr<ShareTable> shares_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Memory>> shared_;
  std::uint64_t next_id_ = 100;
};

}  // namespace gpuumd::fake
