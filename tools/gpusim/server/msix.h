// The MSI-X table, its pending bits, and the eventfds that a client set for the vectors
// (docs/hardware/choices.md D30). Model thread only.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/fd.h"
#include "tools/gpusim/model/gpu_device.h"

namespace gpusim {

class Msix {
 public:
  explicit Msix(const MsixLayout& layout);

  // Whether the dword at `offset` of BAR 5 is one of ours: table or pending bits.
  bool owns(std::uint64_t offset) const;
  std::uint32_t read(std::uint64_t offset) const;
  void write(std::uint64_t offset, std::uint32_t value);

  // The two switches of the function: MSI-X enabled and bus mastering on; function mask.
  void set_function(bool enabled, bool masked);

  unsigned vectors() const { return static_cast<unsigned>(table_.size()); }
  // An empty descriptor takes the vector's away.
  void set_eventfd(unsigned vector, base::UniqueFd fd);
  void clear_eventfds();

  // Signals the vector's eventfd, or sets its pending bit while it cannot be sent. A client that
  // only sets eventfds and leaves the table to us, as a user of VFIO does, counts as having
  // unmasked the vector; the mask bit holds for one that has written it.
  void raise(unsigned vector);
  // What VFIO calls a trigger: straight to the eventfd.
  void trigger(unsigned vector);

  // Table and pending bits as after reset; eventfds stay, they are the client's.
  void reset();

 private:
  struct Vector {
    std::uint32_t address_low = 0;
    std::uint32_t address_high = 0;
    std::uint32_t data = 0;
    std::uint32_t control = 1;  // bit 0: masked
    bool control_written = false;
    bool pending = false;
    base::UniqueFd eventfd;
  };

  bool can_send(const Vector& vector) const;
  void send_pending();
  std::uint32_t* word(std::uint64_t offset, std::size_t& index);

  MsixLayout layout_;
  std::vector<Vector> table_;
  bool enabled_ = false;
  bool masked_ = false;
};

}  // namespace gpusim
