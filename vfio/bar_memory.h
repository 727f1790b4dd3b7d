// The mapped areas of one BAR, and the all ones that take their place when the device is let go of.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/shared_memory.h"
#include "vfio/all_ones.h"
#include "vfio/pci_device.h"

namespace vfio {

// Owned by its Bar; the device looks after it for let_go(). Reactor thread.
class BarMemory {
 public:
  // Owns what the areas point into. kNoMemory, and kSystem for want of a
  // descriptor, when there are no all ones to be had.
  static base::Result<std::shared_ptr<BarMemory>> create(std::vector<base::Mapping> mappings,
                                                         std::vector<MappedArea> areas);

  std::span<const MappedArea> areas() const { return areas_; }
  std::byte* at(std::uint64_t offset) const;  // null where nothing is mapped
  const AllOnes& ones() const { return *ones_; }

  // All ones stand in for the device: the addresses stay, the mappings of its file do not. In an
  // area for which this process has too few mappings left (vm.max_map_count) nothing stands in, and
  // an access to it is a SIGSEGV: the device goes all the same. False when the kernel refused that
  // too; parts of the device are then still mapped. Idempotent.
  bool let_go();

 private:
  BarMemory(std::vector<base::Mapping> mappings, std::vector<MappedArea> areas,
            std::unique_ptr<AllOnes> ones)
      : mappings_(std::move(mappings)), areas_(std::move(areas)), ones_(std::move(ones)) {}

  std::vector<base::Mapping> mappings_;
  std::vector<MappedArea> areas_;
  std::unique_ptr<AllOnes> ones_;
};

// What a device knows of the BARs that it has handed out.
class BarMemories {
 public:
  void add(const std::shared_ptr<BarMemory>& memory);
  bool let_go();  // of all that still live

 private:
  std::vector<std::weak_ptr<BarMemory>> memories_;
};

}  // namespace vfio
