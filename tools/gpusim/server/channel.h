// vfio-user messages over a stream socket: framing, descriptors, and output that waits for a slow
// reader. Never blocks. Model thread only.
#pragma once

#include <cstddef>
#include <deque>
#include <span>
#include <vector>

#include "base/fd.h"
#include "tools/gpusim/server/wire.h"

struct msghdr;

namespace gpusim {

struct Message {
  wire::Header header{};
  std::vector<std::byte> body;
  std::vector<base::UniqueFd> fds;

  bool is_reply() const { return (header.flags & wire::kTypeMask) == wire::kReply; }
};

class Channel {
 public:
  explicit Channel(base::UniqueFd socket);

  enum class Status {
    kMessage,
    kNothing,  // not (yet) a whole message
    kClosed,   // end of stream, socket error, or a size or descriptor count that nobody may send
  };
  // Reads exactly one message's bytes: a longer read could return the descriptors of the next one.
  Status receive(Message& message);

  // Sends a header and up to two parts of a body; what the socket does not take waits in a queue.
  // `fds` stay the caller's and must live until the queue is empty. False: the connection is over.
  bool send(const wire::Header& header, std::span<const std::byte> first,
            std::span<const std::byte> second = {}, std::span<const int> fds = {});
  bool flush();  // false: the connection is over
  bool output_waits() const { return !output_.empty(); }

  int fd() const { return socket_.get(); }

 private:
  struct Output {
    std::vector<std::byte> bytes;
    std::size_t sent = 0;
    std::vector<int> fds;
  };

  Status read_part(std::span<std::byte> part, Message& message);
  bool keep_descriptors(const ::msghdr& received, Message& message);

  base::UniqueFd socket_;
  Message partial_;
  std::size_t have_ = 0;  // bytes of partial_ that arrived, header included
  std::deque<Output> output_;
};

// Waits until `fd` is readable, or writable too if `output`, at most `milliseconds`.
void wait_for_socket(int fd, bool output, int milliseconds);

}  // namespace gpusim
