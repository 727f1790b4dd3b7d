// The INTx line of a function without MSI-X, and the eventfd that a client set for it, with the
// rules of VFIO: a signal masks the line, and an unmasked line that is still asserted signals again
// (docs/hardware/pci.md). Model thread only.
#pragma once

#include "base/fd.h"

namespace gpusim {

class Intx {
 public:
  explicit Intx(bool present) : present_(present) {}

  bool present() const { return present_; }
  // As the Interrupt Status bit of the configuration space shows it, masked or not.
  bool asserted() const { return asserted_; }

  void raise();
  void lower() { asserted_ = false; }

  // The Interrupt Disable bit of the command register.
  void set_disabled(bool disabled);
  void set_masked(bool masked);
  // An unmasked line from now on; an empty descriptor takes the client's away.
  void set_eventfd(base::UniqueFd fd);
  // What VFIO calls a trigger: straight to the eventfd.
  void trigger();

 private:
  void send();

  bool present_;
  bool asserted_ = false;
  bool disabled_ = false;
  bool masked_ = false;
  base::UniqueFd eventfd_;
};

}  // namespace gpusim
