// Local memory. One memfd; its first part is BAR 0, which the client maps, so a CPU store lands in
// it without the model knowing. The engines' side of that visible part is kept apart
// (docs/model-memory.md): a page that the walker or a small fetch has looked at is held as a copy,
// and a CPU store reaches it only by an HDP flush, or 1 ms after an engine first met the
// difference.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/fd.h"
#include "base/result.h"
#include "base/shared_memory.h"
#include "tools/gpusim/model/types.h"

namespace gpusim {

enum class PoisonMode : std::uint8_t {
  kOff,
  kCount,  // default: memory keeps its bytes, reads of unreferenced pages are counted
  kFill,   // the bytes are overwritten too; only for clients that never map a page again
};

struct VramOptions {
  std::uint64_t bytes = std::uint64_t{1} << 30;
  std::uint64_t visible_bytes = std::uint64_t{64} << 20;  // BAR 0; at most `bytes`
  bool hdp_strict = true;
  PoisonMode poison = PoisonMode::kCount;
  bool huge_pages = false;  // from the host's 2 MiB pool; an empty pool means small pages
};

struct VramCounters {
  std::uint64_t hdp_flushes = 0;
  std::uint64_t held_stores = 0;       // reads that met a CPU store not flushed yet
  std::uint64_t poisoned_pages = 0;    // pages that lost their last translation
  std::uint64_t poison_reads = 0;      // accesses, not pages
  std::uint64_t last_poison_read = 0;  // VRAM offset
};

// Model thread only. Offsets are bytes from the start of VRAM; callers check them against size().
class Vram {
 public:
  static base::Result<std::unique_ptr<Vram>> create(const VramOptions& options,
                                                    const ModelClock& clock);

  std::uint64_t size() const { return options_.bytes; }
  std::uint64_t visible() const { return options_.visible_bytes; }
  int fd() const { return fd_.get(); }
  // Whether the memory is in 2 MiB pages.
  bool huge() const { return huge_; }
  // What the CPU sees through BAR 0 and what trapped BAR 0 accesses go to. Engines do not use it.
  std::span<std::byte> cpu_view() const { return memory_.bytes(); }

  // NBIO's memory coherency flush: CPU stores so far become visible to engines and walkers.
  void hdp_flush();

  // --- the engines' side ---

  // One aligned 64-bit word, acquire; the walker's reads. Holds the page.
  std::uint64_t load64(std::uint64_t offset);
  // A small read (commands, pointers, polled words): holds the pages it touches.
  void fetch(std::uint64_t offset, std::span<std::byte> to);
  // A bulk read: memory at `offset`, valid until the next call on this object; at most `bytes`,
  // less at the edge of a held page. Does not hold pages.
  std::span<const std::byte> bulk(std::uint64_t offset, std::uint64_t bytes) const;
  // Where an engine may store; what it stored must be told by wrote(), with the same range.
  std::byte* writable(std::uint64_t offset) { return memory_.data() + offset; }
  void wrote(std::uint64_t offset, std::uint64_t bytes) {
    if (held_.empty() && poisoned_ == 0) return;
    note_write(offset, bytes);
  }
  void write(std::uint64_t offset, std::span<const std::byte> from);
  // As the AddressSpace call; atomic against CPU and engines. `offset` aligned to the operand.
  std::uint64_t atomic(std::uint64_t offset, AtomicOp op, std::uint64_t operand,
                       std::uint64_t compare);

  // --- poison: which pages cached translations refer to ---

  void reference(std::uint64_t offset, std::uint64_t bytes);
  // A cached translation of `owner` (a PASID; 0 for none) went. `gone`: its entry in memory no
  // longer leads here; then pages without another reference count as freed.
  void unreference(std::uint64_t offset, std::uint64_t bytes, bool gone, std::uint16_t owner);
  bool poisons() const { return options_.poison != PoisonMode::kOff; }
  // Whether a page of the range was freed by another owner and not written since.
  bool poisoned(std::uint64_t offset, std::uint64_t bytes, std::uint16_t reader) const;
  void count_poison_read(std::uint64_t offset);

  const VramCounters& counters() const { return counters_; }
  static constexpr std::uint64_t kPoisonPattern = 0xDEAD'F4EE'DEAD'F4EE;

 private:
  struct HeldPage {
    std::vector<std::uint64_t> words;
    bool differs = false;
    ModelTime differs_since{};
  };

  Vram(const VramOptions& options, const ModelClock& clock, base::UniqueFd fd, base::Mapping memory,
       bool huge);

  HeldPage& held(std::uint64_t page);
  void refresh(std::uint64_t page, HeldPage& copy) const;
  bool visible_now(HeldPage& copy);
  void note_write(std::uint64_t offset, std::uint64_t bytes);
  bool strict(std::uint64_t offset) const {
    return options_.hdp_strict && offset < options_.visible_bytes;
  }

  VramOptions options_;
  const ModelClock& clock_;
  base::UniqueFd fd_;
  base::Mapping memory_;
  bool huge_;
  std::unordered_map<std::uint64_t, HeldPage> held_;
  struct FreeArray {
    void operator()(void* array) const;
  };
  std::unique_ptr<std::uint32_t[], FreeArray> references_;  // a 4 KiB page
  std::unique_ptr<std::uint32_t[], FreeArray> freed_by_;    // PASID + 1; 0: not poisoned
  std::uint64_t poisoned_ = 0;
  VramCounters counters_;
};

}  // namespace gpusim
