#include "tools/gpusim/server/signal.h"

#include <poll.h>
#include <sys/eventfd.h>

namespace gpusim {

// The descriptor is the client's, so its flags are not ours to change.
void signal_client(int eventfd) {
  pollfd room{eventfd, POLLOUT, 0};
  if (eventfd >= 0 && ::poll(&room, 1, 0) == 1 && room.revents == POLLOUT)
    ::eventfd_write(eventfd, 1);
}

}  // namespace gpusim
