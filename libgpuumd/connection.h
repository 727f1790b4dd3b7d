// The library's end of the socket: handshake, the few calls that go through it, and the descriptors
// that accompany ring messages. Any thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/fd.h"
#include "gpuumd/wire.h"
#include "libgpuumd/error.h"
#include "libgpuumd/wait.h"

namespace gpuumd::client {

struct SocketReply {
  std::vector<std::byte> bytes;
  std::vector<base::UniqueFd> descriptors;
};

class Connection {
 public:
  // Connects to `path` and shakes hands.
  static Outcome<std::unique_ptr<Connection>> open(const std::string& path, const std::string& name,
                                                   const Wait& wait);

  // Sends `request`, whose header lacks the id only, and waits for the answer of type `expected`.
  template <class Request>
  Outcome<SocketReply> call(Request request, wire::MessageType expected, const Wait& wait) {
    static_assert(offsetof(Request, header) == 0);
    return call_bytes(base::as_writable_bytes(request), expected, wait);
  }

  // Tells the daemon that a session ends; does not wait.
  void close_session(std::uint64_t session);
  // Sends a descriptor ahead of a ring request that names the tag.
  Outcome<void> send_descriptor(std::uint64_t session, std::uint32_t tag, int descriptor,
                                const Wait& wait);
  // The descriptors of a ring reply, which are in the socket by the time the reply is seen.
  Outcome<std::vector<base::UniqueFd>> take_descriptors(std::uint64_t session, std::uint32_t tag,
                                                        std::size_t count, const Wait& wait);
  // Ends the connection: the daemon closes every session of it. Idempotent.
  void shut_down();

  std::uint32_t device_count() const { return device_count_; }

 private:
  explicit Connection(base::UniqueFd socket) : socket_(std::move(socket)) {}

  // One thread at a time uses the socket; the others wait for it by their own deadlines.
  class Turn;

  Outcome<SocketReply> call_bytes(std::span<std::byte> request, wire::MessageType expected,
                                  const Wait& wait);
  Outcome<void> send(std::span<const std::byte> bytes, int descriptor, const Wait& wait);
  // The next message; nothing when there is none yet.
  Outcome<std::vector<SocketReply>> receive();
  bool keep_descriptors(SocketReply& message);
  void late_answer(const SocketReply& message, const Wait& wait);

  base::UniqueFd socket_;
  std::uint32_t device_count_ = 0;
  std::mutex mutex_;
  std::condition_variable turn_over_;
  bool in_turn_ = false;
  // By whoever has the turn:
  std::uint64_t next_id_ = 1;
  std::map<std::pair<std::uint64_t, std::uint32_t>, std::vector<base::UniqueFd>> arrived_;
};

}  // namespace gpuumd::client
