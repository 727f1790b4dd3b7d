#include "daemon/gpu/registers/register_bus.h"

#include <utility>

#include "daemon/gpu/registers/nbio.h"

namespace gpuumd {
namespace {

// NBIO segment 0 starts at dword 0 on every part (docs/hardware/choices.md D37).
constexpr std::uint64_t kIndex = 4 * nbio::PCIE_INDEX2::kOffset;
constexpr std::uint64_t kData = 4 * nbio::PCIE_DATA2::kOffset;
constexpr std::uint64_t kIndexHigh = 4 * nbio::PCIE_INDEX2_HI::kOffset;

}  // namespace

base::Result<std::unique_ptr<RegisterBus>> RegisterBus::open(vfio::PciDevice& device) {
  auto bar = device.open_bar(vfio::BarIndex::k5);
  if (!bar) return base::fail_within("register BAR (5)", std::move(bar.error()));
  if ((*bar)->size() < kIndexHigh + 4)
    return base::fail(base::Errc::kUnsupported,
                      "register BAR (5) of " + std::to_string((*bar)->size()) + " bytes");
  return std::unique_ptr<RegisterBus>(new RegisterBus(device, std::move(*bar)));
}

RegisterBus::RegisterBus(vfio::PciDevice& device, std::unique_ptr<vfio::Bar> bar)
    : device_(device), bar_(std::move(bar)), direct_dwords_(bar_->size() / 4) {}

// A register may hold all ones; the vendor id of a function that is there cannot.
std::uint32_t RegisterBus::load(std::uint64_t offset) {
  const auto value = bar_->read32(offset);
  if (value == ~0u && !lost()) {
    const auto vendor = device_.read_config(0, 2);
    gone_ = vendor && *vendor == 0xFFFF;
  }
  return value;
}

std::uint32_t RegisterBus::read(std::uint32_t dword) {
  if (direct(dword)) {
    ++counters_.direct_reads;
    return load(std::uint64_t{4} * dword);
  }
  ++counters_.smn_reads;
  const bool high = select(dword);
  const auto value = load(kData);
  deselect(high);
  return value;
}

void RegisterBus::write(std::uint32_t dword, std::uint32_t value) {
  if (direct(dword)) {
    ++counters_.direct_writes;
    bar_->write32(std::uint64_t{4} * dword, value);
    return;
  }
  ++counters_.smn_writes;
  const bool high = select(dword);
  bar_->write32(kData, value);
  deselect(high);
}

bool RegisterBus::select(std::uint32_t dword) {
  const std::uint64_t address = std::uint64_t{4} * dword;
  const bool high = address >> 32 != 0;
  if (high) bar_->write32(kIndexHigh, static_cast<std::uint32_t>(address >> 32));
  bar_->write32(kIndex, static_cast<std::uint32_t>(address));
  (void)bar_->read32(kIndex);  // the index has arrived before the data is touched
  return high;
}

void RegisterBus::deselect(bool high) {
  if (high) bar_->write32(kIndexHigh, 0);
}

}  // namespace gpuumd
