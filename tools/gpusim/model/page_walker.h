// The walk of one context's page tables (docs/hardware/gpuvm.md, D11, D12), from the lowest table
// that the cache knows.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "tools/gpusim/model/host_bus.h"
#include "tools/gpusim/model/hub_registers.h"
#include "tools/gpusim/model/pte.h"
#include "tools/gpusim/model/translation_cache.h"
#include "tools/gpusim/model/vram.h"

namespace gpusim {

// What was wrong, as fault status reports it (D17), and which enable bits govern it.
struct FaultCause {
  unsigned interrupt_bit = 0;  // in CONTEXTn_CNTL; the default-page bit is the next one
  unsigned default_bit = 0;    // in FAULT_CNTL_LO32
  unsigned walker_error = 0;
  bool mapping_error = false;
  unsigned permissions = 0;  // PERMISSION_FAULTS without bit 0 and, unless `rights`, bits 1 and 2
  bool rights = false;       // the page is there, the right is not
  bool not_valid = false;    // bit 0
  bool retryable = false;    // by RETRY_PERMISSION_OR_INVALID_PAGE_FAULT; else by RETRY_OTHER_FAULT
  bool never_retried = false;  // 0x6, or no root at all
  bool remote_or_prt = false;  // the entry was NPA or PRT

  static FaultCause range();
  static FaultCause directory(unsigned level, bool final);
  static FaultCause page(bool final);
  static FaultCause malformed();
  static FaultCause right(bool write);
  static FaultCause misplaced();  // a leaf that is unaligned, or VRAM that does not exist
};

struct Walk {
  enum class Kind : std::uint8_t { kLeaf, kSparse, kFault, kBusError };
  Kind kind = Kind::kFault;
  Leaf leaf;
  FaultCause cause;
  std::uint64_t iova = 0;  // kBusError: the table in system memory that could not be read
};

class PageWalker {
 public:
  PageWalker(const HubRegisters& registers, TranslationCache& cache, Vram& vram,
             const std::function<HostBus*()>& bus, std::uint64_t vram_physical)
      : registers_(registers),
        cache_(cache),
        vram_(vram),
        bus_(bus),
        vram_physical_(vram_physical) {}

  // `page` lies between the context's START and END. Caches the directory entries on its way, not
  // the leaf.
  Walk walk(std::uint8_t vmid, std::uint64_t page);

  // Whether a walk of registers and memory as they are now still ends at the same entry: a driver
  // may take away the entry itself, a directory above it, or the root. Unknown (a
  // table in system memory that cannot be reached without asking the client) counts as yes.
  bool still_there(const Leaf& leaf);

  // VRAM offset of a physical address; false outside VRAM (D9).
  bool to_vram(std::uint64_t physical, std::uint64_t& offset) const;

 private:
  struct Start {
    unsigned level;
    TableAddress table;
  };
  bool start(std::uint8_t vmid, std::uint64_t page, Start& from, Walk& failed) const;
  std::optional<std::uint64_t> word(TableAddress at);
  unsigned depth(std::uint8_t vmid) const;
  TableAddress entry_at(TableAddress table, std::uint8_t vmid, std::uint64_t page,
                        unsigned level) const;
  bool load(TableAddress at, std::uint64_t& entry, Walk& failed);
  // The address field of an entry as a place in memory.
  bool place(std::uint64_t entry, TableAddress& at) const;
  Walk leaf(base::Value<PTE> entry, EntryKind kind, unsigned level, unsigned shift,
            std::uint64_t page, TableAddress at) const;

  const HubRegisters& registers_;
  TranslationCache& cache_;
  Vram& vram_;
  const std::function<HostBus*()>& bus_;
  std::uint64_t vram_physical_;
};

}  // namespace gpusim
