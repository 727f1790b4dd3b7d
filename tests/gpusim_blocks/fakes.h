// What stands round the blocks under test: a clock that is turned by hand, plain memory.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/bytes.h"
#include "tools/gpusim/model/host_bus.h"
#include "tools/gpusim/model/ports.h"
#include "tools/gpusim/model/types.h"

namespace gpusim {

class FakeClock : public ModelClock {
 public:
  ModelTime now() const override { return now_; }
  void advance(ModelTime by) { now_ += by; }

 private:
  ModelTime now_{1'000'000};
};

// Host memory behind IOVAs [base, base + size); counts what was asked of it.
class FakeBus : public HostBus {
 public:
  explicit FakeBus(std::uint64_t base, std::size_t size) : base_(base), memory_(size) {}

  std::byte* direct(base::Iova at, std::size_t size, bool) override {
    return inside(at, size) ? memory_.data() + (at.value() - base_) : nullptr;
  }
  bool read(base::Iova, std::span<std::byte>) override {
    ++refused;
    return false;
  }
  bool write(base::Iova, std::span<const std::byte>) override {
    ++refused;
    return false;
  }
  void raise_interrupt(unsigned vector) override {
    ++msis;
    last_vector = vector;
  }

  void lower_line() override { ++lowered; }

  std::uint32_t word(std::uint64_t iova) const {
    return base::load<std::uint32_t>(std::span(memory_), iova - base_);
  }
  std::span<std::byte> bytes() { return memory_; }

  unsigned msis = 0;
  unsigned lowered = 0;
  unsigned last_vector = ~0u;
  unsigned refused = 0;

 private:
  bool inside(base::Iova at, std::size_t size) const {
    return at.value() >= base_ && at.value() - base_ + size <= memory_.size();
  }
  std::uint64_t base_;
  std::vector<std::byte> memory_;
};

// A hub whose VMID 0 shows [base, base + size).
class FakeSpace : public AddressSpace {
 public:
  FakeSpace(std::uint64_t base, std::size_t size) : base_(base), memory_(size) {}

  Outcome read(const Requester& who, std::uint64_t va, std::span<std::byte> to) override {
    if (!inside(who, va, to.size())) return Outcome::kFault;
    std::ranges::copy(std::span(memory_).subspan(va - base_, to.size()), to.begin());
    return Outcome::kOk;
  }
  Outcome write(const Requester& who, std::uint64_t va, std::span<const std::byte> from) override {
    if (!inside(who, va, from.size())) {
      if (on_fault) on_fault();
      return Outcome::kFault;
    }
    std::ranges::copy(from, memory_.begin() + static_cast<std::ptrdiff_t>(va - base_));
    return Outcome::kOk;
  }
  Outcome atomic(const Requester&, std::uint64_t, AtomicOp, std::uint64_t, std::uint64_t,
                 std::uint64_t&) override {
    return Outcome::kFault;
  }

  template <class T>
  void put(std::uint64_t va, const T& value) {
    base::store(std::span(memory_), va - base_, value);
  }
  template <class T>
  T get(std::uint64_t va) const {
    return base::load<T>(std::span(memory_), va - base_);
  }

  std::function<void()> on_fault;

 private:
  bool inside(const Requester& who, std::uint64_t va, std::size_t size) const {
    return who.vmid == 0 && va >= base_ && va - base_ + size <= memory_.size();
  }
  std::uint64_t base_;
  std::vector<std::byte> memory_;
};

}  // namespace gpusim
