// What engines accessed: a ring of the latest accesses, and totals that are never dropped, for
// tests and for `gpusim ctl` (docs/model.md). One a pod.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tools/gpusim/model/types.h"

namespace gpusim {

// Where the bytes were.
enum class AccessKind : std::uint8_t { kLocal, kRemote, kBus };  // VRAM, another GPU, host memory

struct Access {
  ModelTime time{};
  unsigned gpu = 0;
  std::string engine;  // as in Requester::engine
  AccessKind kind = AccessKind::kLocal;
  bool write = false;
  std::uint64_t address = 0;  // kLocal: VRAM offset, kRemote: NPA, kBus: IOVA
  std::uint64_t bytes = 0;
  Outcome outcome = Outcome::kOk;
};

struct AccessTotals {
  std::uint64_t accesses = 0;
  std::uint64_t bytes = 0;   // of those that ended kOk
  std::uint64_t failed = 0;  // any outcome but kOk and kRetry
};

class AccessLog {
 public:
  explicit AccessLog(std::size_t capacity = 65536) : capacity_(capacity) {}

  void add(const Access& access);

  // Of the accesses still in the ring, oldest first, those of `gpu` and `engine` (empty: any).
  std::vector<Access> find(unsigned gpu, std::string_view engine) const;
  const std::deque<Access>& recent() const { return ring_; }
  std::uint64_t dropped() const { return dropped_; }  // pushed out of the ring by newer ones

  // Totals by GPU, engine, kind and direction.
  struct Key {
    unsigned gpu;
    std::string engine;
    AccessKind kind;
    bool write;
    auto operator<=>(const Key&) const = default;
  };
  const std::map<Key, AccessTotals>& totals() const { return totals_; }

  // One line an access, totals at the end. kSystem when the file cannot be written.
  base::Result<void> write_file(const std::string& path) const;

 private:
  std::size_t capacity_;
  std::deque<Access> ring_;
  std::uint64_t dropped_ = 0;
  std::map<Key, AccessTotals> totals_;
};

std::string_view to_string(AccessKind kind);
std::string_view to_string(Outcome outcome);

}  // namespace gpusim
