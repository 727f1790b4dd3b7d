// What the assembly of a GPU needs of the nHT block (docs/hardware/nht.md), which is built
// elsewhere and given to it.
#pragma once

#include <cstdint>

#include "tools/gpusim/model/ports.h"

namespace gpusim {

class NhtBlock : public Steppable {
 public:
  // A 4-byte store of `sender` into this accelerator's doorbell space (D48): port 0..15, index 0
  // interrupt ring, 1 shootdown ring.
  virtual void remote_doorbell(std::uint16_t sender, unsigned port, unsigned index,
                               std::uint32_t value) = 0;
  // After RegisterFile::reset().
  virtual void reset() = 0;
};

}  // namespace gpusim
