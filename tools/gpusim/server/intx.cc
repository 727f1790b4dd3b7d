#include "tools/gpusim/server/intx.h"

#include <utility>

#include "tools/gpusim/server/signal.h"

namespace gpusim {

void Intx::raise() {
  if (!present_) return;
  asserted_ = true;
  send();
}

void Intx::set_disabled(bool disabled) {
  disabled_ = disabled;
  send();
}

void Intx::set_masked(bool masked) {
  masked_ = masked;
  send();
}

void Intx::set_eventfd(base::UniqueFd fd) {
  eventfd_ = std::move(fd);
  set_masked(false);
}

void Intx::trigger() { signal_client(eventfd_.get()); }

void Intx::send() {
  if (!asserted_ || disabled_ || masked_ || !eventfd_) return;
  masked_ = true;
  trigger();
}

}  // namespace gpusim
