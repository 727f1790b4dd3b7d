// Region commands of a session: information, and trapped accesses (docs/hardware/choices.md D64).

#include <algorithm>
#include <cerrno>

#include "base/bytes.h"
#include "tools/gpusim/server/session.h"

namespace gpusim {

namespace {

constexpr std::uint32_t index_of(Bar bar) { return static_cast<std::uint32_t>(bar); }

void fill_ones(std::span<std::byte> bytes) { std::ranges::fill(bytes, std::byte{0xFF}); }

}  // namespace

std::uint64_t Session::region_size(std::uint32_t index) const {
  switch (index) {
    case index_of(Bar::kVram):
      return device_.bar_size(Bar::kVram);
    case index_of(Bar::kDoorbells):
      return device_.bar_size(Bar::kDoorbells);
    case index_of(Bar::kRegisters):
      return device_.bar_size(Bar::kRegisters);
    case wire::kConfigRegion:
      return PciConfig::kSize;
    default:
      return 0;
  }
}

// A doorbell page is offered only to a client that wakes us after a store into it (D62).
BarMemory Session::offered_memory(std::uint32_t index) const {
  if (index == index_of(Bar::kVram)) return device_.bar_memory(Bar::kVram);
  if (index == index_of(Bar::kRegisters)) return device_.bar_memory(Bar::kRegisters);
  if (index == index_of(Bar::kDoorbells) && wake_) return device_.bar_memory(Bar::kDoorbells);
  return {};
}

Session::Answer Session::region_info(const Message& message) const {
  if (message.body.size() < sizeof(wire::RegionInfo)) return refuse(EINVAL);
  const auto request = base::load<wire::RegionInfo>(message.body, 0);
  if (request.index >= wire::kRegions || request.argsz < sizeof request) return refuse(EINVAL);

  const std::uint64_t size = region_size(request.index);
  wire::RegionInfo info{sizeof info, 0, request.index, 0, size, 0};
  if (size != 0) info.flags = wire::kRegionReadable | wire::kRegionWritable;
  const BarMemory memory = offered_memory(request.index);
  std::vector<std::byte> capability;
  if (!memory.areas.empty()) {
    info.flags |= wire::kRegionMmap;
    const bool whole = memory.areas.front().offset == 0 && memory.areas.front().size == size;
    if (!whole) {
      info.flags |= wire::kRegionCaps;
      capability.resize(sizeof(wire::SparseMmap) + memory.areas.size() * sizeof(wire::SparseArea));
      base::store(std::span(capability), 0,
                  wire::SparseMmap{1, 1, 0, static_cast<std::uint32_t>(memory.areas.size()), 0});
      std::size_t at = sizeof(wire::SparseMmap);
      for (const MappableArea& area : memory.areas) {
        base::store(std::span(capability), at, wire::SparseArea{area.offset, area.size});
        at += sizeof(wire::SparseArea);
      }
    }
  }
  info.argsz = static_cast<std::uint32_t>(sizeof info + capability.size());
  // Too little room: the client learns how much it needs and asks again. It also learns where the
  // capabilities will be: QEMU takes an offset of 0 beside the flag for an error.
  const bool complete = request.argsz >= info.argsz;
  if (!capability.empty()) info.cap_offset = sizeof info;
  Answer answer;
  const auto bytes = base::as_bytes(info);
  answer.body.assign(bytes.begin(), bytes.end());
  if (complete) {
    answer.body.insert(answer.body.end(), capability.begin(), capability.end());
    if ((info.flags & wire::kRegionMmap) != 0) answer.fds = {memory.fd};
  }
  return answer;
}

Session::Answer Session::region_read(const Message& message) {
  if (message.body.size() < sizeof(wire::RegionAccess)) return refuse(EINVAL);
  const auto request = base::load<wire::RegionAccess>(message.body, 0);
  if (request.count > wire::kMaxTransfer || request.region >= wire::kRegions ||
      !base::fits(request.offset, request.count, region_size(request.region)))
    return refuse(EINVAL);
  Answer answer;
  answer.body.resize(sizeof request + request.count);
  base::store(std::span(answer.body), 0, request);
  const auto data = std::span(answer.body).subspan(sizeof request);
  if (const int error = read_region(request.region, request.offset, data)) return refuse(error);
  return answer;
}

Session::Answer Session::region_write(const Message& message) {
  if (message.body.size() < sizeof(wire::RegionAccess)) return refuse(EINVAL);
  const auto request = base::load<wire::RegionAccess>(message.body, 0);
  if (message.body.size() - sizeof request != request.count || request.region >= wire::kRegions ||
      !base::fits(request.offset, request.count, region_size(request.region)))
    return refuse(EINVAL);
  const auto data = std::span(message.body).subspan(sizeof request);
  if (const int error = write_region(request.region, request.offset, data)) return refuse(error);
  Answer answer;
  const auto bytes = base::as_bytes(request);
  answer.body.assign(bytes.begin(), bytes.end());
  return answer;
}

int Session::read_region(std::uint32_t region, std::uint64_t offset, std::span<std::byte> to) {
  if (device_.gone()) {
    fill_ones(to);
    return 0;
  }
  if (region == wire::kConfigRegion) {
    function_.config.read(offset, to);
    return 0;
  }
  if (!function_.config.memory_space()) {
    fill_ones(to);
    return 0;
  }
  if (region == index_of(Bar::kRegisters)) return read_registers(offset, to);
  if (region == index_of(Bar::kVram)) {
    device_.read_vram_bar(offset, to);
    return 0;
  }
  std::ranges::fill(to, std::byte{});  // doorbells read 0
  return 0;
}

int Session::write_region(std::uint32_t region, std::uint64_t offset,
                          std::span<const std::byte> from) {
  if (device_.gone()) return 0;
  if (region == wire::kConfigRegion) {
    write_config(offset, from);
    return 0;
  }
  if (!function_.config.memory_space()) return 0;
  if (region == index_of(Bar::kRegisters)) return write_registers(offset, from);
  if (region == index_of(Bar::kVram)) {
    device_.write_vram_bar(offset, from);
    return 0;
  }
  return write_doorbell(offset, from);
}

std::uint32_t Session::read_dword(std::uint64_t offset) {
  return function_.msix.owns(offset) ? function_.msix.read(offset) : device_.read_register(offset);
}

void Session::write_dword(std::uint64_t offset, std::uint32_t value) {
  if (function_.msix.owns(offset))
    function_.msix.write(offset, value);
  else
    device_.write_register(offset, value);
}

int Session::read_registers(std::uint64_t offset, std::span<std::byte> to) {
  const std::size_t width = to.size();
  if ((width != 1 && width != 2 && width != 4 && width != 8) || offset % width != 0) return EINVAL;
  if (width == 8) {
    base::store(to, 0, read_dword(offset));
    base::store(to, 4, read_dword(offset + 4));
    return 0;
  }
  const std::uint32_t dword = read_dword(offset & ~std::uint64_t{3});
  std::ranges::copy(base::as_bytes(dword).subspan(offset % 4, width), to.begin());
  return 0;
}

int Session::write_registers(std::uint64_t offset, std::span<const std::byte> from) {
  const std::size_t width = from.size();
  if ((width != 4 && width != 8) || offset % width != 0) return EINVAL;
  for (std::size_t at = 0; at < width; at += 4)
    write_dword(offset + at, base::load<std::uint32_t>(from, at));
  return 0;
}

int Session::write_doorbell(std::uint64_t offset, std::span<const std::byte> from) {
  const std::size_t width = from.size();
  if ((width != 4 && width != 8) || offset % width != 0) return EINVAL;
  const std::uint64_t value =
      width == 8 ? base::load<std::uint64_t>(from, 0) : base::load<std::uint32_t>(from, 0);
  device_.ring_doorbell(offset, value, static_cast<unsigned>(width));
  return 0;
}

void Session::write_config(std::uint64_t offset, std::span<const std::byte> from) {
  const PciConfig::Effect effect = function_.config.write(offset, from);
  if (effect.interrupts_changed) function_.update_interrupts();
  if (effect.function_reset) reset_device();
}

}  // namespace gpusim
