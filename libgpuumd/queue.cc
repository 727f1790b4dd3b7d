#include "libgpuumd/queue.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>

namespace gpuumd::client {
namespace {

constexpr std::uint32_t kDefaultSlots = 1024;
// A futex does not tell that the daemon is gone: look this often.
constexpr std::chrono::milliseconds kSleepSlice{20};

}  // namespace

Outcome<std::unique_ptr<Queue>> Queue::create(std::shared_ptr<Session> session, std::uint64_t vm,
                                              const gpuumd_queue_options* in, const Wait& wait) {
  gpuumd_queue_options defaults{};
  defaults.size = sizeof(defaults);
  const auto options = read_options(in, defaults, "gpuumd_queue_options");
  if (!options) return std::unexpected(options.error());
  if ((options->flags & ~std::uint32_t{GPUUMD_QUEUE_SINGLE_THREAD}) != 0)
    return invalid("queue flags " + std::to_string(options->flags));
  wire::CreateQueue request{};
  request.vm = vm;
  request.slots = options->slots != 0 ? options->slots : kDefaultSlots;
  request.priority = options->priority;
  auto reply = session->call(wire::RequestType::kCreateQueue, request, wait);
  if (!reply) return std::unexpected(reply.error());
  const std::uint32_t slots = reply->body.slot;
  const std::uint64_t bytes =
      wire::kQueueSlotsOffset + std::uint64_t{slots} * sizeof(wire::CommandSlot);
  const auto sealed = reply->descriptors.size() == 1
                          ? base::sealed_size(reply->descriptors[0].get())
                          : base::Result<std::uint64_t>(0);
  if (!std::has_single_bit(slots) || slots > wire::kMaxQueueSlots || !sealed || *sealed < bytes)
    return fail(GPUUMD_PROTOCOL, "memory of the queue");
  auto mapping = base::Mapping::map(reply->descriptors[0].get(), 0, bytes, PROT_READ | PROT_WRITE);
  if (!mapping) return system_failure(mapping.error());
  ::madvise(mapping->data(), bytes, MADV_DONTFORK);
  return std::unique_ptr<Queue>(new Queue(std::move(session), reply->body.object, vm,
                                          (options->flags & GPUUMD_QUEUE_SINGLE_THREAD) != 0,
                                          std::move(*mapping), slots));
}

Queue::Queue(std::shared_ptr<Session> session, std::uint64_t id, std::uint64_t vm,
             bool single_thread, base::Mapping mapping, std::uint32_t slots)
    : session_(std::move(session)),
      id_(id),
      vm_(vm),
      single_thread_(single_thread),
      mapping_(std::move(mapping)),
      page_(mapping_.at<wire::QueuePage>()),
      commands_(mapping_.at<wire::CommandSlot>(wire::kQueueSlotsOffset)),
      ring_(&page_->ring, slots) {}

Outcome<void> Queue::put(std::span<const wire::CommandSlot> command, const Wait& wait) {
  const auto count = static_cast<std::uint32_t>(command.size());
  const auto held = lock();
  const auto room = ring_.room();
  if (!room) return fail(GPUUMD_PROTOCOL, "the daemon's index of the queue's ring");
  if (*room < count) {
    publish();
    if (auto done = wait_room(count, wait); !done) return done;
  }
  for (std::uint32_t i = 0; i < count; ++i)
    store_shared(&commands_[ring_.slot(i)], &command[i], sizeof(wire::CommandSlot));
  ring_.fill(count);
  return {};
}

Outcome<void> Queue::submit() {
  const auto held = lock();
  publish();
  return {};
}

void Queue::publish() {
  ring_.publish();
  session_->ring_doorbell();
}

Outcome<void> Queue::wait_room(std::uint32_t slots, const Wait& wait) {
  const TimePoint spin_end = wait.spin_end();
  const TimePoint half = wait.start + (wait.deadline - wait.start) / 2;
  TimePoint next_look = Clock::now() + kLiveness;
  Session::Ping ping;
  for (unsigned spins = 1;; ++spins) {
    const auto room = ring_.room();
    if (!room) return fail(GPUUMD_PROTOCOL, "the daemon's index of the queue's ring");
    if (*room >= slots) return {};
    if (spins % 64 != 0) {
      relax();
      continue;
    }
    const TimePoint now = Clock::now();
    if (now >= wait.deadline) return session_->gave_up(ping, "room in the queue");
    if (now >= half && !ping.sent) session_->ping(ping);
    if (now >= next_look) {
      next_look = now + kLiveness;
      if (session_->hung_up()) return session_->gave_up(ping, "room in the queue");
    }
    if (now >= spin_end) sleep_for_room(slots, wait);
  }
}

void Queue::sleep_for_room(std::uint32_t slots, const Wait& wait) {
  publish_sleeping(page_->producer_sleeping, true);
  const std::uint32_t seen = load_acquire(page_->ring.head);
  if (const auto room = ring_.room(); room && *room < slots) {
    const auto slice = std::min<nanoseconds>(wait.left(), kSleepSlice);
    if (slice.count() > 0) {
      const timespec timeout{0, static_cast<long>(slice.count())};
      ::syscall(SYS_futex, &page_->ring.head, FUTEX_WAIT, seen, &timeout, nullptr, 0);
    }
  }
  publish_sleeping(page_->producer_sleeping, false);
}

}  // namespace gpuumd::client
