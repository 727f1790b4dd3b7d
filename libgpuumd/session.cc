#include "libgpuumd/session.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <ctime>

namespace gpuumd::client {
namespace {

// Of the places for open requests, how many sleeping waits for fences may take: others must get
// through.
constexpr std::uint32_t kMaxSleepingWaits = 32;

// While polling for a reply: looks between two readings of the clock, and looks before the
// processor is told that it spins, which costs up to 140 cycles each time.
constexpr unsigned kSpinsALook = 64;
constexpr unsigned kEagerSpins = 1024;

constexpr std::size_t index_of(wire::SessionDescriptor which) {
  return static_cast<std::size_t>(which);
}

bool makes_object(wire::RequestType type) {
  using wire::RequestType;
  return type == RequestType::kCreateVm || type == RequestType::kCreateBuffer ||
         type == RequestType::kCreateQueue || type == RequestType::kCreateFence ||
         type == RequestType::kImport || type == RequestType::kOpenShared;
}

const char* name_of(wire::RequestType type) {
  static constexpr const char* kNames[] = {
      "request",      "ping",         "create VM",      "create buffer", "bind",
      "create queue", "create fence", "wait for fence", "destroy",       "export",
      "revoke",       "import",       "share",          "open shared",   "query object"};
  return kNames[static_cast<std::uint32_t>(type) <= wire::kLastRequestType
                    ? static_cast<std::uint32_t>(type)
                    : 0];
}

// A mapping of what the daemon sent, which must be sealed: else it could shrink under us.
Outcome<base::Mapping> map_sealed(int fd, std::uint64_t bytes, int protection, const char* what) {
  const auto size = base::sealed_size(fd);
  if (!size || *size < bytes || bytes == 0)
    return fail(GPUUMD_PROTOCOL, std::string(what) + " of the session is too small or not sealed");
  auto mapping = base::Mapping::map(fd, 0, bytes, protection);
  if (!mapping) return system_failure(mapping.error());
  if (::madvise(mapping->data(), bytes, MADV_DONTFORK) != 0)
    return system_failure("MADV_DONTFORK", errno);
  return std::move(*mapping);
}

bool sound(const wire::SessionLayout& layout) {
  const auto ring = [&](std::uint64_t offset, std::uint64_t slots, std::uint64_t bytes) {
    return std::has_single_bit(slots) && slots <= 65536 && offset % 64 == 0 &&
           offset >= sizeof(wire::SessionPage) && offset + slots * bytes <= layout.control_bytes;
  };
  return ring(layout.requests_offset, layout.request_slots, sizeof(wire::RequestSlot)) &&
         ring(layout.replies_offset, layout.reply_slots, sizeof(wire::ReplySlot)) &&
         ring(layout.events_offset, layout.event_slots, sizeof(wire::EventSlot)) &&
         layout.reply_slots <= layout.request_slots && layout.reply_slots >= 2 &&
         layout.fence_slots > 0 && layout.fence_slots <= (1u << 24);
}

void drain(int fd) {
  char bytes[256];
  while (::read(fd, bytes, sizeof(bytes)) == sizeof(bytes)) {
  }
}

}  // namespace

struct Session::Call {
  std::condition_variable done_signal;
  std::atomic<bool> done{false};
  wire::ReplySlot reply{};
  Ping published;
};

Outcome<std::shared_ptr<Session>> Session::open(const std::shared_ptr<Client>& client,
                                                const char* name, std::uint32_t index,
                                                const Wait& wait) {
  wire::OpenSession request{};
  request.header = {wire::MessageType::kOpenSession, sizeof(request), 0};
  request.device = index;
  if (name != nullptr) {
    const std::string text(name);
    if (text.empty() || text.size() >= sizeof(request.name))
      return fail(GPUUMD_NOT_FOUND, "device '" + text + "'");
    text.copy(request.name, text.size());
  }
  auto reply = client->connection().call(request, wire::MessageType::kSessionOpened, wait);
  if (!reply) return std::unexpected(reply.error());
  if (reply->bytes.size() != sizeof(wire::SessionOpened) ||
      reply->descriptors.size() != wire::kSessionDescriptors)
    return fail(GPUUMD_PROTOCOL, "answer to opening a session has a wrong size");
  Opened opened{base::load<wire::SessionOpened>(reply->bytes, 0), std::move(reply->descriptors)};
  const std::uint64_t id = opened.message.session;
  auto session = adopt(client, std::move(opened));
  if (!session) client->connection().close_session(id);
  return session;
}

Outcome<std::shared_ptr<Session>> Session::adopt(const std::shared_ptr<Client>& client,
                                                 Opened opened) {
  const wire::SessionLayout& layout = opened.message.layout;
  if (!sound(layout)) return fail(GPUUMD_PROTOCOL, "layout of the session's memory");
  auto control = map_sealed(opened.descriptors[index_of(wire::SessionDescriptor::kControl)].get(),
                            layout.control_bytes, PROT_READ | PROT_WRITE, "control memory");
  if (!control) return std::unexpected(control.error());
  auto fences = map_sealed(opened.descriptors[index_of(wire::SessionDescriptor::kFences)].get(),
                           std::uint64_t{layout.fence_slots} * sizeof(wire::FenceSlot), PROT_READ,
                           "fence memory");
  if (!fences) return std::unexpected(fences.error());
  std::shared_ptr<Session> session(new Session(client, opened.message, std::move(*control),
                                               std::move(*fences), std::move(opened.descriptors)));
  if (auto added = client->add(session); !added) return std::unexpected(added.error());
  return session;
}

Session::Session(std::shared_ptr<Client> client, const wire::SessionOpened& opened,
                 base::Mapping control, base::Mapping fences,
                 std::vector<base::UniqueFd> descriptors)
    : client_(std::move(client)),
      id_(opened.session),
      layout_(opened.layout),
      device_(opened.device),
      control_(std::move(control)),
      fences_(std::move(fences)),
      doorbell_(std::move(descriptors[index_of(wire::SessionDescriptor::kDoorbell)])),
      reply_wake_(std::move(descriptors[index_of(wire::SessionDescriptor::kReplyWake)])),
      event_wake_(std::move(descriptors[index_of(wire::SessionDescriptor::kEventWake)])),
      page_(control_.at<wire::SessionPage>()),
      request_slots_(control_.at<wire::RequestSlot>(layout_.requests_offset)),
      reply_slots_(control_.at<wire::ReplySlot>(layout_.replies_offset)),
      event_slots_(control_.at<wire::EventSlot>(layout_.events_offset)),
      requests_(&page_->requests, layout_.request_slots),
      replies_(&page_->replies, layout_.reply_slots),
      events_(&page_->events, layout_.event_slots) {}

Session::~Session() { close(); }

void Session::close() {
  if (closed_.exchange(true)) return;
  over_ = true;
  client_->remove(*this);
  client_->connection().close_session(id_);
  const std::lock_guard lock(mutex_);
  place_.notify_all();
  hand_on(nullptr);
}

bool Session::hung_up() {
  if (over_.load(std::memory_order_relaxed)) return true;
  pollfd watched{reply_wake_.get(), 0, 0};
  if (::poll(&watched, 1, 0) > 0 && (watched.revents & (POLLHUP | POLLERR)) != 0) over_ = true;
  return over_;
}

Outcome<void> Session::check_alive() {
  if (hung_up()) return fail(GPUUMD_DISCONNECTED, "the daemon is gone or ended the session");
  return {};
}

void Session::ring_doorbell() {
  if (!must_wake(page_->daemon_sleeping)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(doorbell_.get(), &one, sizeof(one));
}

std::unexpected<Failure> Session::gave_up(const Ping& ping, const std::string& what) {
  if (hung_up())
    return fail(GPUUMD_DISCONNECTED, what + ": the daemon is gone or ended the session");
  if (ping.sent && Clock::now() - ping.at >= kSilence && !requests_.consumed(ping.tail))
    return fail(GPUUMD_DISCONNECTED, what + ": the daemon does not run (stopped or stuck)");
  return fail(GPUUMD_TIMEOUT, what + ": not done by the deadline");
}

// ---- requests ----

Outcome<Reply> Session::call_bytes(std::span<std::byte> request, const Wait& wait, int descriptor) {
  auto header = base::load<wire::RequestHeader>(request, 0);
  header.size = static_cast<std::uint32_t>(request.size());
  header.descriptor_tag = 0;
  if (descriptor >= 0) {
    do header.descriptor_tag = next_tag_.fetch_add(1);
    while (header.descriptor_tag == 0);
    auto sent = client_->connection().send_descriptor(id_, header.descriptor_tag, descriptor, wait);
    if (!sent) return std::unexpected(sent.error());
  }
  Call call;
  {
    std::unique_lock lock(mutex_);
    if (auto place = take_place(lock, wait); !place) return std::unexpected(place.error());
    header.id = next_id_++;
    base::store(request, 0, header);
    if (auto published = publish(request, call.published); !published)
      return std::unexpected(published.error());
    open_.emplace(header.id, Open{&call, makes_object(header.type)});
    auto done = wait_reply(lock, call, wait);
    if (!reading_) hand_on(&call);
    if (!done) {
      // Its reply may come yet.
      if (const auto open = open_.find(header.id); open != open_.end()) open->second.call = nullptr;
      if (done.error().status == GPUUMD_OK) return gave_up(call.published, name_of(header.type));
      return std::unexpected(done.error());
    }
  }
  const wire::ReplyHeader& answer = call.reply.header;
  if (answer.status != GPUUMD_OK) {
    const std::size_t length = std::min<std::size_t>(answer.text_bytes, sizeof(call.reply.text));
    return fail(static_cast<gpuumd_status>(answer.status), std::string(call.reply.text, length));
  }
  Reply reply{call.reply.body, {}};
  if (answer.descriptor_tag == 0) return reply;
  auto descriptors = client_->connection().take_descriptors(id_, answer.descriptor_tag,
                                                            answer.descriptor_count, wait);
  if (!descriptors) {
    if (makes_object(header.type)) {
      const std::lock_guard lock(mutex_);
      undo(reply.body.object);
    }
    return std::unexpected(descriptors.error());
  }
  reply.descriptors = std::move(*descriptors);
  return reply;
}

// Every open request has a place in the reply ring, also those that nobody waits for any more.
Outcome<void> Session::take_place(std::unique_lock<std::mutex>& lock, const Wait& wait) {
  const Ping ping{requests_.tail(), wait.start, true};  // all that others have asked so far
  while (open_.size() >= layout_.reply_slots - 1) {
    if (hung_up() || wait.over()) {
      if (!reading_) hand_on(nullptr);
      return gave_up(ping, "a place among the open requests");
    }
    if (reading_)
      place_.wait_until(lock,
                        std::min(wait.deadline, Clock::now() + std::chrono::milliseconds(50)));
    else
      read_replies(lock, wait, wait.spin_end());
  }
  return {};
}

Outcome<void> Session::publish(std::span<const std::byte> request, Ping& ping) {
  if (over_) return fail(GPUUMD_DISCONNECTED, "the session is over");
  if (!requests_.has_room(1).value_or(false))
    return fail(GPUUMD_PROTOCOL, "the daemon's index of the request ring");
  store_shared(request_slots_[requests_.slot()].bytes, request.data(), request.size());
  requests_.fill(1);
  requests_.publish();
  ping = {requests_.tail(), Clock::now(), true};
  ring_doorbell();
  return {};
}

void Session::ping(Ping& ping) {
  wire::Nop nop{};
  nop.header.type = wire::RequestType::kNop;
  nop.header.size = sizeof(nop);
  const std::lock_guard lock(mutex_);
  if (ping.sent || open_.size() >= layout_.reply_slots - 1) return;
  nop.header.id = next_id_++;
  if (!publish(base::as_bytes(nop), ping)) return;
  open_.emplace(nop.header.id, Open{nullptr, false});
}

// A failure with status OK means: the deadline has passed.
Outcome<void> Session::wait_reply(std::unique_lock<std::mutex>& lock, Call& call,
                                  const Wait& wait) {
  const TimePoint spin_end = wait.spin_end();
  while (!call.done) {
    if (over_) return fail(GPUUMD_DISCONNECTED, "the daemon is gone or ended the session");
    if (wait.over()) {
      if (!reading_) {
        dispatch();  // one last look
        if (call.done) break;
      }
      return fail(GPUUMD_OK, {});
    }
    if (!reading_) {
      read_replies(lock, wait, spin_end);
      continue;
    }
    if (Clock::now() < spin_end) {  // another thread reads: watch for what it brings
      lock.unlock();
      for (int i = 0; i < 256 && !call.done.load(std::memory_order_acquire) &&
                      reading_.load(std::memory_order_relaxed);
           ++i)
        relax();
      lock.lock();
      continue;
    }
    call.done_signal.wait_until(lock, wait.deadline);
  }
  return {};
}

// Waits, without the lock, until the reply ring holds something, then hands out what it holds.
void Session::read_replies(std::unique_lock<std::mutex>& lock, const Wait& wait,
                           TimePoint spin_end) {
  reading_ = true;
  lock.unlock();
  TimePoint next_look = wait.start + kLiveness;
  unsigned spins = 0;
  while (replies_.filled() == 0u && !over_.load(std::memory_order_relaxed)) {
    if (++spins % kSpinsALook != 0) {
      if (spins > kEagerSpins) relax();
      continue;
    }
    const TimePoint now = Clock::now();
    if (now >= wait.deadline) break;
    if (now >= spin_end) {
      sleep_for_reply(wait);
      break;
    }
    if (now >= next_look) {
      next_look = now + kLiveness;
      if (hung_up()) break;
    }
  }
  lock.lock();
  dispatch();
  reading_ = false;
  place_.notify_all();
}

// Nobody reads replies now: wakes another thread that waits for one, to read; all, when there is
// nothing more to come. With the lock.
void Session::hand_on(const Call* self) {
  for (auto& [id, open] : open_) {
    if (open.call == nullptr || open.call == self) continue;
    open.call->done_signal.notify_one();
    if (!over_) return;
  }
}

void Session::sleep_for_reply(const Wait& wait) {
  publish_sleeping(page_->client_sleeping, true);
  if (replies_.filled() == 0u) {
    pollfd watched{reply_wake_.get(), POLLIN, 0};
    ::poll(&watched, 1, poll_timeout_ms(wait.deadline));
    if ((watched.revents & POLLIN) != 0)
      drain(reply_wake_.get());
    else if ((watched.revents & (POLLHUP | POLLERR | POLLNVAL)) != 0)
      over_ = true;
  }
  publish_sleeping(page_->client_sleeping, false);
}

void Session::dispatch() {
  for (;;) {
    const auto filled = replies_.filled();
    if (!filled) over_ = true;  // the daemon broke the protocol
    if (!filled || *filled == 0) return;
    wire::ReplySlot reply{};
    const wire::ReplySlot& slot = reply_slots_[replies_.slot()];
    copy_shared(&reply, &slot, sizeof(wire::ReplyHeader));
    constexpr std::size_t kHeader = sizeof(wire::ReplyHeader);
    copy_shared(reply.text, slot.text, wire::used_bytes(reply.header) - kHeader);
    replies_.release(1);
    dispatch_one(reply);
  }
}

void Session::dispatch_one(const wire::ReplySlot& reply) {
  const auto found = open_.find(reply.header.id);
  if (found == open_.end()) return;
  const auto [call, made] = found->second;
  open_.erase(found);
  if (call != nullptr) {
    call->reply = reply;
    call->done.store(true, std::memory_order_release);
    call->done_signal.notify_one();
  } else if (made && reply.header.status == GPUUMD_OK) {
    undo(reply.body.object);
  }
}

// Destroys what a call made that had given up. With the lock.
void Session::undo(std::uint64_t object) {
  if (open_.size() >= layout_.reply_slots - 1) return;  // the session's end frees it
  wire::Destroy request{};
  request.header.type = wire::RequestType::kDestroy;
  request.header.size = sizeof(request);
  request.header.id = next_id_++;
  request.object = object;
  Ping ping;
  if (!publish(base::as_bytes(request), ping)) return;
  open_.emplace(request.header.id, Open{nullptr, false});
}

// ---- fences ----

Outcome<bool> Session::look_at_fence(std::uint32_t slot, std::uint64_t point) const {
  const wire::FenceSlot& fence = this->fence(slot);
  if (load_acquire(fence.value) < point) return false;
  const auto error = load_relaxed(fence.error);
  if (error != GPUUMD_OK && point >= load_relaxed(fence.first_failed_point))
    return fail(static_cast<gpuumd_status>(error),
                "fence point " + std::to_string(point) + ": " +
                    gpuumd_status_text(static_cast<gpuumd_status>(error)));
  return true;
}

Outcome<void> Session::wait_fence(std::uint64_t object, std::uint32_t slot, std::uint64_t point,
                                  const Wait& wait) {
  if (wait.mode == GPUUMD_WAIT_POLL) return poll_fence(slot, point, wait, false);
  for (const TimePoint spin_end = wait.spin_end();;) {
    const auto reached = look_at_fence(slot, point);
    if (!reached) return std::unexpected(reached.error());
    if (*reached) return {};
    if (Clock::now() >= spin_end) break;
    relax();
  }
  if (sleeping_waits_.fetch_add(1) >= kMaxSleepingWaits) {
    sleeping_waits_.fetch_sub(1);
    return poll_fence(slot, point, wait, true);
  }
  wire::WaitFence request{};
  request.fence = object;
  request.point = point;
  const auto left = wait.left().count();
  request.timeout_ns = left > 0 ? static_cast<std::uint64_t>(left) : 0;
  const auto reply = call(wire::RequestType::kWaitFence, request, wait);
  sleeping_waits_.fetch_sub(1);
  // Whatever the call says: the fence itself decides.
  const auto reached = look_at_fence(slot, point);
  if (!reached) return std::unexpected(reached.error());
  if (*reached) return {};
  if (!reply) return std::unexpected(reply.error());
  return {};
}

Outcome<void> Session::poll_fence(std::uint32_t slot, std::uint64_t point, const Wait& wait,
                                  bool nap) {
  const TimePoint half = wait.start + (wait.deadline - wait.start) / 2;
  TimePoint next_look = Clock::now() + kLiveness;
  Ping ping;
  for (unsigned spins = 0;; ++spins) {
    const auto reached = look_at_fence(slot, point);
    if (!reached) return std::unexpected(reached.error());
    if (*reached) return {};
    if (nap) {
      const timespec time{0, 500'000};
      ::nanosleep(&time, nullptr);
    } else if (spins % 64 != 0) {
      relax();
      continue;
    }
    const TimePoint now = Clock::now();
    if (now >= wait.deadline) return gave_up(ping, "fence point " + std::to_string(point));
    if (now >= half && !ping.sent) this->ping(ping);
    if (now >= next_look) {
      next_look = now + kLiveness;
      if (hung_up()) return gave_up(ping, "fence point " + std::to_string(point));
    }
  }
}

// ---- events ----

bool Session::next_event(wire::EventSlot& event, std::uint64_t& lost) {
  lost = load_acquire(page_->events_lost);
  for (int look = 0; look < 2; ++look) {
    const auto filled = events_.filled();
    if (!filled) return false;
    if (*filled != 0) {
      copy_shared(&event, &event_slots_[events_.slot()], sizeof(event));
      events_.release(1);
      return true;
    }
    // Emptied before the second look, so that an event that comes after it makes it readable again.
    if (look == 0) drain(event_wake_.get());
  }
  return false;
}

}  // namespace gpuumd::client
