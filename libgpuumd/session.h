// The library's end of one session: the control rings and the fence page. Any thread; what a lock
// guards is said at it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/bytes.h"
#include "base/fd.h"
#include "base/shared_memory.h"
#include "gpuumd/ring.h"
#include "gpuumd/wire.h"
#include "libgpuumd/client.h"
#include "libgpuumd/error.h"
#include "libgpuumd/wait.h"

namespace gpuumd::client {

struct Reply {
  wire::ReplyBody body{};
  std::vector<base::UniqueFd> descriptors;
};

class Session {
 public:
  static Outcome<std::shared_ptr<Session>> open(const std::shared_ptr<Client>& client,
                                                const char* name, std::uint32_t index,
                                                const Wait& wait);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  Client& client() { return *client_; }
  const wire::DeviceInfo& device() const { return device_; }

  // Sends a request, whose header lacks size, id and tag, and waits for its reply. `bytes` is the
  // whole request. `descriptor` goes with it when not -1.
  template <class Request>
  Outcome<Reply> call(wire::RequestType type, Request request, const Wait& wait,
                      std::size_t bytes = sizeof(Request), int descriptor = -1) {
    request.header.type = type;
    return call_bytes(base::as_writable_bytes(request).first(bytes), wait, descriptor);
  }

  // The fence in `slot`: OK when it has reached `point`.
  Outcome<void> wait_fence(std::uint64_t object, std::uint32_t slot, std::uint64_t point,
                           const Wait& wait);
  // One look, without waiting. True: reached. A failure: the work up to `point` failed.
  Outcome<bool> look_at_fence(std::uint32_t slot, std::uint64_t point) const;
  const wire::FenceSlot& fence(std::uint32_t slot) const {
    return fences_.at<wire::FenceSlot>()[slot];
  }
  std::uint32_t fence_slots() const { return layout_.fence_slots; }

  // Wakes the daemon if it sleeps: after something was published in any ring of the session.
  void ring_doorbell();
  // Whether the session is over: the daemon is gone or closed it. A system call; sticky.
  bool hung_up();
  Outcome<void> check_alive();
  // An empty request that nobody waits for. Whether the daemon has looked at it tells later if it
  // runs.
  struct Ping {
    std::uint32_t tail = 0;
    TimePoint at;
    bool sent = false;
  };
  void ping(Ping& ping);
  // The failure of a wait that is over: what was waited for did not come.
  std::unexpected<Failure> gave_up(const Ping& ping, const std::string& what);

  // The next event, if any. One thread at a time: the client's lock.
  bool next_event(wire::EventSlot& event, std::uint64_t& lost);
  int event_fd() const { return event_wake_.get(); }

  // The daemon ends the session; calls fail from now on. Idempotent.
  void close();

 private:
  struct Call;     // a thread that waits for a reply
  struct Opened {  // what the socket brought
    wire::SessionOpened message;
    std::vector<base::UniqueFd> descriptors;
  };

  Session(std::shared_ptr<Client> client, const wire::SessionOpened& opened, base::Mapping control,
          base::Mapping fences, std::vector<base::UniqueFd> descriptors);
  static Outcome<std::shared_ptr<Session>> adopt(const std::shared_ptr<Client>& client,
                                                 Opened opened);

  Outcome<Reply> call_bytes(std::span<std::byte> request, const Wait& wait, int descriptor);
  Outcome<void> take_place(std::unique_lock<std::mutex>& lock, const Wait& wait);
  Outcome<void> publish(std::span<const std::byte> request, Ping& ping);
  Outcome<void> wait_reply(std::unique_lock<std::mutex>& lock, Call& call, const Wait& wait);
  void read_replies(std::unique_lock<std::mutex>& lock, const Wait& wait, TimePoint spin_end);
  void sleep_for_reply(const Wait& wait);
  void hand_on(const Call* self);
  void dispatch();
  void dispatch_one(const wire::ReplySlot& reply);
  void undo(std::uint64_t object);
  Outcome<void> poll_fence(std::uint32_t slot, std::uint64_t point, const Wait& wait, bool nap);

  std::shared_ptr<Client> client_;
  std::uint64_t id_;
  wire::SessionLayout layout_;
  wire::DeviceInfo device_;
  base::Mapping control_;
  base::Mapping fences_;  // read-only
  base::UniqueFd doorbell_, reply_wake_, event_wake_;
  wire::SessionPage* page_;
  wire::RequestSlot* request_slots_;
  wire::ReplySlot* reply_slots_;
  wire::EventSlot* event_slots_;
  std::atomic<bool> over_{false};    // nothing comes from the daemon any more
  std::atomic<bool> closed_{false};  // close() was called
  std::atomic<std::uint32_t> sleeping_waits_{0};
  std::atomic<std::uint32_t> next_tag_{1};

  std::mutex mutex_;  // guards what follows
  std::condition_variable place_;
  RingProducer requests_;
  struct Open {
    Call* call;         // null: nobody waits any more
    bool makes_object;  // then a late reply is undone
  };
  std::unordered_map<std::uint64_t, Open> open_;  // requests that are not answered
  std::uint64_t next_id_ = 1;
  std::atomic<bool> reading_{false};  // a thread reads replies; changed under the lock

  RingConsumer replies_;  // of the thread that reads
  RingConsumer events_;   // of next_event()
};

}  // namespace gpuumd::client
