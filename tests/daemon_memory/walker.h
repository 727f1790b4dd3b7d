// A page walker of the test's own, written from docs/hardware/gpuvm.md and knowing nothing of the
// driver's encoders: it reads the words that the driver put into memory.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

namespace fake {

struct Translation {
  std::uint64_t address = 0;  // of the page at the walked address
  bool system = false;
  bool npa = false;
  bool read = false;
  bool write = false;
  unsigned level = 0;     // 0 PTE, 1 PDB0 leaf, 2 PDB1 leaf
  unsigned fragment = 0;  // as the entry claims
  friend bool operator==(const Translation&, const Translation&) = default;
};

class Walker {
 public:
  // The 8 bytes at a physical address of VRAM, or at an IOVA.
  using Load = std::function<std::uint64_t(bool system, std::uint64_t address)>;

  explicit Walker(Load load) : load_(std::move(load)) {}

  // Five levels from a CONTEXT BASE value. Without a translation: nothing, and last_entry() is what
  // ended the walk.
  std::optional<Translation> walk(std::uint64_t root, std::uint64_t va) {
    constexpr std::uint64_t kAddress = 0x000F'FFFF'FFFF'F000;
    std::uint64_t entry = root;
    for (int level = 4; level >= 0; --level) {
      last_ = entry;
      if ((entry & 1) == 0) return std::nullopt;
      const std::uint64_t table = entry & kAddress;
      const std::uint64_t index = (va >> (12 + 9 * level)) & 511;
      entry = load_((entry >> 1 & 1) != 0, table + 8 * index);
      last_ = entry;
      if ((entry >> 63 & 1) == 0) continue;  // a directory entry, or invalid
      const bool npa = (entry & 1) == 0 && (entry >> 56 & 1) != 0;
      if ((entry & 1) == 0 && !npa) return std::nullopt;
      const std::uint64_t span = std::uint64_t{4096} << (9 * level);
      const std::uint64_t first = entry & kAddress;
      if (first % span != 0) return std::nullopt;  // MAPPING_ERROR
      Translation result;
      result.address = first + va % span / 4096 * 4096;
      result.system = (entry >> 1 & 1) != 0;
      result.npa = npa;
      result.read = (entry >> 5 & 1) != 0;
      result.write = (entry >> 6 & 1) != 0;
      result.level = static_cast<unsigned>(level);
      result.fragment = static_cast<unsigned>(entry >> 7 & 31);
      return result;
    }
    return std::nullopt;
  }
  std::uint64_t last_entry() const { return last_; }

 private:
  Load load_;
  std::uint64_t last_ = 0;
};

}  // namespace fake
