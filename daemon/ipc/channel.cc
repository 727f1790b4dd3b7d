#include "daemon/ipc/channel.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "base/shared_memory.h"
#include "daemon/ipc/request_decode.h"
#include "daemon/ipc/status.h"
#include "gpuumd/ring.h"

namespace gpuumd {
namespace {

constexpr std::uint32_t kRequestsPerTurn = 16;  // bounded work of one poll
constexpr std::size_t kMaxPendingEvents = 64;   // merged here while the ring is full
constexpr unsigned kLooksForMore = 1024;        // about a microsecond; see more_soon()

struct Pipe {
  base::UniqueFd read, write;
};

// The client gets the read end. Both ends are non-blocking, and each is its own open file: a client
// cannot make our write block, as it could with an eventfd, whose flags it would share with us
// (docs/adr/0006-wake-client.md). We keep the read end too, so that a write never raises SIGPIPE.
base::Result<Pipe> make_wake_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
    return base::fail(base::Errc::kSystem, "wake pipe", errno);
  ::fcntl(ends[1], F_SETPIPE_SZ, 4096);  // one page does; a refusal changes nothing
  return Pipe{base::UniqueFd(ends[0]), base::UniqueFd(ends[1])};
}

void write_wake(int fd) {
  const char byte = 1;
  // EAGAIN: full, so the reader is going to wake anyway.
  while (::write(fd, &byte, 1) < 0 && errno == EINTR) {
  }
}

constexpr wire::SessionLayout make_layout() {
  wire::SessionLayout layout{};
  layout.request_slots = Channel::kRequestSlots;
  layout.reply_slots = Channel::kReplySlots;
  layout.event_slots = Channel::kEventSlots;
  layout.requests_offset = 4096;
  layout.replies_offset =
      layout.requests_offset + layout.request_slots * std::uint32_t{sizeof(wire::RequestSlot)};
  layout.events_offset =
      layout.replies_offset + layout.reply_slots * std::uint32_t{sizeof(wire::ReplySlot)};
  const std::uint32_t end =
      layout.events_offset + layout.event_slots * std::uint32_t{sizeof(wire::EventSlot)};
  layout.control_bytes = static_cast<std::uint32_t>(base::align_up(end, base::kPageSize));
  return layout;
}
constexpr wire::SessionLayout kLayout = make_layout();
static_assert(sizeof(wire::SessionPage) <= kLayout.requests_offset);

std::uint64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

// Fills the body from a reply and moves its descriptors out.
struct ReplyFiller {
  wire::ReplyBody& body;
  std::vector<base::UniqueFd>& descriptors;

  void take(base::UniqueFd& fd) const {
    if (fd) descriptors.push_back(std::move(fd));
  }
  void operator()(reply::Done&) const {}
  void operator()(reply::Created& in) const { body.object = in.object.value(); }
  void operator()(reply::BufferReady& in) const {
    body.object = in.object.value();
    body.kind = in.kind;
    body.bytes = in.bytes;
    body.page_bytes = in.page_bytes;
    take(in.memory);
  }
  void operator()(reply::QueueReady& in) const {
    body.object = in.object.value();
    body.slot = in.slots;
    take(in.ring);
  }
  void operator()(reply::FenceReady& in) const {
    body.object = in.object.value();
    body.slot = in.slot;
  }
  void operator()(reply::FenceReached& in) const { body.value = in.value; }
  void operator()(reply::Exported& in) const {
    body.handle_lo = in.handle.lo;
    body.handle_hi = in.handle.hi;
  }
  void operator()(reply::Shared& in) const { take(in.descriptor); }
  void operator()(reply::ObjectState& in) const {
    body.kind = in.kind;
    body.state = in.state;
  }
};

class ChannelImpl final : public Channel {
 public:
  ChannelImpl(Reactor& reactor, ChannelPort& port, base::Mapping control, base::UniqueFd doorbell,
              Pipe reply_wake, Pipe event_wake)
      : reactor_(reactor),
        port_(port),
        control_(std::move(control)),
        doorbell_(std::move(doorbell)),
        reply_wake_(std::move(reply_wake)),
        event_wake_(std::move(event_wake)),
        page_(control_.at<wire::SessionPage>()),
        request_slots_(control_.at<wire::RequestSlot>(kLayout.requests_offset)),
        reply_slots_(control_.at<wire::ReplySlot>(kLayout.replies_offset)),
        event_slots_(control_.at<wire::EventSlot>(kLayout.events_offset)),
        requests_(&page_->requests, kLayout.request_slots),
        replies_(&page_->replies, kLayout.reply_slots),
        events_(&page_->events, kLayout.event_slots),
        self_(std::make_shared<ChannelImpl*>(this)) {}
  ~ChannelImpl() override {
    close();
    *self_ = nullptr;
  }

  void start(SessionHandler& handler) override;
  void close() override;
  void reply(RequestId id, base::Result<Reply> result) override;
  void event(const Event& event) override;
  void fail(base::Error why) override;
  void descriptors_arrived(std::uint32_t tag, std::vector<ForeignFd> descriptors) override;
  const ChannelCounters& counters() const override { return counters_; }

 private:
  struct Parked {  // a request whose descriptor has not come yet
    std::vector<std::byte> bytes;
    std::uint32_t tag = 0;
  };

  bool poll();
  void arm(bool sleeping) { publish_sleeping(page_->daemon_sleeping, sleeping); }
  bool take_request();
  bool take_parked();
  bool more_soon() const;
  void hand_over(std::span<const std::byte> bytes, ForeignFd descriptor);
  std::optional<ForeignFd> take_descriptor(std::uint32_t tag);
  void publish_reply(const wire::ReplySlot& slot);
  void flush_events();
  bool put_event(const wire::EventSlot& slot);
  void drain_doorbell();

  Reactor& reactor_;
  ChannelPort& port_;
  SessionHandler* handler_ = nullptr;
  bool closed_ = false;
  bool failed_ = false;

  base::Mapping control_;
  base::UniqueFd doorbell_;
  Pipe reply_wake_, event_wake_;
  wire::SessionPage* page_;
  wire::RequestSlot* request_slots_;
  wire::ReplySlot* reply_slots_;
  wire::EventSlot* event_slots_;
  RingConsumer requests_;
  RingProducer replies_;
  RingProducer events_;

  std::unordered_set<std::uint64_t> open_;  // requests not answered yet
  std::unordered_map<std::uint32_t, ForeignFd> held_;
  std::optional<Parked> parked_;
  Registration parked_deadline_;
  std::deque<wire::EventSlot> pending_events_;
  std::uint32_t next_tag_ = 1;
  ChannelCounters counters_;
  std::shared_ptr<ChannelImpl*> self_;  // for callbacks that may outlive us

  Registration watch_;
  Registration poller_;
};

void ChannelImpl::start(SessionHandler& handler) {
  handler_ = &handler;
  watch_ = reactor_.watch(doorbell_.get(), "session doorbell", false, [this] { drain_doorbell(); });
  poller_ = reactor_.add_poller({.name = "session",
                                 .poll = [this] { return poll(); },
                                 .arm = [this](bool sleeping) { arm(sleeping); }});
}

void ChannelImpl::close() {
  if (closed_) return;
  closed_ = true;
  handler_ = nullptr;
  poller_.cancel();
  watch_.cancel();
  parked_deadline_.cancel();
  parked_.reset();
  held_.clear();
  open_.clear();
  // The client sees the hang-up: its session is over.
  reply_wake_ = {};
  event_wake_ = {};
}

void ChannelImpl::fail(base::Error why) {
  if (closed_ || failed_) return;
  failed_ = true;
  port_.session_broken(std::move(why));
}

// preadv2 with RWF_NOWAIT and not read(): the client shares the eventfd's flags with us, could
// clear O_NONBLOCK and empty it before we do.
void ChannelImpl::drain_doorbell() {
  std::uint64_t count = 0;
  iovec part{&count, sizeof(count)};
  while (::preadv2(doorbell_.get(), &part, 1, -1, RWF_NOWAIT) < 0 && errno == EINTR) {
  }
}

bool ChannelImpl::poll() {
  if (failed_ || handler_ == nullptr) return false;
  bool worked = false;
  for (std::uint32_t i = 0; i < kRequestsPerTurn && !failed_ && !closed_; ++i) {
    if (parked_ ? take_parked() : take_request())
      worked = true;
    else if (!worked || !more_soon())
      break;
  }
  if (failed_ || closed_) return worked;
  flush_events();
  if (handler_ != nullptr && handler_->poll_queues()) worked = true;
  return worked;
}

// A client that polls for the reply that it has just got sends its next request within a
// microsecond: waiting for it saves it a turn of the reactor. A turn still takes no more than
// kRequestsPerTurn of them.
bool ChannelImpl::more_soon() const {
  if (failed_ || closed_ || parked_ || !open_.empty()) return false;
  if (load_relaxed(page_->client_sleeping) != 0) return false;
  for (unsigned i = 0; i < kLooksForMore; ++i)
    if (requests_.filled() != 0u) return true;
  return false;
}

bool ChannelImpl::take_request() {
  const auto filled = requests_.filled();
  if (!filled) {
    fail({base::Errc::kProtocol, 0, "index of the request ring"});
    return false;
  }
  if (*filled == 0) return false;
  // A request is taken only when its reply has a place.
  const auto room = replies_.room();
  if (!room) {
    fail({base::Errc::kProtocol, 0, "index of the reply ring"});
    return false;
  }
  if (*room <= open_.size()) return false;

  alignas(8) std::byte bytes[wire::kRequestSlotBytes];
  const std::byte* slot = request_slots_[requests_.slot()].bytes;
  constexpr std::size_t kHeader = sizeof(wire::RequestHeader);
  copy_shared(bytes, slot, kHeader);
  wire::RequestHeader header;
  std::memcpy(&header, bytes, kHeader);
  if (header.size < kHeader || header.size > sizeof(bytes) || header.size % 8 != 0) {
    fail({base::Errc::kProtocol, 0, "request of " + std::to_string(header.size) + " bytes"});
    return false;
  }
  copy_shared(bytes + kHeader, slot + kHeader, header.size - kHeader);
  requests_.release(1);
  ++counters_.requests;
  if (header.id == 0 || !open_.insert(header.id).second) {
    fail({base::Errc::kProtocol, 0, "request id " + std::to_string(header.id) + " is 0 or in use"});
    return false;
  }
  const std::span<const std::byte> request(bytes, header.size);
  if (header.descriptor_tag == 0) {
    hand_over(request, ForeignFd());
    return true;
  }
  parked_ = Parked{{request.begin(), request.end()}, header.descriptor_tag};
  parked_deadline_ = reactor_.after(kDescriptorDeadline, "descriptor of a request", [this] {
    if (!parked_) return;
    const auto late = std::exchange(parked_, std::nullopt);
    wire::RequestHeader header;
    std::memcpy(&header, late->bytes.data(), sizeof(header));
    reply(RequestId(header.id),
          base::fail(base::Errc::kInvalidArgument,
                     "descriptor " + std::to_string(late->tag) + " of a request never came"));
  });
  take_parked();
  return true;
}

bool ChannelImpl::take_parked() {
  auto descriptor = take_descriptor(parked_->tag);
  if (!descriptor) return false;
  parked_deadline_.cancel();
  const auto request = std::exchange(parked_, std::nullopt);
  hand_over(request->bytes, std::move(*descriptor));
  return true;
}

void ChannelImpl::hand_over(std::span<const std::byte> bytes, ForeignFd descriptor) {
  wire::RequestHeader header;
  std::memcpy(&header, bytes.data(), sizeof(header));
  auto request = decode_request(bytes, std::move(descriptor));
  const RequestId id(header.id);
  if (!request) {
    ++counters_.refused;
    reply(id, std::unexpected(std::move(request.error())));
    return;
  }
  handler_->handle(id, std::move(*request));
}

std::optional<ForeignFd> ChannelImpl::take_descriptor(std::uint32_t tag) {
  const auto found = held_.find(tag);
  if (found == held_.end()) return std::nullopt;
  ForeignFd descriptor = std::move(found->second);
  held_.erase(found);
  return descriptor;
}

void ChannelImpl::descriptors_arrived(std::uint32_t tag, std::vector<ForeignFd> descriptors) {
  if (closed_ || failed_) return;
  if (tag == 0 || descriptors.size() != 1 || held_.size() >= kMaxHeldDescriptors ||
      !held_.emplace(tag, std::move(descriptors[0])).second)
    fail({base::Errc::kProtocol, 0, "descriptors with tag " + std::to_string(tag)});
}

void ChannelImpl::reply(RequestId id, base::Result<Reply> result) {
  if (closed_ || !open_.contains(id.value())) return;
  wire::ReplySlot slot{};
  slot.header.id = id.value();
  std::vector<base::UniqueFd> descriptors;
  if (result) {
    slot.body = {};
    std::visit(ReplyFiller{slot.body, descriptors}, *result);
  } else {
    const std::string text = result.error().message();
    slot.header.status = to_status(result.error().code);
    slot.header.text_bytes =
        static_cast<std::uint32_t>(std::min(text.size(), sizeof(slot.text) - 1));
    std::memcpy(slot.text, text.data(), slot.header.text_bytes);
  }
  if (descriptors.empty()) {
    publish_reply(slot);
    return;
  }
  slot.header.descriptor_tag = next_tag_++;
  if (next_tag_ == 0) next_tag_ = 1;
  slot.header.descriptor_count = static_cast<std::uint32_t>(descriptors.size());
  // Sent first, so that a client that sees the reply finds them in its socket.
  port_.send_descriptors(slot.header.descriptor_tag, std::move(descriptors),
                         [self = self_, slot](bool sent) {
                           if (*self != nullptr && sent) (*self)->publish_reply(slot);
                         });
}

void ChannelImpl::publish_reply(const wire::ReplySlot& slot) {
  if (closed_ || open_.erase(slot.header.id) == 0) return;
  // take_request() left a place. The client can only have made the ring *look* fuller since.
  const auto room = replies_.room();
  if (!room || *room == 0) return fail({base::Errc::kProtocol, 0, "index of the reply ring"});
  store_shared(&reply_slots_[replies_.slot()], &slot, wire::used_bytes(slot.header));
  replies_.fill(1);
  replies_.publish();
  ++counters_.replies;
  if (must_wake(page_->client_sleeping)) {
    ++counters_.wakes;
    write_wake(reply_wake_.write.get());
  }
}

bool ChannelImpl::put_event(const wire::EventSlot& slot) {
  const auto room = events_.room();
  if (!room) {
    fail({base::Errc::kProtocol, 0, "index of the event ring"});
    return false;
  }
  if (*room == 0) return false;
  store_shared(&event_slots_[events_.slot()], &slot, sizeof(slot));
  events_.fill(1);
  events_.publish();
  ++counters_.events;
  return true;
}

void ChannelImpl::event(const Event& event) {
  if (closed_ || failed_) return;
  wire::EventSlot slot{};
  slot.kind = event.kind;
  slot.count = 1;
  slot.object = event.object;
  slot.va = event.va;
  slot.access = event.access;
  slot.reason = static_cast<std::uint32_t>(event.reason);
  slot.time_ns = monotonic_ns();
  const auto same = [&](const wire::EventSlot& other) {
    return other.kind == slot.kind && other.object == slot.object;
  };
  const auto merge = std::find_if(pending_events_.begin(), pending_events_.end(), same);
  if (merge != pending_events_.end()) {
    slot.count += merge->count;
    *merge = slot;
    ++counters_.events_merged;
  } else if (pending_events_.size() < kMaxPendingEvents) {
    pending_events_.push_back(slot);
  } else {
    ++counters_.events_lost;
    store_release(page_->events_lost, counters_.events_lost);
  }
  flush_events();
}

void ChannelImpl::flush_events() {
  bool any = false;
  while (!pending_events_.empty() && put_event(pending_events_.front())) {
    pending_events_.pop_front();
    any = true;
  }
  if (any) {
    ++counters_.wakes;
    write_wake(event_wake_.write.get());
  }
}

}  // namespace

base::Result<std::unique_ptr<Channel>> Channel::create(Reactor& reactor, ChannelPort& port,
                                                       ClientEnd& client_end) {
  auto memory = base::make_memfd("gpuumd-session", kLayout.control_bytes);
  if (!memory) return std::unexpected(memory.error());
  auto control =
      base::Mapping::map(memory->get(), 0, kLayout.control_bytes, PROT_READ | PROT_WRITE);
  if (!control) return std::unexpected(control.error());
  base::UniqueFd doorbell(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!doorbell) return base::fail(base::Errc::kSystem, "session doorbell", errno);
  auto reply_wake = make_wake_pipe();
  if (!reply_wake) return std::unexpected(reply_wake.error());
  auto event_wake = make_wake_pipe();
  if (!event_wake) return std::unexpected(event_wake.error());

  ClientEnd end;
  end.layout = kLayout;
  for (auto [from, to] :
       {std::pair(&doorbell, &end.doorbell), std::pair(&reply_wake->read, &end.reply_wake),
        std::pair(&event_wake->read, &end.event_wake)}) {
    auto copy = from->duplicate();
    if (!copy) return std::unexpected(copy.error());
    *to = std::move(*copy);
  }
  end.control = std::move(*memory);
  client_end = std::move(end);
  return std::make_unique<ChannelImpl>(reactor, port, std::move(*control), std::move(doorbell),
                                       std::move(*reply_wake), std::move(*event_wake));
}

}  // namespace gpuumd
