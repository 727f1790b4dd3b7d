// Signalling eventfds that a client gave.
#pragma once

namespace gpusim {

// Adds one to it. One whose counter is full is readable all the same, and a write to it would
// block; one in error may raise a signal: both are left alone. -1 is nobody.
void signal_client(int eventfd);

}  // namespace gpusim
