#include "daemon/session/session.h"

#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "daemon/ipc/status.h"
#include "daemon/session/device.h"
#include "gpuumd/gpuumd.h"

namespace gpuumd {
namespace {

// A wait longer than this is a mistake in units.
constexpr auto kLongestWait = std::chrono::hours(24);

// What the client says, in a range that can be added to a point in time.
Duration bounded(std::uint64_t timeout_ns) {
  const auto limit = std::chrono::duration_cast<std::chrono::nanoseconds>(kLongestWait);
  return std::chrono::nanoseconds(std::min(timeout_ns, static_cast<std::uint64_t>(limit.count())));
}

std::string object_text(ObjectId id) { return "object " + std::to_string(id.value()); }

std::uint32_t kind_of(const Buffer& buffer) {
  switch (buffer.kind()) {
    case BufferKind::kVram:
      return GPUUMD_BUFFER_VRAM;
    case BufferKind::kHost:
      return GPUUMD_BUFFER_HOST;
    case BufferKind::kImport:
      return GPUUMD_BUFFER_IMPORT;
  }
  return 0;
}

}  // namespace

Session::Session(Device& device, SessionId id, ClientIdentity client, Channel& channel,
                 std::unique_ptr<FenceSlots> fences)
    : device_(device),
      id_(id),
      client_(std::move(client)),
      channel_(channel),
      fence_slots_(std::move(fences)) {}

Session::~Session() { assert(open_ == 0 && vms_.empty() && queues_.empty()); }

void Session::reply(RequestId id, base::Result<Reply> result) {
  // What a device does not do because it is going ends in several ways; the client is told the
  // cause.
  const auto of_the_device = [](base::Errc code) {
    return code == base::Errc::kTimeout || code == base::Errc::kDisconnected ||
           code == base::Errc::kDeviceError || code == base::Errc::kProtocol;
  };
  if (!result && of_the_device(result.error().code) && device_.gpu().has_gone())
    result.error().code = base::Errc::kDeviceLost;
  channel_.reply(id, std::move(result));
}

template <class Call>
auto Session::later(Call call) {
  ++open_;
  return [this, call = std::move(call)](auto&&... args) mutable {
    call(std::forward<decltype(args)>(args)...);
    one_less();
  };
}

void Session::one_less() {
  --open_;
  if (closing_) finish_close();
}

void Session::handle(RequestId id, Request request) {
  std::visit([&](auto& what) { on(id, what); }, request);
}

Vm* Session::find_vm(ObjectId id) {
  const auto it = vms_.find(id.value());
  return it == vms_.end() || it->second.ending ? nullptr : it->second.vm.get();
}

base::Result<BufferRef> Session::buffer(ObjectId id) const {
  const auto it = buffers_.find(id.value());
  if (it == buffers_.end())
    return base::fail(base::Errc::kNotFound, object_text(id) + " is no buffer of this session");
  return it->second.buffer;
}

bool Session::uses(const Buffer& buffer) const { return buffers_.contains(buffer.id().value()); }

// ---- requests ----

void Session::on(RequestId id, const request::Nop&) { reply(id, reply::Done{}); }

void Session::on(RequestId id, const request::CreateVm& what) {
  if (vms_.size() + vms_coming_ >= kMaxVms)
    return reply(id, base::fail(base::Errc::kLimit, "VMs of a session: 16"));
  ++vms_coming_;
  Vm::create({device_.gpu(), device_.scheduler(), device_.buffers()}, device_.next_object_id(),
             what.faults, fence_slots_->page(),
             later([this, id](base::Result<std::unique_ptr<Vm>> made) {
               --vms_coming_;
               if (!made) return reply(id, std::unexpected(made.error()));
               const auto object = (*made)->id();
               device_.add_vm(**made, *this);
               vms_.emplace(object.value(), VmEntry{std::move(*made)});
               reply(id, reply::Created{object});
             }));
}

void Session::on(RequestId id, const request::CreateBuffer& what) {
  if (buffers_.size() + buffers_coming_ >= kMaxBuffers)
    return reply(id, base::fail(base::Errc::kLimit, "buffers of a session: 4096"));
  ++buffers_coming_;
  device_.buffers().create(device_.next_object_id(), what, client_.uid,
                           later([this, id](base::Result<BufferRef> made) {
                             --buffers_coming_;
                             buffer_ready(id, std::move(made));
                           }));
}

void Session::buffer_ready(RequestId id, base::Result<BufferRef> made) {
  if (!made) return reply(id, std::unexpected(made.error()));
  if (closing_) return;  // undone by letting go of it
  auto& buffer = **made;
  reply::BufferReady ready;
  ready.object = buffer.id();
  ready.kind = kind_of(buffer);
  ready.bytes = buffer.bytes();
  if (buffer.kind() == BufferKind::kHost) {
    auto memory = buffer.host().fd()->duplicate();
    if (!memory) return reply(id, std::unexpected(memory.error()));
    ready.memory = std::move(*memory);
    ready.page_bytes =
        buffer.host().pages() == HostPages::kHuge2M ? 2 * base::kMiB : base::kPageSize;
  }
  auto& entry = buffers_[buffer.id().value()];
  entry.buffer = std::move(*made);
  ++entry.handles;
  reply(id, std::move(ready));
}

base::Result<BindStep> Session::resolve(const request::BindOperation& operation,
                                        std::size_t index) {
  BindStep step;
  step.map = operation.map;
  step.va = operation.va;
  step.bytes = operation.bytes;
  if (!operation.map) return step;
  auto found = buffer(operation.buffer);
  if (!found) return base::fail_within("operation " + std::to_string(index), found.error());
  step.buffer = std::move(*found);
  step.offset = operation.offset;
  step.rights = {.read = operation.read, .write = operation.write};
  step.on_fault = operation.on_fault;
  step.window = operation.fault_window != 0 ? operation.fault_window : 2 * base::kMiB;
  return step;
}

void Session::on(RequestId id, const request::Bind& what) {
  auto* vm = find_vm(what.vm);
  if (vm == nullptr)
    return reply(id, base::fail(base::Errc::kNotFound, object_text(what.vm) + " is no VM"));
  std::vector<BindStep> steps;
  for (std::size_t i = 0; i < what.operations.size(); ++i) {
    auto step = resolve(what.operations[i], i);
    if (!step) return reply(id, std::unexpected(step.error()));
    steps.push_back(std::move(*step));
  }
  vm->bind(std::move(steps), later([this, id](base::Result<void> bound) {
             if (!bound) return reply(id, std::unexpected(bound.error()));
             reply(id, reply::Done{});
           }));
}

void Session::on(RequestId id, const request::CreateQueue& what) {
  auto* vm = find_vm(what.vm);
  if (vm == nullptr)
    return reply(id, base::fail(base::Errc::kNotFound, object_text(what.vm) + " is no VM"));
  if (queues_.size() >= kMaxQueues)
    return reply(id, base::fail(base::Errc::kLimit, "queues of a session: 64"));
  auto ring = QueueRing::create(what.slots);
  if (!ring) return reply(id, std::unexpected(ring.error()));
  reply::QueueReady ready;
  ready.object = device_.next_object_id();
  ready.slots = ring->slots();
  ready.ring = ring->take_descriptor();
  auto& queue = device_.scheduler().add_queue(
      ready.object, vm->work(), std::move(*ring),
      [this](ObjectId fence) -> FencePlace {
        const auto it = fences_.find(fence.value());
        if (it == fences_.end()) return {};
        return {it->second, FenceSlots::address(it->second->index())};
      },
      what.high_priority);
  queues_.emplace(ready.object.value(), QueueEntry{&queue, what.vm});
  reply(id, std::move(ready));
}

void Session::on(RequestId id, const request::CreateFence&) {
  const auto slot = fence_slots_->take();
  if (!slot) return reply(id, std::unexpected(slot.error()));
  const auto object = device_.next_object_id();
  // Work in flight may keep the fence beyond its destruction by the client; then its slot is not
  // free.
  std::shared_ptr<Fence> fence(new Fence(object, fence_slots_->slot(*slot), *slot),
                               [slots = fence_slots_.get()](Fence* gone) {
                                 const auto index = gone->index();
                                 delete gone;
                                 slots->give_back(index);
                               });
  fences_.emplace(object.value(), std::move(fence));
  reply(id, reply::FenceReady{object, *slot});
}

void Session::on(RequestId id, const request::WaitFence& what) {
  const auto it = fences_.find(what.fence.value());
  if (it == fences_.end())
    return reply(id, base::fail(base::Errc::kNotFound, object_text(what.fence) + " is no fence"));
  const auto wait = next_wait_++;
  const auto waiter =
      it->second->wait(what.point, [this, id, wait](base::Result<std::uint64_t> value) {
        waits_.erase(wait);
        if (!value) return reply(id, std::unexpected(value.error()));
        reply(id, reply::FenceReached{*value});
      });
  if (waiter == 0) return;
  auto timer =
      device_.gpu().reactor().after(bounded(what.timeout_ns), "fence wait", [this, id, wait] {
        auto node = waits_.extract(wait);
        if (node.empty()) return;
        node.mapped().fence->cancel(node.mapped().waiter);
        reply(id, base::fail(base::Errc::kTimeout, "wait for a fence"));
      });
  waits_.emplace(wait, FenceWait{it->second, waiter, std::move(timer)});
}

void Session::on(RequestId id, const request::Destroy& what) {
  const auto object = what.object;
  auto answer = [this, id] { reply(id, reply::Done{}); };
  if (find_vm(object) != nullptr) return destroy_vm(object, later(answer));
  if (const auto it = queues_.find(object.value()); it != queues_.end() && !it->second.ending)
    return destroy_queue(object, later(answer));
  if (auto fence = fences_.extract(object.value()); !fence.empty()) {
    fence.mapped()->abandon();
    return answer();
  }
  if (const auto it = buffers_.find(object.value()); it != buffers_.end()) {
    if (--it->second.handles > 0) return answer();
    const auto gone = buffers_.extract(it);  // its end may come back here: a revoke, an answer
    return answer();
  }
  reply(id, base::fail(base::Errc::kNotFound, object_text(object)));
}

void Session::on(RequestId id, const request::Export& what) {
  auto found = buffer(what.buffer);
  if (!found) return reply(id, std::unexpected(found.error()));
  device_.exports().export_buffer(std::move(*found),
                                  later([this, id](base::Result<ExportHandle> handle) {
                                    if (!handle) return reply(id, std::unexpected(handle.error()));
                                    reply(id, reply::Exported{*handle});
                                  }));
}

void Session::on(RequestId id, const request::Revoke& what) {
  auto found = buffer(what.buffer);
  if (!found) return reply(id, std::unexpected(found.error()));
  device_.exports().revoke(**found, later([this, id, kept = *found](base::Result<void> revoked) {
    if (!revoked) return reply(id, std::unexpected(revoked.error()));
    reply(id, reply::Done{});
  }));
}

void Session::on(RequestId id, const request::Import& what) {
  if (buffers_.size() + buffers_coming_ >= kMaxBuffers)
    return reply(id, base::fail(base::Errc::kLimit, "buffers of a session: 4096"));
  ++buffers_coming_;
  device_.exports().import(what.handle, client_.uid, bounded(what.timeout_ns),
                           later([this, id](base::Result<BufferRef> made) {
                             --buffers_coming_;
                             buffer_ready(id, std::move(made));
                           }));
}

void Session::on(RequestId id, const request::Share& what) {
  auto found = buffer(what.buffer);
  if (!found) return reply(id, std::unexpected(found.error()));
  auto descriptor = device_.share(std::move(*found), client_.uid);
  if (!descriptor) return reply(id, std::unexpected(descriptor.error()));
  reply(id, reply::Shared{std::move(*descriptor)});
}

void Session::on(RequestId id, request::OpenShared& what) {
  if (buffers_.size() + buffers_coming_ >= kMaxBuffers)
    return reply(id, base::fail(base::Errc::kLimit, "buffers of a session: 4096"));
  buffer_ready(id, device_.open_shared(what.key));
}

void Session::on(RequestId id, const request::QueryObject& what) {
  const auto state = [this](std::optional<base::Errc> bad) {
    if (!bad && device_.gpu().lost()) bad = base::Errc::kDeviceLost;
    return bad ? static_cast<std::int32_t>(to_status(*bad)) : 0;
  };
  const auto key = what.object.value();
  reply::ObjectState answer;
  if (const auto* vm = find_vm(what.object)) {
    answer = {static_cast<std::uint32_t>(wire::ObjectKind::kVm), state(vm->dead())};
  } else if (const auto b = buffers_.find(key); b != buffers_.end()) {
    answer = {static_cast<std::uint32_t>(wire::ObjectKind::kBuffer),
              state(b->second.buffer->gone())};
  } else if (const auto q = queues_.find(key); q != queues_.end()) {
    answer = {static_cast<std::uint32_t>(wire::ObjectKind::kQueue),
              state(q->second.queue->broken_by())};
  } else if (fences_.contains(key)) {
    answer = {static_cast<std::uint32_t>(wire::ObjectKind::kFence), 0};
  } else {
    return reply(id, base::fail(base::Errc::kNotFound, object_text(what.object)));
  }
  reply(id, answer);
}

// ---- queues and ends ----

bool Session::poll_queues() {
  bool any = false;
  for (auto& [id, entry] : queues_) {
    if (entry.ending) continue;
    auto read = entry.queue->read_ring();
    if (!read) {
      channel_.fail(read.error());
      return any;
    }
    any |= *read;
  }
  return any;
}

void Session::destroy_queue(ObjectId id, std::move_only_function<void()> done) {
  auto& entry = queues_.at(id.value());
  entry.ending = true;
  device_.scheduler().remove_queue(*entry.queue, [this, id, done = std::move(done)]() mutable {
    queues_.erase(id.value());
    done();
  });
}

// Work first, then queues, then the space itself.
void Session::destroy_vm(ObjectId id, std::move_only_function<void()> done) {
  auto& entry = vms_.at(id.value());
  entry.ending = true;
  auto& vm = *entry.vm;
  vm.kill(base::Errc::kNotFound, {});
  auto left = std::make_shared<std::size_t>(1);
  auto last = std::make_shared<std::move_only_function<void()>>(
      [this, id, &vm, done = std::move(done)]() mutable {
        device_.faults().forget(vm);
        vm.end([this, id, done = std::move(done)]() mutable {
          device_.remove_vm(*vms_.at(id.value()).vm);
          // The Vm is in the middle of its own call.
          device_.gpu().reactor().post([this, id, done = std::move(done)]() mutable {
            vms_.erase(id.value());
            done();
          });
        });
      });
  const auto one = [left, last] {
    if (--*left == 0) (*last)();
  };
  std::vector<ObjectId> queues;
  for (const auto& [key, queue] : queues_)
    if (queue.vm == id && !queue.ending) queues.push_back(ObjectId(key));
  for (const auto queue : queues) {
    ++*left;
    destroy_queue(queue, one);
  }
  one();
}

void Session::close(std::move_only_function<void()> done) {
  closing_ = std::move(done);
  ++open_;
  for (auto& [key, wait] : waits_) wait.fence->cancel(wait.waiter);
  waits_.clear();
  std::vector<ObjectId> vms;
  for (const auto& [key, entry] : vms_)
    if (!entry.ending) vms.push_back(ObjectId(key));
  for (const auto vm : vms) destroy_vm(vm, later([] {}));
  std::exchange(buffers_, {}).clear();
  one_less();
}

void Session::finish_close() {
  if (open_ > 0) return;
  // What was made while the session was closing goes the same way.
  for (const auto& [key, entry] : vms_)
    if (!entry.ending) return destroy_vm(ObjectId(key), later([] {}));
  if (!vms_.empty() || !queues_.empty()) return;
  fences_.clear();
  device_.remove_session(*this);
  std::exchange(closing_, nullptr)();
}

}  // namespace gpuumd
