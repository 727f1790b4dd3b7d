#include "vfio/bar_memory.h"

#include <algorithm>
#include <utility>

namespace vfio {
base::Result<std::shared_ptr<BarMemory>> BarMemory::create(std::vector<base::Mapping> mappings,
                                                           std::vector<MappedArea> areas) {
  std::uint64_t largest = 0;
  for (const MappedArea& area : areas) largest = std::max(largest, area.size);
  auto ones = AllOnes::create(largest);
  if (!ones) return std::unexpected(ones.error());
  return std::shared_ptr<BarMemory>(
      new BarMemory(std::move(mappings), std::move(areas), std::move(*ones)));
}

std::byte* BarMemory::at(std::uint64_t offset) const {
  for (const MappedArea& area : areas_)
    if (offset - area.offset < area.size) return area.data + (offset - area.offset);
  return nullptr;
}

bool BarMemory::let_go() {
  bool all = true;
  for (const MappedArea& area : areas_)
    all = (ones_->stand_in(area.data, area.size) || ones_->close_off(area.data, area.size)) && all;
  return all;
}

void BarMemories::add(const std::shared_ptr<BarMemory>& memory) {
  std::erase_if(memories_, [](const auto& known) { return known.expired(); });
  memories_.push_back(memory);
}

bool BarMemories::let_go() {
  bool all = true;
  for (const auto& known : memories_)
    if (const auto memory = known.lock()) all = memory->let_go() && all;
  memories_.clear();
  return all;
}

}  // namespace vfio
