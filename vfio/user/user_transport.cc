#include "vfio/user/user_transport.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/bytes.h"

namespace vfio {
namespace {

// Output that waits for the server beyond this: commands are then no longer posted, and commands of
// the server no longer read, until it takes some.
constexpr std::size_t kOutboxLimit = 256 * 1024;

// Messages in a row, each there before we have looked, that count as a flood once time is up.
constexpr unsigned kFlood = 1024;

bool is_reply(const wire::Header& header) {
  return (header.flags & wire::kTypeMask) == wire::kTypeReply;
}

std::string step(wire::Command command, const char* what) {
  return std::string(wire::to_string(command)) + " " + what;
}

// errno values that say what the caller can do; the rest is the device's own failure.
base::Errc code_of(std::uint32_t error) {
  switch (error) {
    case EBUSY:
      return base::Errc::kBusy;
    case ENOMEM:
      return base::Errc::kNoMemory;
    case EOPNOTSUPP:
    case ENOTTY:
      return base::Errc::kUnsupported;
    default:
      return base::Errc::kDeviceError;
  }
}

int milliseconds_until(UserTransport::Clock::time_point deadline) {
  const auto left =
      std::chrono::ceil<std::chrono::milliseconds>(deadline - UserTransport::Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
}

}  // namespace

// A command that waits for its reply; lives on the stack of its caller.
struct UserTransport::Pending {
  std::uint16_t id;
  const Request& request;
  std::uint64_t after_posts;  // sent before it
  bool done = false;
  std::optional<base::Error> error;
  Reply reply;
};

UserTransport::UserTransport(base::UniqueFd socket, base::UniqueFd wake, std::size_t max_request,
                             Handler handler, std::function<void()> pump)
    : socket_(std::move(socket)),
      wake_(std::move(wake)),
      max_request_(max_request),
      handler_(std::move(handler)),
      pump_(std::move(pump)),
      owner_(std::this_thread::get_id()) {}

UserTransport::~UserTransport() { assert(pending_.empty()); }

base::Result<UserTransport::Reply> UserTransport::call(const Request& request,
                                                       Clock::time_point deadline) {
  Lock lock(mutex_);
  if (lost()) return std::unexpected(lost_error(request.command));
  Pending pending{next_id(), request, posts_, false, {}, {}};
  pending_.push_back(&pending);
  const wire::Header header{
      pending.id, static_cast<std::uint16_t>(request.command),
      static_cast<std::uint32_t>(sizeof(wire::Header) + request.head.size() + request.tail.size()),
      wire::kTypeCommand, 0};
  send(lock, header, request.head, request.tail, request.fds);
  wait(lock, request.command, deadline, [&] { return pending.done; });
  std::erase(pending_, &pending);
  if (lost()) changed_.notify_all();  // close() waits for the last
  if (pending.error) return std::unexpected(std::move(*pending.error));
  return std::move(pending.reply);
}

base::Result<void> UserTransport::post(wire::Command command, std::span<const std::byte> head,
                                       std::span<const std::byte> tail,
                                       Clock::time_point deadline) {
  Lock lock(mutex_);
  if (outbox_.bytes() > kOutboxLimit)
    wait(lock, command, deadline, [&] { return outbox_.bytes() <= kOutboxLimit; });
  if (lost()) return std::unexpected(lost_error(command));
  const wire::Header header{
      next_id(), static_cast<std::uint16_t>(command),
      static_cast<std::uint32_t>(sizeof(wire::Header) + head.size() + tail.size()),
      wire::kTypeCommand | wire::kNoReply, 0};
  ++posts_;
  posts_open_.store(true, std::memory_order_release);
  send(lock, header, head, tail, {});
  return {};
}

void UserTransport::serve(Clock::time_point deadline) {
  Lock lock(mutex_);
  if (lost()) return;
  if (read_messages(lock, deadline, [] { return false; }))
    return lose(lock, {base::Errc::kProtocol, 0, "server that asks without end"});
  // Whoever is in a call sends the rest; without one it is ours, since nobody else would.
  if (!lost() && !pumping() && pending_.empty())
    wait(lock, wire::Command::kDmaRead, deadline, [&] { return outbox_.empty(); });
}

std::unexpected<base::Error> UserTransport::broken(wire::Command command, std::string what) {
  base::Error error{base::Errc::kProtocol, 0, step(command, "reply: ") + std::move(what)};
  Lock lock(mutex_);
  lose(lock, error);
  return std::unexpected(std::move(error));
}

void UserTransport::close(std::string why) {
  Lock lock(mutex_);
  lose(lock, {base::Errc::kDeviceLost, 0, std::move(why)});
  if (pumping() && !pending_.empty()) return;  // our own call, further up the stack
  changed_.wait(lock, [&] { return pending_.empty() && !leader_; });
  socket_.reset();
}

std::string UserTransport::lost_why() const {
  const Lock lock(mutex_);
  return why_;
}

void UserTransport::send(Lock& lock, const wire::Header& header, std::span<const std::byte> head,
                         std::span<const std::byte> tail, std::span<const int> fds) {
  auto sent = outbox_.send(socket_.get(), header, head, tail, fds);
  if (!sent) return lose(lock, sent.error());
  if (!outbox_.empty()) wake_leader();  // it polls for input alone
}

template <class Done>
void UserTransport::wait(Lock& lock, wire::Command command, Clock::time_point deadline, Done done) {
  const auto stop = [&] { return done() || lost(); };
  while (!stop()) {
    if (Clock::now() >= deadline) {
      // The answer may be there and we who are late.
      read_messages(lock, deadline, stop);
      if (!stop()) lose(lock, {base::Errc::kTimeout, 0, step(command, "reply")});
    } else if (pumping()) {
      lock.unlock();
      pump_();
      lock.lock();
      if (!stop()) read_messages(lock, deadline, stop);
    } else if (leader_) {
      changed_.wait_until(lock, deadline);
    } else {
      leader_ = true;
      poll_socket(lock, deadline);
      if (!stop()) read_messages(lock, deadline, stop);
      leader_ = false;
      // Another may have its reply now, or has to take over.
      changed_.notify_all();
    }
  }
}

void UserTransport::poll_socket(Lock& lock, Clock::time_point deadline) {
  short events = outbox_.bytes() > kOutboxLimit ? 0 : POLLIN;
  if (!outbox_.empty()) events |= POLLOUT;
  std::array<pollfd, 2> fds{pollfd{socket_.get(), events, 0}, pollfd{wake_.get(), POLLIN, 0}};
  lock.unlock();
  const int ready = ::poll(fds.data(), fds.size(), milliseconds_until(deadline));
  if (ready > 0 && fds[1].revents != 0) {
    std::uint64_t count;
    [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &count, sizeof(count));
  }
  lock.lock();
}

template <class Stop>
bool UserTransport::read_messages(Lock& lock, Clock::time_point deadline, Stop stop) {
  const auto admit_header = [this](const wire::Header& header) { return admit(header); };
  for (unsigned count = 0;; ++count) {
    if (auto sent = outbox_.flush(socket_.get()); !sent) {
      lose(lock, sent.error());
      return false;
    }
    if (outbox_.bytes() > kOutboxLimit) return false;
    if (count >= kFlood && Clock::now() >= deadline) return true;
    auto message = reader_.next(socket_.get(), admit_header);
    if (!message) lose(lock, message.error());
    if (!message || *message == nullptr) return false;
    dispatch(lock, **message);
    if (lost() || stop()) return false;
  }
}

base::Result<void> UserTransport::admit(const wire::Header& header) const {
  const std::size_t body = header.size - sizeof(header);
  if (!is_reply(header)) {
    if ((header.flags & wire::kTypeMask) != wire::kTypeCommand)
      return base::fail(base::Errc::kProtocol, "message that is neither command nor reply");
    if (body > max_request_)
      return base::fail(base::Errc::kProtocol, "command of the server is too long");
    return {};
  }
  const Pending* pending = find(header.id);
  if (pending == nullptr)
    return base::fail(base::Errc::kProtocol, "reply to nothing that was asked");
  const auto command = pending->request.command;
  if (header.command != static_cast<std::uint16_t>(command))
    return base::fail(base::Errc::kProtocol, step(command, "reply: names another command"));
  if ((header.flags & wire::kError) != 0) {
    if (body != 0) return base::fail(base::Errc::kProtocol, step(command, "error with a payload"));
    return {};
  }
  if (body > pending->request.reply.size())
    return base::fail(base::Errc::kProtocol, step(command, "reply: too long"));
  if (body < pending->request.reply_min)
    return base::fail(base::Errc::kProtocol, step(command, "reply: too short"));
  return {};
}

void UserTransport::dispatch(Lock& lock, Message& message) {
  if (!is_reply(message.header)) {
    if (!message.fds.empty())
      return lose(lock, {base::Errc::kProtocol, 0, "descriptors with a command of the server"});
    return answer(lock, message);
  }
  // admit() saw it in pending_, but its body may have come a while later.
  Pending* pending = find(message.header.id);
  if (pending == nullptr)
    return lose(lock, {base::Errc::kProtocol, 0, "reply to nothing that was asked"});
  const bool error = (message.header.flags & wire::kError) != 0;
  if (message.fds.size() > (error ? 0 : pending->request.max_fds))
    return lose(lock, {base::Errc::kProtocol, 0,
                       step(pending->request.command, "reply: too many descriptors")});
  finish(*pending, message);
}

void UserTransport::finish(Pending& pending, Message& message) {
  pending.done = true;
  if (pending.after_posts == posts_) posts_open_.store(false, std::memory_order_release);
  if ((message.header.flags & wire::kError) != 0) {
    error_replies_.fetch_add(1, std::memory_order_relaxed);
    pending.error = base::Error{code_of(message.header.error),
                                static_cast<int>(message.header.error & 0x7fffffff),
                                step(pending.request.command, "refused by the server")};
  } else {
    std::ranges::copy(message.body, pending.request.reply.begin());
    pending.reply.size = message.body.size();
    pending.reply.fds = std::move(message.fds);
  }
  changed_.notify_all();
  wake_leader();
}

void UserTransport::answer(Lock& lock, const Message& message) {
  answer_.clear();
  const int error = handler_(message.header, message.body, answer_);
  if ((message.header.flags & wire::kNoReply) != 0) return;
  if (error != 0) answer_.clear();
  wire::Header header = message.header;
  header.size = static_cast<std::uint32_t>(sizeof(header) + answer_.size());
  header.flags = wire::kTypeReply | (error != 0 ? wire::kError : 0);
  header.error = static_cast<std::uint32_t>(error);
  send(lock, header, answer_, {}, {});
}

UserTransport::Pending* UserTransport::find(std::uint16_t id) const {
  const auto found = std::ranges::find_if(
      pending_, [id](const Pending* pending) { return pending->id == id && !pending->done; });
  return found == pending_.end() ? nullptr : *found;
}

std::uint16_t UserTransport::next_id() {
  do {
    ++last_id_;
  } while (find(last_id_) != nullptr);
  return last_id_;
}

void UserTransport::lose(Lock&, const base::Error& error) {
  if (lost()) return;
  why_ = error.message();
  lost_.store(true, std::memory_order_release);
  for (Pending* pending : pending_) {
    if (pending->done) continue;
    pending->done = true;
    pending->error = error;
  }
  outbox_.clear();
  // The descriptor stays: somebody may be polling it. The server learns of the end now.
  ::shutdown(socket_.get(), SHUT_RDWR);
  changed_.notify_all();
  wake_leader();
}

// The thread in poll() does not see what another one has read or has left in the outbox.
void UserTransport::wake_leader() {
  if (!leader_) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t put = ::write(wake_.get(), &one, sizeof(one));
}

base::Error UserTransport::lost_error(wire::Command command) const {
  return {base::Errc::kDeviceLost, 0, std::string(wire::to_string(command))};
}

}  // namespace vfio
