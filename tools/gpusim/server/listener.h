// A listening Unix stream socket at a path of the file system.
#pragma once

#include <string>
#include <vector>

#include "base/fd.h"
#include "base/result.h"

namespace gpusim {

class Listener {
 public:
  // kBusy when somebody listens at the path; a socket that nobody listens at is left over from a
  // process that died and is replaced. kInvalidArgument for a path that is too long for a socket
  // or that is something else than a socket. Mode 0600.
  static base::Result<Listener> open(const std::string& path);
  Listener(Listener&& other) noexcept;
  Listener& operator=(Listener&&) = delete;
  ~Listener();  // removes the path

  int fd() const { return socket_.get(); }
  const std::string& path() const { return path_; }

  // A connection that waits, or nothing. Out of descriptors: it is closed.
  base::UniqueFd accept();

 private:
  Listener(std::string path, base::UniqueFd socket, base::UniqueFd spare)
      : path_(std::move(path)), socket_(std::move(socket)), spare_(std::move(spare)) {}

  std::string path_;
  base::UniqueFd socket_;
  base::UniqueFd spare_;  // given up for a moment to turn a connection away without descriptors
};

}  // namespace gpusim
