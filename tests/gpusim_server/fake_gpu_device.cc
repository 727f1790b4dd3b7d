#include "fake_gpu_device.h"

#include <algorithm>
#include <utility>

#include "base/address.h"

namespace gpusim::testing {

namespace {

base::UniqueFd memory(const char* name, std::uint64_t size) {
  return base::make_memfd(name, size).value();
}

}  // namespace

FakeGpuDevice::FakeGpuDevice(bool intx)
    : intx_(intx),
      vram_(memory("fake-vram", kVram)),
      doorbell_memory_(memory("fake-doorbells", kDoorbells)),
      register_memory_(memory("fake-registers", kRegisters)),
      vram_map_(base::Mapping::map(vram_.get(), 0, kVram, PROT_READ | PROT_WRITE).value()),
      doorbell_page_(
          base::Mapping::map(doorbell_memory_.get(), 0, base::kPageSize, PROT_READ | PROT_WRITE)
              .value()),
      seen_(base::kPageSize / 8) {}

std::uint64_t FakeGpuDevice::bar_size(Bar bar) const {
  switch (bar) {
    case Bar::kVram:
      return kVram;
    case Bar::kDoorbells:
      return kDoorbells;
    case Bar::kRegisters:
      return kRegisters;
  }
  return 0;
}

BarMemory FakeGpuDevice::bar_memory(Bar bar) const {
  switch (bar) {
    case Bar::kVram:
      return {vram_.get(), {{0, kVram}}};
    case Bar::kDoorbells:
      return {doorbell_memory_.get(), {{0, base::kPageSize}}};
    case Bar::kRegisters:
      return {register_memory_.get(), {{kFlushPage, base::kPageSize}}};
  }
  return {};
}

void FakeGpuDevice::attach(HostBus& bus) {
  calls.push_back("attach");
  bus_ = &bus;
}

void FakeGpuDevice::detach() {
  calls.push_back("detach");
  bus_ = nullptr;
}

void FakeGpuDevice::reset() {
  ++resets;
  registers.clear();
}

std::uint32_t FakeGpuDevice::read_register(std::uint64_t offset) {
  calls.push_back("read " + std::to_string(offset));
  return registers[offset];
}

void FakeGpuDevice::write_register(std::uint64_t offset, std::uint32_t value) {
  calls.push_back("write " + std::to_string(offset));
  registers[offset] = value;
}

void FakeGpuDevice::ring_doorbell(std::uint64_t offset, std::uint64_t value, unsigned width) {
  doorbells.push_back({offset, value, width});
  ++doorbells_seen;
}

void FakeGpuDevice::read_vram_bar(std::uint64_t offset, std::span<std::byte> to) {
  std::copy_n(vram() + offset, to.size(), to.begin());
}

void FakeGpuDevice::write_vram_bar(std::uint64_t offset, std::span<const std::byte> from) {
  std::ranges::copy(from, vram() + offset);
}

std::uint64_t FakeGpuDevice::doorbell(std::size_t index) const {
  return std::atomic_ref(*doorbell_page_.at<std::uint64_t>(8 * index))
      .load(std::memory_order_acquire);
}

bool FakeGpuDevice::stored() const {
  for (std::size_t i = 0; i < seen_.size(); ++i)
    if (doorbell(i) != seen_[i]) return true;
  return false;
}

bool FakeGpuDevice::look() {
  bool any = false;
  for (std::size_t i = 0; i < seen_.size(); ++i) {
    const std::uint64_t now = doorbell(i);
    if (now == std::exchange(seen_[i], now)) continue;
    doorbells.push_back({8 * i, now, 0});
    calls.push_back("doorbell " + std::to_string(8 * i));
    ++doorbells_seen;
    any = true;
  }
  return any;
}

bool FakeGpuDevice::step() {
  ++steps;
  if (jobs_.empty()) return false;
  const auto job = std::move(jobs_.front());
  jobs_.erase(jobs_.begin());
  job(bus_);
  return true;
}

}  // namespace gpusim::testing
