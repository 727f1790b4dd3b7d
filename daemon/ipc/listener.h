// The daemon's place in the file system: its runtime directory with the lock file and the socket.
// Control thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/fd.h"
#include "base/result.h"

namespace gpuumd {

class Listener {
 public:
  // kBusy with the holder's pid when another daemon has the directory and still has it after
  // `patience`: one that was killed keeps it until the kernel has taken it apart. kNotFound without
  // the directory; kInvalidArgument when the socket's path is too long.
  static base::Result<Listener> open(const std::string& runtime_dir, unsigned mode,
                                     std::chrono::milliseconds patience = {});
  Listener(Listener&&) = default;
  Listener& operator=(Listener&&) = delete;
  ~Listener();

  int fd() const { return socket_.get(); }
  // The next connection, non-blocking. kAgain when there is none; kLimit when the process is out of
  // descriptors (the connection is taken and dropped all the same: it would keep us awake).
  base::Result<base::UniqueFd> accept();

 private:
  Listener(base::UniqueFd lock, base::UniqueFd socket, base::UniqueFd spare, std::string path)
      : lock_(std::move(lock)),
        socket_(std::move(socket)),
        spare_(std::move(spare)),
        path_(std::move(path)) {}

  base::UniqueFd lock_;
  base::UniqueFd socket_;
  base::UniqueFd spare_;  // given up for a moment to accept and drop when there is none left
  std::string path_;
};

}  // namespace gpuumd
