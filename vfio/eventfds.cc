#include "vfio/eventfds.h"

#include <sys/eventfd.h>

#include <cerrno>
#include <utility>

namespace vfio {

base::Result<base::UniqueFd> make_eventfd(const char* step) {
  base::UniqueFd fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) return base::fail(base::Errc::kSystem, step, errno);
  return fd;
}

base::Result<std::vector<base::UniqueFd>> make_eventfds(unsigned count) {
  std::vector<base::UniqueFd> eventfds;
  for (unsigned i = 0; i < count; ++i) {
    auto fd = make_eventfd();
    if (!fd) return std::unexpected(fd.error());
    eventfds.push_back(std::move(*fd));
  }
  return eventfds;
}

std::vector<int> numbers_of(std::span<const base::UniqueFd> eventfds) {
  std::vector<int> numbers;
  for (const auto& fd : eventfds) numbers.push_back(fd.get());
  return numbers;
}

}  // namespace vfio
