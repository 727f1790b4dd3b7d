#include "vfio/capability_chain.h"

#include <algorithm>
#include <utility>

#include "base/address.h"
#include "base/bytes.h"

namespace vfio {
namespace {

std::unexpected<base::Error> nonsense(const char* what) {
  return base::fail(base::Errc::kProtocol, what);
}

base::Result<std::vector<SparseArea>> read_areas(std::span<const std::byte> reply, std::size_t at,
                                                 std::uint64_t region_size) {
  if (!base::fits(at, sizeof(SparseMmap), reply.size()))
    return nonsense("sparse mmap capability outside the reply");
  const auto sparse = base::load<SparseMmap>(reply, at);
  at += sizeof(sparse);
  if (sparse.area_count > (reply.size() - at) / sizeof(SparseArea))
    return nonsense("sparse areas outside the reply");
  std::vector<SparseArea> areas(sparse.area_count);
  for (auto& area : areas) {
    area = base::load<SparseArea>(reply, at);
    at += sizeof(area);
    if (!base::fits(area.offset, area.size, region_size))
      return nonsense("sparse area outside the region");
    if (!base::is_aligned(area.offset, base::kPageSize) ||
        !base::is_aligned(area.size, base::kPageSize) || area.size == 0)
      return nonsense("sparse area is not whole pages");
  }
  std::ranges::sort(areas, {}, &SparseArea::offset);
  for (std::size_t i = 1; i < areas.size(); ++i)
    if (areas[i].offset - areas[i - 1].offset < areas[i - 1].size)
      return nonsense("sparse areas overlap");
  return areas;
}

}  // namespace

base::Result<std::vector<Capability>> read_chain(std::span<const std::byte> reply,
                                                 std::size_t first, std::size_t fixed) {
  std::vector<Capability> chain;
  // A chain that is longer than the reply has room for goes in a circle.
  std::size_t left = reply.size() < fixed ? 0 : (reply.size() - fixed) / sizeof(CapabilityHeader);
  for (std::size_t at = first; at != 0;) {
    if (at < fixed || !base::fits(at, sizeof(CapabilityHeader), reply.size()))
      return nonsense("capability outside the reply");
    if (left-- == 0) return nonsense("capability chain loops");
    const auto header = base::load<CapabilityHeader>(reply, at);
    chain.push_back({header.id, header.version, at + sizeof(header)});
    at = header.next;
  }
  return chain;
}

base::Result<std::vector<SparseArea>> mappable_areas(std::span<const std::byte> reply,
                                                     std::span<const Capability> chain,
                                                     std::uint64_t region_size) {
  bool sparse = false;
  std::vector<SparseArea> areas;
  for (const Capability& capability : chain) {
    if (capability.id != kCapabilitySparseMmap) continue;
    if (std::exchange(sparse, true)) return nonsense("two sparse mmap capabilities");
    auto read = read_areas(reply, capability.payload, region_size);
    if (!read) return read;
    areas = std::move(*read);
  }
  const std::uint64_t whole = base::align_down(region_size, base::kPageSize);
  if (!sparse && whole != 0) areas.push_back({0, whole});
  return areas;
}

}  // namespace vfio
