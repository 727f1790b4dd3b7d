// Moves the bytes of runs: local memory, the host bus, the fabric.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "tools/gpusim/model/block_context.h"
#include "tools/gpusim/model/vm_hub.h"
#include "tools/gpusim/model/vram.h"

namespace gpusim {

constexpr unsigned operand_bytes(AtomicOp op) {
  switch (op) {
    case AtomicOp::kAdd32:
    case AtomicOp::kSwap32:
    case AtomicOp::kCompareSwap32:
      return 4;
    case AtomicOp::kAdd64:
    case AtomicOp::kSwap64:
    case AtomicOp::kCompareSwap64:
      return 8;
  }
  return 8;
}

// Does the operation on a word in memory, atomically. Returns the old value.
std::uint64_t atomic_at(std::byte* at, AtomicOp op, std::uint64_t operand, std::uint64_t compare);

class MemoryAccess {
 public:
  MemoryAccess(const BlockContext& context, Vram& vram, HubCounters& counters, AccessError& error,
               std::function<void()> on_bus_error)
      : context_(context),
        vram_(vram),
        counters_(counters),
        error_(error),
        on_bus_error_(std::move(on_bus_error)) {}

  // `to` and `from` are at most as long as the run.
  Outcome read(const Requester& who, const Run& run, std::span<std::byte> to);
  Outcome write(const Requester& who, const Run& run, std::span<const std::byte> from);
  Outcome atomic(const Requester& who, const Run& run, AtomicOp op, std::uint64_t operand,
                 std::uint64_t compare, std::uint64_t& result);

  std::span<const std::byte> source(const Requester& who, const Run& run);
  std::span<std::byte> target(const Run& run);
  void stored(const Requester& who, const Run& run, std::uint64_t bytes);

  void bus_failed(const Requester& who, std::uint64_t iova, std::uint64_t bytes, bool write);
  // Scenario: the next `count` bus accesses go to IOVA + `add`, or all to the page at `page`.
  void mislead(std::uint64_t add, std::optional<std::uint64_t> page, std::uint64_t count) {
    iova_add_ = add;
    wrong_page_ = page;
    misled_ = count;
  }

 private:
  static constexpr std::uint64_t kFetch = 4096;  // a read up to this size is no bulk read

  Outcome read_bus(const Requester& who, std::uint64_t iova, std::span<std::byte> to);
  Outcome write_bus(const Requester& who, std::uint64_t iova, std::span<const std::byte> from);
  Outcome remote(const Requester& who, RemoteAccess& access, std::uint64_t bytes);
  std::uint64_t bus_address(std::uint64_t iova);
  void look_for_poison(const Run& run, std::uint64_t bytes);
  void log(const Requester& who, AccessKind kind, bool write, std::uint64_t address,
           std::uint64_t bytes, Outcome outcome);

  const BlockContext& context_;
  Vram& vram_;
  HubCounters& counters_;
  AccessError& error_;
  std::function<void()> on_bus_error_;
  std::uint64_t iova_add_ = 0;
  std::optional<std::uint64_t> wrong_page_;
  std::uint64_t misled_ = 0;
};

}  // namespace gpusim
