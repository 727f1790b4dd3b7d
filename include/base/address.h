// Addresses and ids as types: a GPU address, a bus address and an offset in VRAM are all 64 bits,
// and swapping two of them is the classic bug of a GPU driver. Nothing converts by itself, two
// addresses cannot be added, and every legal translation is a named function of its owner.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace base {

// A byte address in one space. Differences and offsets are plain 64-bit byte counts.
template <class Space>
class Address {
 public:
  constexpr Address() = default;
  explicit constexpr Address(std::uint64_t value) : value_(value) {}

  constexpr std::uint64_t value() const { return value_; }
  // Page number for 4 KiB pages.
  constexpr std::uint64_t page() const { return value_ >> 12; }
  constexpr bool aligned(std::uint64_t alignment) const { return value_ % alignment == 0; }

  friend constexpr auto operator<=>(Address, Address) = default;
  friend constexpr Address operator+(Address a, std::uint64_t n) { return Address(a.value_ + n); }
  friend constexpr Address operator-(Address a, std::uint64_t n) { return Address(a.value_ - n); }
  friend constexpr std::uint64_t operator-(Address a, Address b) { return a.value_ - b.value_; }
  constexpr Address& operator+=(std::uint64_t n) {
    value_ += n;
    return *this;
  }

 private:
  std::uint64_t value_ = 0;
};

// A name that is a number: no arithmetic.
template <class Tag, class Word>
class Id {
 public:
  using word = Word;
  constexpr Id() = default;
  explicit constexpr Id(Word value) : value_(value) {}
  constexpr Word value() const { return value_; }
  friend constexpr auto operator<=>(Id, Id) = default;

 private:
  Word value_ = 0;
};

using GpuVa = Address<struct GpuVaSpace>;           // what a client's engine sees (GPUVM)
using McAddress = Address<struct McSpace>;          // what VMID 0 sees (docs/hardware/vmhub.md)
using PhysicalAddress = Address<struct PhysSpace>;  // VRAM as page-table entries name it
using Iova = Address<struct IovaSpace_>;            // what the device puts on the bus
using VramOffset = Address<struct VramSpace>;       // from the start of local memory
using Npa = Address<struct NpaSpace>;               // on the fabric, accelerator id included

using AccelId = Id<struct AccelIdTag, std::uint16_t>;  // 10 bits on the wire
using Vmid = Id<struct VmidTag, std::uint8_t>;         // 0..15
using Pasid = Id<struct PasidTag, std::uint16_t>;

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;
inline constexpr std::uint64_t kPageSize = 4 * kKiB;  // the GPU's page and the host's

constexpr std::uint64_t align_down(std::uint64_t value, std::uint64_t alignment) {
  return value - value % alignment;
}
constexpr std::uint64_t align_up(std::uint64_t value, std::uint64_t alignment) {
  return align_down(value + alignment - 1, alignment);
}
constexpr bool is_aligned(std::uint64_t value, std::uint64_t alignment) {
  return value % alignment == 0;
}
// Whether [offset, offset + size) lies inside [0, limit), without overflow.
constexpr bool fits(std::uint64_t offset, std::uint64_t size, std::uint64_t limit) {
  return size <= limit && offset <= limit - size;
}

struct AddressHash {
  template <class T>
  std::size_t operator()(T value) const {
    return std::hash<decltype(value.value())>()(value.value());
  }
};

}  // namespace base
