// How a client wakes a sleeping model after a store that makes no message (docs/model.md, "Sleeping
// and waking"): a word that says whether the model sleeps, and an eventfd for each doorbell region.
#pragma once

#include "base/address.h"
#include "base/fd.h"
#include "base/result.h"
#include "base/shared_memory.h"

namespace gpusim {

class WakePage {
 public:
  // kSystem when the process is out of descriptors.
  static base::Result<WakePage> create();

  // Both go to the client with the VERSION reply.
  int memory_fd() const { return memory_.get(); }
  int event_fd() const { return event_.get(); }

  // After publish(true) the caller must look once more at everything before it sleeps: a store that
  // this look misses comes with a write to event_fd().
  void publish(bool sleeping);
  void drain();

 private:
  base::UniqueFd memory_;
  base::UniqueFd event_;
  base::Mapping page_;
};

}  // namespace gpusim
