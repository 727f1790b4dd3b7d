#include "vfio/mmio.h"

#include "base/bytes.h"

namespace vfio {
namespace {

template <class Word>
void load_to(std::byte* from, std::span<std::byte> to) {
  base::store(to, 0, word_at<Word>(from).load(std::memory_order_relaxed));
}
template <class Word>
void store_from(std::byte* to, std::span<const std::byte> from) {
  word_at<Word>(to).store(base::load<Word>(from, 0), std::memory_order_relaxed);
}

}  // namespace

void load_step(std::byte* from, std::span<std::byte> to) {
  switch (to.size()) {
    case 1:
      return load_to<std::uint8_t>(from, to);
    case 2:
      return load_to<std::uint16_t>(from, to);
    case 4:
      return load_to<std::uint32_t>(from, to);
    default:
      return load_to<std::uint64_t>(from, to);
  }
}

void store_step(std::byte* to, std::span<const std::byte> from) {
  switch (from.size()) {
    case 1:
      return store_from<std::uint8_t>(to, from);
    case 2:
      return store_from<std::uint16_t>(to, from);
    case 4:
      return store_from<std::uint32_t>(to, from);
    default:
      return store_from<std::uint64_t>(to, from);
  }
}

}  // namespace vfio
