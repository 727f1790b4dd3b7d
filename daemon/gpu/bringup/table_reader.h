// Finds the discovery table in VRAM and reads it, a piece at a time (docs/hardware/discovery.md,
// "Finding it").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "daemon/gpu/registers/register_io.h"
#include "vfio/pci_device.h"

namespace gpuumd {

// Device thread. Works with absolute register addresses only: no base is known yet.
class TableReader {
 public:
  // All must outlive the reader; `vram` is BAR 0 and may be smaller than VRAM.
  TableReader(RegisterIo& io, vfio::Bar& vram, std::uint64_t vram_size)
      : io_(io), vram_(vram), vram_size_(vram_size) {}

  // Reads a piece: true when bytes() is the whole binary. kNotFound when there is no table at any
  // of its places, kProtocol when its header makes no sense.
  base::Result<bool> step();

  std::span<const std::byte> bytes() const { return bytes_; }
  // "discovery table at VRAM 0x... by BAR 0", for errors.
  std::string where() const;

 private:
  enum class Phase : std::uint8_t { kDefaultPlace, kScratch, kBody };

  base::Result<bool> try_default_place();
  base::Result<bool> try_scratch();
  base::Result<bool> begin_body(std::size_t limit);
  base::Result<bool> read_piece();
  base::Result<void> read(std::uint64_t at, std::span<std::byte> to);
  void read_window(std::uint64_t at, std::span<std::byte> to);
  bool in_bar(std::uint64_t at, std::size_t size) const;

  RegisterIo& io_;
  vfio::Bar& vram_;
  std::uint64_t vram_size_;
  Phase phase_ = Phase::kDefaultPlace;
  std::uint64_t at_ = 0;  // of the table, in VRAM
  std::size_t done_ = 0;
  std::vector<std::byte> bytes_;
};

}  // namespace gpuumd
