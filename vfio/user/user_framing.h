// Whole messages out of, and into, a stream socket, without ever blocking.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "vfio/user/user_wire.h"

struct msghdr;

namespace vfio {

// Descriptors that we take with one message; stated as max_msg_fds in the handshake.
inline constexpr std::size_t kMaxMessageFds = 8;

struct Message {
  wire::Header header{};
  std::vector<std::byte> body;
  std::vector<base::UniqueFd> fds;
};

// Collects one message at a time: first the header alone, so that the descriptors of a message are
// never taken for those of its neighbour, then the body.
class MessageReader {
 public:
  // Decides on a header before its body is read or room is made for it.
  using Admit = std::function<base::Result<void>(const wire::Header&)>;

  // The next message, or null when it has not arrived whole. Valid until the next call.
  // kDisconnected at the end of the stream, kProtocol for a size below that of a header or too many
  // descriptors, and what `admit` says. After an error the stream is of no use.
  base::Result<Message*> next(int socket, const Admit& admit);

 private:
  // True when `to` is full; otherwise nothing more has arrived.
  base::Result<bool> fill(int socket, std::span<std::byte> to, std::size_t& have);
  base::Result<void> take_fds(msghdr& header);

  Message message_;
  std::array<std::byte, sizeof(wire::Header)> head_{};
  std::size_t head_have_ = 0;
  std::size_t body_have_ = 0;
  bool whole_ = false;
};

// What the socket did not take at once, in order.
class Outbox {
 public:
  // Sends, or keeps what could not be sent. `fds` must stay open until the message is sent or
  // the outbox cleared. kDisconnected or kSystem when the socket is of no use any more.
  base::Result<void> send(int socket, const wire::Header& header, std::span<const std::byte> head,
                          std::span<const std::byte> tail, std::span<const int> fds);
  base::Result<void> flush(int socket);
  void clear();
  bool empty() const { return waiting_.empty(); }
  std::size_t bytes() const { return bytes_; }

 private:
  struct Item {
    std::vector<std::byte> data;
    std::size_t sent = 0;
    std::vector<int> fds;  // go with the first byte
  };

  std::deque<Item> waiting_;
  std::size_t bytes_ = 0;
};

}  // namespace vfio
