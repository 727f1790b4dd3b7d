// One client's socket: whole messages in and out, with descriptors. Never blocks. Control thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "daemon/ipc/foreign_fd.h"
#include "daemon/ipc/session_handler.h"
#include "gpuumd/wire.h"

namespace gpuumd {

struct Received {
  std::vector<std::byte> bytes;
  std::vector<ForeignFd> descriptors;
};

class Connection {
 public:
  // Messages that wait for a client that does not read; more end the connection.
  static constexpr std::size_t kMaxWaiting = 64;

  // kSystem when the credentials cannot be had.
  static base::Result<Connection> adopt(base::UniqueFd socket);

  int fd() const { return socket_.get(); }
  // Readable when the process that connected has ended, even if a child of it still has the socket;
  // -1 when the kernel gives none (a process of another pid namespace).
  int pidfd() const { return pidfd_.get(); }
  const ClientIdentity& client() const { return client_; }
  void set_name(std::string name) { client_.name = std::move(name); }

  // The next message. kAgain: none there. kDisconnected: hang-up. kProtocol: larger than
  // kMaxMessage, or smaller than or different from what its header says.
  base::Result<Received> receive();

  // Sends now or when the client reads. `sent` (may be empty) is called once: true when the kernel
  // has it. kLimit when too much waits, kDisconnected.
  base::Result<void> send(std::span<const std::byte> bytes,
                          std::vector<base::UniqueFd> descriptors = {},
                          std::move_only_function<void(bool)> sent = nullptr);
  bool wants_to_write() const { return !waiting_.empty(); }
  base::Result<void> flush();

  ~Connection();
  Connection(Connection&&) = default;
  Connection& operator=(Connection&&) = delete;

 private:
  struct Waiting {
    std::vector<std::byte> bytes;
    std::vector<base::UniqueFd> descriptors;
    std::move_only_function<void(bool)> sent;
  };

  Connection(base::UniqueFd socket, base::UniqueFd pidfd, ClientIdentity client)
      : socket_(std::move(socket)), pidfd_(std::move(pidfd)), client_(std::move(client)) {}

  base::UniqueFd socket_;
  base::UniqueFd pidfd_;
  ClientIdentity client_;
  std::deque<Waiting> waiting_;
};

}  // namespace gpuumd
