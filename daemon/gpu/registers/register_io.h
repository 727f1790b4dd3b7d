// Register access for the driver: absolute dwords below, typed registers of a block above.
#pragma once

#include <array>
#include <cassert>
#include <cstdint>

#include "base/register.h"

namespace gpuumd {

// Access by absolute dword address, direct or through the SMN window, whichever reaches it. Device
// thread. Each access may be trapped (vfio/pci_device.h): up to 100 ms, then the device is lost and
// reads give all ones. Sequences check lost() at their end instead of after each access.
class RegisterIo {
 public:
  virtual ~RegisterIo() = default;
  virtual std::uint32_t read(std::uint32_t dword) = 0;
  virtual void write(std::uint32_t dword, std::uint32_t value) = 0;
  virtual bool lost() const = 0;
};

// The registers of one instance of one hardware block, at the bases that discovery gave
// (docs/hardware/discovery.md). A segment that the table does not have is our own mistake: bring-up
// has checked that every segment that the driver uses is there.
class RegisterBlock {
 public:
  static constexpr unsigned kSegments = 8;
  static constexpr std::uint32_t kAbsent = ~std::uint32_t{0};
  using Bases = std::array<std::uint32_t, kSegments>;  // kAbsent for a segment that is not there

  RegisterBlock() = default;
  RegisterBlock(RegisterIo& io, const Bases& bases) : io_(&io), bases_(bases) {}

  template <class R>
  base::Value<R> read(unsigned index = 0) const {
    static_assert(R::kAccess != base::Access::kWriteOnly);
    return base::Value<R>(io_->read(dword<R>(index)));
  }

  template <class R>
  void write(base::Value<R> value, unsigned index = 0) const {
    static_assert(R::kAccess != base::Access::kReadOnly);
    io_->write(dword<R>(index), value.raw());
  }

  // Read, change, write. Not for registers that are cleared by writing ones.
  template <class R, class Change>
  void modify(Change change, unsigned index = 0) const {
    static_assert(R::kAccess == base::Access::kReadWrite);
    write(change(read<R>(index)), index);
  }

  template <class R>
  std::uint32_t dword(unsigned index = 0) const {
    static_assert(R::kSegment < kSegments);
    assert(index == 0 || R::kStride != 0);
    assert(bases_[R::kSegment] != kAbsent);
    return bases_[R::kSegment] + R::kOffset + index * R::kStride;
  }

  RegisterIo& io() const { return *io_; }

 private:
  RegisterIo* io_ = nullptr;
  Bases bases_{};
};

}  // namespace gpuumd
