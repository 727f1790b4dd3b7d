#include "daemon/gpu/memory/vram.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <string>

namespace gpuumd {
namespace {

constexpr unsigned kNaturalOrder = 9;
static_assert(Vram::kNaturalBlock == base::kPageSize << kNaturalOrder);

// The order whose block holds `bytes`.
unsigned order_for(std::uint64_t bytes) {
  return static_cast<unsigned>(std::bit_width((bytes - 1) / base::kPageSize));
}

}  // namespace

void VramBlock::reset() {
  if (vram_ != nullptr) std::exchange(vram_, nullptr)->free(at_, order_);
}

Vram::Vram(std::uint64_t bytes, std::uint64_t visible)
    : bytes_(bytes), visible_(visible), buddy_(bytes / base::kPageSize) {}

base::Result<Vram> Vram::create(std::uint64_t bytes, std::uint64_t visible,
                                const std::vector<Range>& reserved) {
  if (bytes == 0 || !base::is_aligned(bytes, base::kPageSize) ||
      !base::is_aligned(visible, base::kPageSize) || visible > bytes)
    return base::fail(base::Errc::kInvalidArgument, "size of VRAM or of its visible part");
  Vram vram(bytes, visible);
  for (const Range& range : reserved) {
    if (range.bytes == 0 || !base::fits(range.first.value(), range.bytes, bytes))
      return base::fail(base::Errc::kInvalidArgument, "reserved VRAM lies outside VRAM");
    const std::uint64_t first = range.first.page();
    const std::uint64_t end =
        base::align_up(range.first.value() + range.bytes, base::kPageSize) / base::kPageSize;
    if (!vram.buddy_.reserve(first, end - first))
      return base::fail(base::Errc::kInvalidArgument, "reserved VRAM overlaps");
    for (std::uint64_t page = first; page < end; ++page)
      vram.reserved_[page * base::kPageSize >= visible ? 1 : 0] += base::kPageSize;
  }
  return vram;
}

bool Vram::take_block(unsigned order, VramZone zone, VramBlock& to) {
  const std::uint64_t border = visible_ / base::kPageSize;
  std::optional<std::uint64_t> page;
  const auto visible = [&] { page = buddy_.allocate(order, 0, border); };
  const auto invisible = [&] { page = buddy_.allocate(order, border, buddy_.pages()); };
  if (zone == VramZone::kVisible || zone == VramZone::kVisibleFirst) {
    visible();
    if (!page && zone == VramZone::kVisibleFirst) invisible();
  } else {
    invisible();
    if (!page && zone == VramZone::kInvisibleFirst) visible();
  }
  if (!page) return false;
  to = VramBlock(this, base::VramOffset(*page * base::kPageSize), order);
  used_[*page >= border ? 1 : 0] += to.bytes();
  return true;
}

base::Result<VramBlock> Vram::allocate(std::uint64_t bytes, VramZone zone) {
  if (bytes == 0 || bytes > base::kPageSize << base::BuddyAllocator::kMaxOrder)
    return base::fail(base::Errc::kInvalidArgument, "size of a VRAM block");
  VramBlock block;
  if (!take_block(order_for(bytes), zone, block))
    return base::fail(base::Errc::kNoSpace, "VRAM block of " + std::to_string(bytes) + " bytes");
  return block;
}

base::Result<std::vector<VramBlock>> Vram::allocate_blocks(std::uint64_t bytes, VramZone zone,
                                                           std::uint64_t alignment) {
  assert(std::has_single_bit(alignment) && alignment <= kNaturalBlock);
  if (bytes == 0 || bytes > bytes_)
    return base::fail(bytes == 0 ? base::Errc::kInvalidArgument : base::Errc::kNoSpace,
                      "VRAM of " + std::to_string(bytes) + " bytes");
  std::vector<VramBlock> blocks;
  std::uint64_t pages = base::align_up(bytes, base::kPageSize) / base::kPageSize;
  const unsigned whole = order_for(alignment);
  unsigned order = kNaturalOrder;
  while (pages != 0) {
    order = std::min<unsigned>(order, std::bit_width(pages) - 1);
    VramBlock block;
    if (take_block(order, zone, block)) {
      pages -= std::uint64_t{1} << order;
      blocks.push_back(std::move(block));
    } else if (order == 0 || (order <= whole && pages >> whole != 0)) {
      return base::fail(base::Errc::kNoSpace, "VRAM of " + std::to_string(bytes) + " bytes");
    } else {
      --order;
    }
  }
  return blocks;
}

void Vram::free(base::VramOffset at, unsigned order) {
  used_[at.value() >= visible_ ? 1 : 0] -= base::kPageSize << order;
  buddy_.free(at.page(), order);
}

Vram::Usage Vram::usage(std::uint64_t first, std::uint64_t end) const {
  Usage usage;
  const std::size_t zone = first == 0 && visible_ != 0 ? 0 : 1;
  usage.total = end - first;
  if (usage.total == 0) return usage;
  usage.reserved = reserved_[zone];
  usage.used = used_[zone];
  usage.free = usage.total - usage.reserved - usage.used;
  if (const auto order = buddy_.largest_free(first / base::kPageSize, end / base::kPageSize))
    usage.largest_free = base::kPageSize << *order;
  return usage;
}

bool Vram::check() const {
  const Usage visible = visible_usage();
  const Usage invisible = invisible_usage();
  return visible.reserved + visible.used <= visible.total &&
         invisible.reserved + invisible.used <= invisible.total &&
         visible.free + invisible.free == buddy_.free_pages() * base::kPageSize && buddy_.check();
}

std::vector<PhysRun> runs_of(const std::vector<VramBlock>& blocks) {
  std::vector<PhysRun> runs;
  for (const VramBlock& block : blocks) {
    if (!runs.empty() && runs.back().vram_offset() + runs.back().bytes() == block.offset()) {
      runs.back() =
          PhysRun::vram(runs.back().vram_offset(), runs.back().pages() + block.run().pages());
    } else {
      runs.push_back(block.run());
    }
  }
  return runs;
}

}  // namespace gpuumd
